"""Which weights may be gone is told from the events of a run, under the rule of each of its processes."""

from typing import Any

import pytest

from headrace.config import CheckpointSection, Config
from headrace.control.recorder import sealed_row
from headrace.records.checkpoint import CheckpointWritten, Manifest
from headrace.records.evaluation import EvaluationCompleted, EvaluationStarted
from headrace.records.events import Event
from headrace.records.ids import Address, LeaseToken, PolicyId, PolicyRef
from headrace.records.run import RunStarted
from headrace.records.update import WeightsCommitted
from headrace.store.kept import KeptWeights, ranges

ROWS = {
    row.address: row.data
    for row in (sealed_row("config", Config(checkpoint=CheckpointSection(keep_last=n))) for n in (1, 2))
}
ONE, TWO = ROWS


def ref(version: int) -> PolicyRef:
    return PolicyRef(PolicyId("policy"), version)


def started(config: Address) -> RunStarted:
    return RunStarted("run", 7, config, "test", "", {})


def committed(*versions: int) -> list[WeightsCommitted]:
    return [WeightsCommitted(ref(version), Address(f"w{version}"), None) for version in versions]


def written(version: int) -> CheckpointWritten:
    manifest = Manifest(PolicyId("policy"), version, Address(f"w{version}"), {}, 1, "constant", Address("a"))
    return CheckpointWritten(version, manifest, 0, 0, 0, 0, (), 0, LeaseToken(0), "resume", 0.0, 0.0)


def let_go(*payloads: Any) -> set[int]:
    kept = KeptWeights(ROWS.__getitem__)
    for seq, payload in enumerate(payloads, start=1):
        kept.observe(Event(seq, 1, "life", 0, "policy@1/1.0", 0, payload))
    return kept.let_go()


FIVE = committed(*range(6))


@pytest.mark.parametrize(("config", "gone"), [(ONE, {1, 2, 3}), (TWO, {1})])
def test_a_version_before_the_checkpoints_that_stay_may_be_gone(config: Address, gone: set[int]) -> None:
    assert let_go(started(config), *FIVE, written(2), written(4)) == gone


def test_without_a_checkpoint_every_version_has_to_be_there() -> None:
    assert let_go(started(ONE), *FIVE) == set()


def test_a_version_on_which_a_round_is_pinned_has_to_be_there_until_the_round_is_complete() -> None:
    events = started(ONE), *FIVE, EvaluationStarted(ref(1), 1.0, 1), written(4)
    assert let_go(*events) == {2, 3}
    assert let_go(*events, EvaluationCompleted(ref(1), 1.0, 1, 1, 0, (), 1.0)) == {1, 2, 3}


def test_what_one_process_let_go_may_stay_gone_when_the_next_one_keeps_more() -> None:
    events = started(ONE), *FIVE, written(2), written(4), started(TWO), *committed(6)
    assert let_go(*events) == {1, 2, 3}
    assert let_go(*events, written(6)) == {1, 2, 3}


def test_under_a_rule_that_cannot_be_read_only_the_newest_has_to_be_there() -> None:
    assert let_go(started(Address("lost")), *FIVE) == {0, 1, 2, 3, 4}


def test_versions_are_named_by_ranges() -> None:
    assert [ranges(item) for item in ((), (3,), (5, 0, 4, 3), (1, 2))] == ["none", "3", "0, 3 to 5", "1 to 2"]
