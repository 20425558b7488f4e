"""A learned reward model as a grader: its own weights, version and batching, in its own process like any other grader.

Invariant: the version is a hash of the weights, the tokenizer and the options, so other weights are another grader. A score
is the sigmoid of one logit and so lies in (0, 1). What a submission gets does not depend on the submissions beside it,
beyond rounding: rows are padded on the right and masked. A text that cannot be scored has no score; it is never 0.

Dimensions: B submissions, T tokens of the longest.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification

from headrace.config import Section
from headrace.errors import ConfigError
from headrace.records.ids import Address
from headrace.records.provenance import canonical_bytes, content_version
from headrace.records.verdict import Scored, Submission, Unscored, UnscoredCause, Verdict

COMPONENT = "preference"
"""Name of its one score."""


class RewardModelOptions(Section, frozen=True):
    """Options of the `reward_model` grader.

    Attributes:
        path: a Hugging Face folder with `config.json`, `model.safetensors` and `tokenizer.json`; one label.
        batch_tokens: slots of one forward pass, padding included; bounds memory and changes no score.
        max_tokens: a longer text is not scored.
    """

    path: str
    batch_tokens: int = 4096
    max_tokens: int = 1024

    def __post_init__(self) -> None:
        if self.batch_tokens < 1 or self.max_tokens < 1:
            raise ValueError(
                f"grader.batch_tokens is {self.batch_tokens}, max_tokens {self.max_tokens}; both must be at least 1"
            )


class RewardModelGrader:
    """Scores question and answer with a sequence classifier of one label.

    Attributes:
        version: content version of weights, tokenizer and options.
        size_bytes: bytes of its weights, for the list of all copies.
    """

    scope: Literal["episode"] = "episode"

    def __init__(self, options: RewardModelOptions) -> None:
        """Loads the model. Raises ConfigError when the folder holds none with one label."""
        folder = Path(options.path)
        try:
            model: Any = AutoModelForSequenceClassification.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True, use_safetensors=True
            )
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            parts = [(folder / name).read_bytes() for name in ("config.json", "model.safetensors", "tokenizer.json")]
        except Exception as error:  # boundary: the tokenizer's library raises plain Exception for a bad file
            raise ConfigError(f"{folder}: no reward model could be loaded: {error}") from error
        if model.config.num_labels != 1:
            raise ConfigError(f"{folder}: the model has {model.config.num_labels} labels; a reward model has 1")
        self._model = model.eval()
        if model.config.pad_token_id is None:
            model.config.pad_token_id = 0
        self._pad = int(model.config.pad_token_id)
        self._options = options
        self.version: Address = content_version(canonical_bytes((options.batch_tokens, options.max_tokens)), *parts)
        self.size_bytes = sum(p.numel() * p.element_size() for p in model.parameters())

    def grade(self, submission: Submission) -> Verdict:
        """The verdict on one submission."""
        return self.grade_all([submission])[0]

    def grade_all(self, submissions: Sequence[Submission]) -> list[Verdict]:
        """Verdicts in the order of the submissions, scored in batches of like length."""
        ids = [self._encode(submission) for submission in submissions]
        verdicts: dict[int, Verdict] = {}
        fitting: list[int] = []
        for index, row in enumerate(ids):
            if 0 < len(row) <= self._options.max_tokens:
                fitting.append(index)
                continue
            outcome = Unscored(
                UnscoredCause.DECLINED, f"{len(row)} tokens; 1 to {self._options.max_tokens} can be scored"
            )
            verdicts[index] = Verdict(submissions[index].transcript, self.version, outcome)
        for batch in self._batches(fitting, ids):
            for index, logit in zip(batch, self._logits([ids[index] for index in batch]), strict=True):
                verdicts[index] = self._verdict(submissions[index], logit)
        return [verdicts[index] for index in range(len(submissions))]

    def _encode(self, submission: Submission) -> list[int]:
        text = f"{submission.task.question}\n\n{submission.final_text}"
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _batches(self, fitting: list[int], ids: list[list[int]]) -> Iterator[list[int]]:
        """Indices of at most `batch_tokens` slots each; a longer row goes alone."""
        pending: list[int] = []
        for index in sorted(fitting, key=lambda index: (len(ids[index]), index)):
            if pending and (len(pending) + 1) * len(ids[index]) > self._options.batch_tokens:
                yield pending
                pending = []
            pending.append(index)
        if pending:
            yield pending

    def _logits(self, rows: list[list[int]]) -> list[float]:
        width = max(map(len, rows))
        # The model takes its score at the last token that is not padding, so a real pad id inside a row would move it; the
        # score is read here, at the last token of each row.
        ids_BT = torch.tensor([row + [self._pad] * (width - len(row)) for row in rows])
        mask_BT = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        last_B = torch.tensor([len(row) - 1 for row in rows])
        with torch.inference_mode():
            hidden_BTH = self._model.base_model(input_ids=ids_BT, attention_mask=mask_BT).last_hidden_state
            return self._model.score(hidden_BTH[torch.arange(len(rows)), last_B])[:, 0].tolist()

    def _verdict(self, submission: Submission, logit: float) -> Verdict:
        score = float(torch.sigmoid(torch.tensor(logit, dtype=torch.float64)))
        if math.isnan(score):
            outcome = Unscored(UnscoredCause.GRADER_INVALID, "the reward model gave NaN")
            return Verdict(submission.transcript, self.version, outcome)
        evidence = json.dumps({"logit": logit, "model": self.version[:16]})
        return Verdict(submission.transcript, self.version, Scored(((COMPONENT, score),), evidence))
