"""Sampled tokens are scored again under the weights that they name, and under no others."""

from pathlib import Path

import msgspec
import pytest
from inference.engine_case import TOLERANCE, drain, make_core, publish, rescored, some_ids
from lawful_run import lawful_steps
from tiny_policy import PolicyFolder, prompt, request

from headrace.errors import ConfigError
from headrace.records.trajectory import Transcript
from headrace.runtime.rescoring import choose, rescore_run


def test_tokens_of_a_version_whose_weights_are_gone_are_held_to_no_others(tmp_path: Path) -> None:
    folder = PolicyFolder.create(tmp_path)
    core, ids = make_core(folder), some_ids(12)
    core.submit(request("e/0", prompt(*ids), max_tokens=24))
    result = drain(core, {9: lambda: publish(core, folder, 1)})["e/0"]
    whole, part, none = (rescored(folder, ids, result, gone) for gone in ((), (0,), (0, 1)))
    late = sum(len(segment) for segment in result.segments if segment.policy and segment.policy.version == 1)
    assert (whole.tokens, part.tokens, none.tokens) == (24, late, 0)
    assert 0 < late < 24
    for found in (whole, part):
        assert found.fresh_abs_max is not None
        assert found.fresh_abs_max < TOLERANCE
    assert none.fresh_abs_max is None


def test_a_sample_is_taken_where_weights_are_stored_and_says_how_much_is_not() -> None:
    rows = [row for step in lawful_steps() for row in step.rows if row.kind == "transcript"]
    transcripts = {row.address: msgspec.msgpack.decode(row.data, type=Transcript) for row in rows}
    by_version: dict[int, set[str]] = {}
    for address, transcript in transcripts.items():
        for version in transcript.versions:
            by_version.setdefault(version, set()).add(address)
    weights = {p.version: p.weights for t in transcripts.values() for p in t.provenance.policies}
    segments = [segment for transcript in transcripts.values() for segment in transcript.sampled()]
    gone = [segment for segment in segments if segment.policy and segment.policy.version != 1]
    chosen, told = choose(transcripts.items(), 3, {weights[1]})
    assert chosen == sorted(by_version[1])[:3]
    assert told.startswith(f"{len(gone)} of {len(segments)} stored segments cannot be checked")
    assert 0 < len(gone) < len(segments)


@pytest.mark.parametrize("count", [0, -1])
def test_a_sample_of_nothing_is_refused(tmp_path: Path, count: int) -> None:
    with pytest.raises(ConfigError, match="give at least 1 transcript"):
        rescore_run(tmp_path, count)
