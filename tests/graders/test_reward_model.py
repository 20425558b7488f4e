"""A tiny learned reward model as a grader."""

import shutil
from pathlib import Path

import msgspec
import pytest
import torch
from grader_case import make_task, submit
from transformers import LlamaConfig, LlamaForSequenceClassification

from headrace.errors import ConfigError
from headrace.graders.reward_model import COMPONENT, RewardModelGrader, RewardModelOptions
from headrace.graders.service import verdicts_of
from headrace.harness.chatml import ASSETS
from headrace.records.verdict import Scored, Unscored, UnscoredCause

TASK = make_task("chain_sum", question="What is 2 + 2?")
TEXTS = ["4", "four", "I do not know", "4 4 4 4 4 4 4 4 4 4 4 4", ""]


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("reward") / "model"
    torch.manual_seed(3)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=1024, num_labels=1, pad_token_id=0, initializer_range=0.3, **shape)
    LlamaForSequenceClassification(config).save_pretrained(path)
    shutil.copy(ASSETS / "tokenizer.json", path / "tokenizer.json")
    return path


def grader(folder, **options) -> RewardModelGrader:
    return RewardModelGrader(RewardModelOptions(path=str(folder), **options))


def score(verdict) -> float:
    assert isinstance(verdict.outcome, Scored), verdict
    return dict(verdict.outcome.components)[COMPONENT]


def test_scores_lie_in_the_unit_interval_and_depend_on_the_answer(folder):
    verdicts = grader(folder).grade_all([submit(text, TASK) for text in TEXTS])
    scores = [score(verdict) for verdict in verdicts]
    for verdict in verdicts:
        verdict.check()
    assert all(0.0 < value < 1.0 for value in scores)
    assert len(set(scores)) == len(TEXTS)


@pytest.mark.parametrize("batch_tokens", [1, 40, 4096])
def test_a_score_does_not_depend_on_the_submissions_beside_it(folder, batch_tokens):
    model = grader(folder, batch_tokens=batch_tokens)
    together = model.grade_all([submit(text, TASK) for text in TEXTS])
    for text, verdict in zip(TEXTS, together, strict=True):
        assert score(model.grade(submit(text, TASK))) == pytest.approx(score(verdict), abs=1e-6)
    assert [verdict.transcript for verdict in together] == [submit(text, TASK).transcript for text in TEXTS]


def test_the_score_is_that_of_the_plain_model(folder):
    model, one = grader(folder), submit("4", TASK)
    ids = model._encode(one)
    plain = LlamaForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        logit = plain(input_ids=torch.tensor([ids])).logits[0, 0]
    assert score(model.grade(one)) == pytest.approx(float(torch.sigmoid(logit)), abs=1e-6)


def test_other_weights_are_another_grader(folder, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    assert grader(other).version == grader(folder).version
    model = LlamaForSequenceClassification.from_pretrained(other)
    with torch.no_grad():
        model.score.weight.add_(0.1)
    model.save_pretrained(other)
    assert grader(other).version != grader(folder).version
    assert grader(folder).size_bytes == sum(p.numel() * 4 for p in model.parameters())


def test_a_text_that_is_too_long_has_no_score(folder):
    verdicts = grader(folder, max_tokens=12).grade_all([submit("4", TASK), submit("4 " * 400, TASK)])
    assert isinstance(verdicts[1].outcome, Unscored)
    assert verdicts[1].outcome.cause is UnscoredCause.DECLINED


def test_a_batch_that_fails_is_graded_one_by_one(folder):
    model = grader(folder)

    class Failing:
        version, scope, calls = model.version, "episode", 0

        def grade_all(self, submissions):
            raise RuntimeError("no memory")

        def grade(self, submission):
            return model.grade(submission)

    found = list(verdicts_of(Failing(), [submit(text, TASK) for text in TEXTS]))
    assert [score(verdict) for _, verdict in found] == pytest.approx(
        [score(model.grade(submit(text, TASK))) for text in TEXTS]
    )


def test_a_folder_without_a_reward_model_is_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match="no reward model"):
        grader(tmp_path / "nothing")
    two = tmp_path / "two"
    shutil.copytree(folder, two)
    config = msgspec.json.decode((two / "config.json").read_bytes())
    config["id2label"], config["label2id"] = {"0": "a", "1": "b"}, {"a": 0, "b": 1}
    (two / "config.json").write_bytes(msgspec.json.encode(config))
    with pytest.raises(ConfigError):
        grader(two)
