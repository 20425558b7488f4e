"""Commands on a real run of a user's own parts: what they write is read by others, what they refuse says why."""

import json
import shutil
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.records.provenance import address_of
from headrace.records.trajectory import TranscriptSealed
from headrace.records.update import WeightsCommitted
from headrace.store.blobs import FileBlobs
from headrace.store.reader import open_reader

pytestmark = pytest.mark.slow


def said(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    capsys.readouterr()
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


@pytest.fixture
def copied(shop: Path, shop_run: Path, tmp_path: Path) -> Path:
    """The run in another folder; its parts stay where they are."""
    return Path(shutil.copytree(shop_run, tmp_path / "runs" / "copied"))


def test_the_tutorials_run_trains_and_an_episode_of_it_comes_out_again_byte_for_byte(shop_run: Path, capsys) -> None:
    status, text = said(capsys, "replay", "train.0.0.0", "--run", shop_run)
    assert status == 0
    assert "the transcript came out byte for byte" in text
    assert text.rstrip().endswith("the same")
    status, text = said(capsys, "verify", "--run", shop_run)
    assert (status, "sound" in text) == (0, True)


def test_parquet_is_read_by_pyarrow_duckdb_and_polars_alike(shop_run: Path, tmp_path: Path, capsys) -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "trajectories.parquet"
    assert said(capsys, "export", "--run", shop_run, "--out", file)[0] == 0
    rows = parquet.read_table(file).to_pylist()
    with open_reader(shop_run) as reader:
        sealed = {
            event.payload.transcript: event.payload
            for event in reader.events_of_kind("transcript_sealed")
            if isinstance(event.payload, TranscriptSealed)
        }
    assert {row["transcript"] for row in rows} == set(sealed)
    for row in rows:
        counts = {
            len(row[name]) for name in ("response_ids", "response_mask", "response_logprobs", "response_versions")
        }
        assert len(counts) == 1
        assert sum(row["response_mask"]) == sealed[row["transcript"]].sampled_tokens
        assert len(row["prompt_ids"]) + len(row["response_ids"]) == sealed[row["transcript"]].total_tokens
        masked = [value for value, bit in zip(row["response_logprobs"], row["response_mask"], strict=True) if not bit]
        assert not any(masked)
    query = f"select count(*), sum(num_turns), count(reward_score) from '{file}'"
    with duckdb.connect() as connection:
        counted = connection.execute(query).fetchone()
    frame = polars.read_parquet(file)
    assert counted == (frame.height, frame["num_turns"].sum(), frame["reward_score"].count())
    assert counted == (
        len(rows),
        sum(row["num_turns"] for row in rows),
        len([r for r in rows if r["reward_score"] is not None]),
    )


def test_atif_documents_link_calls_to_what_came_of_them(shop_run: Path, tmp_path: Path, capsys) -> None:
    file = tmp_path / "trajectories.jsonl"
    assert said(capsys, "export", "--run", shop_run, "--format", "atif", "--purpose", "train", "--out", file)[0] == 0
    documents = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(documents) == 8
    for document in documents:
        assert document["schema_version"] == "ATIF-v1.4"
        assert [step["step_id"] for step in document["steps"]] == list(range(1, len(document["steps"]) + 1))
        for step in document["steps"][1:]:
            called = [call["tool_call_id"] for call in step.get("tool_calls", [])]
            shown = [result["source_call_id"] for result in step.get("observation", {}).get("results", [])]
            assert called == shown
            assert step["metrics"]["prompt_tokens"] == len(step["metrics"]["prompt_token_ids"])
            assert len(step["metrics"]["logprobs"]) == step["metrics"]["completion_tokens"]


def test_an_exported_model_is_the_runs_version_and_transformers_loads_it(
    shop_run: Path, tmp_path: Path, capsys
) -> None:
    transformers = pytest.importorskip("transformers")
    status, text = said(capsys, "export", "--model", f"{shop_run}@1", "--out", tmp_path / "model")
    assert status == 0, text
    with open_reader(shop_run) as reader:
        committed = [
            event.payload.weights
            for event in reader.events_of_kind("weights_committed")
            if isinstance(event.payload, WeightsCommitted)
        ]
    assert address_of((tmp_path / "model" / "model.safetensors").read_bytes()) == committed[1]
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    assert len(tokenizer) <= model.config.vocab_size
    status, text = said(capsys, "export", "--model", f"{shop_run}@9", "--out", tmp_path / "none")
    assert (status, "it has 0 to 1" in text) == (1, True)


def test_two_versions_are_compared_on_the_same_tasks(shop: Path, shop_run: Path, capsys) -> None:
    runs = ("--runs", shop / "runs")
    status, text = said(capsys, "eval", "first@1", shop / "shop.toml", "--against", "first@0", "--limit", "4", *runs)
    assert status == 0, text
    assert text.count("4 tasks, 4 scored attempts, 0 without a score") == 2
    assert text.count("(Wilson)") == 2
    assert "exact McNemar test" in text
    assert said(capsys, "eval", "first@1", "first", "--samples", "0", *runs)[0] == 1


def test_a_replay_under_another_environment_says_so_and_where_it_diverges(
    shop: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_reader(copied) as reader:
        keys = [event.key for event in reader.events_of_kind("action_observed")]
    source = (shop / "shop.py").read_text(encoding="utf-8")
    called = next((key.partition("/")[0] for key in keys), "train.0.0.0")
    try:
        (shop / "shop.py").write_text(source.replace('"tea": 3', '"tea": 30').replace("there is no", "nobody has"))
        status, text = said(capsys, "replay", called, "--run", copied)
        assert status == 1
        assert "not executed: a version differs" in text
        assert text.count("differs: now") == 2
        status, text = said(capsys, "replay", called, "--run", copied, "--anyway")
        assert status == 1
        assert "NOT the same" in text
    finally:
        (shop / "shop.py").write_text(source, encoding="utf-8")


def test_tokens_are_scored_again_as_far_as_their_weights_are_kept(copied: Path, capsys) -> None:
    status, text = said(capsys, "verify", "--run", copied, "--rescore", "3")
    assert status == 0, text
    assert "rescored 3 transcripts, " in " ".join(text.split())
    assert "; 0 of " in " ".join(text.split())
    with open_reader(copied) as reader:
        (first, *_) = [event.payload for event in reader.events_of_kind("weights_committed")]
    assert isinstance(first, WeightsCommitted)
    FileBlobs(copied / "blobs").path(first.weights).unlink()
    status, text = said(capsys, "verify", "--run", copied, "--rescore", "3")
    words = " ".join(text.split())
    assert (status, "; 0 of " in words, "their weights are gone" in words) == (1, False, True)
    assert "PROBLEM weights of versions 0" in words


def test_a_list_of_runs_names_state_updates_and_success(shop: Path, shop_run: Path, capsys) -> None:
    status, text = said(capsys, "ls", "--runs", shop / "runs")
    assert status == 0
    for word in ("first", "completed", "1/1", "KiB", "% T=1"):
        assert word in text
