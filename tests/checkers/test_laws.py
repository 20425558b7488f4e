"""A lawful run breaks no law; every way to break one is noticed by the law that it breaks, at the event that broke it."""

import pytest
from broken_runs import BROKEN, Break, admit, beyond_credit
from lawful_run import BOUNDS, Step, as_log, find, last, lawful_steps, repeated, replaced, row_of

from headrace.checkers import LawChecker, TaskConservation, check_log
from headrace.errors import IntegrityError
from headrace.records.action import ActionIntended
from headrace.records.batch import BatchPlanned, BatchSelected, GroupAdmitted, GroupRejected
from headrace.records.events import Event, OrdinalState
from headrace.records.observation import ActionObserved
from headrace.records.task import TaskDrawn
from headrace.records.update import WeightsActivated, WeightsCommitted, WeightsPrepared

CASES = [(law, name, break_it) for law, breaks in BROKEN.items() for name, break_it in breaks.items()]


def test_a_lawful_run_breaks_no_law() -> None:
    events, read = as_log(lawful_steps())
    assert check_log(events, BOUNDS, read) == []
    assert check_log(events, BOUNDS) == []
    assert check_log(events) == []


@pytest.mark.parametrize(("law", "break_it"), [case[::2] for case in CASES], ids=[case[1] for case in CASES])
def test_each_broken_law_is_noticed(law: str, break_it: Break) -> None:
    events, read = as_log(break_it(lawful_steps()))
    found = check_log(events, BOUNDS, read)
    assert law in {violation.law for violation in found}, found
    assert all(str(violation) and 1 <= violation.seq <= len(events) for violation in found)


def test_every_law_has_a_seeded_bug() -> None:
    assert set(BROKEN) == set(LawChecker.laws)
    assert all(BROKEN.values())


@pytest.mark.parametrize("kind", [ActionIntended, ActionObserved, WeightsCommitted, GroupRejected])
def test_a_violation_names_the_event_at_which_the_law_broke(kind: type) -> None:
    steps = lawful_steps()
    index = last(steps, kind)
    events, read = as_log(repeated(steps, index))
    assert min(violation.seq for violation in check_log(events, BOUNDS, read)) == index + 2


def test_a_gap_and_a_double_in_the_sequence_are_noticed() -> None:
    events, read = as_log(lawful_steps())
    assert check_log(events[:5] + events[6:], BOUNDS, read)[0].message.startswith("follows event 5")
    assert check_log([*events[:5], events[4], *events[5:]], BOUNDS, read)[0].message.startswith("follows event 5")


def test_an_older_epoch_that_still_appends_is_noticed() -> None:
    events, read = as_log(lawful_steps())
    mixed = [Event(e.seq, 1 if e.seq == 9 else 2, e.incarnation, e.t_ns, e.key, 0, e.payload) for e in events]
    assert [(item.law, item.seq) for item in check_log(mixed, BOUNDS, read)] == [("C3", 9)]


def test_an_effect_before_its_cause_is_noticed() -> None:
    events, _ = as_log(lawful_steps())
    first = events[0]
    late = Event(first.seq, 1, first.incarnation, 0, first.key, 1, first.payload)
    assert [item.law for item in check_log([late])] == ["C10"]


def test_tasks_are_conserved_after_every_event() -> None:
    events, _ = as_log(lawful_steps())
    law, drawn = TaskConservation(), 0
    for event in events:
        assert law.observe(event) == []
        drawn += isinstance(event.payload, TaskDrawn)
        assert sum(law.counts.values()) == law.drawn == drawn
    assert law.counts == {
        OrdinalState.OPEN: 0,
        OrdinalState.TRAINED: 4,
        OrdinalState.FILTERED: 1,
        OrdinalState.ABANDONED: 0,
    }


def test_slots_come_back_at_the_version_bump_and_not_before() -> None:
    events, read = as_log(lawful_steps())
    checker = LawChecker(BOUNDS, read)
    outstanding: dict[str, int] = {}
    for event in events:
        checker.observe(event)
        outstanding[f"{event.kind} {event.key}"] = checker.outstanding
    assert outstanding["update_completed 1"] == 4
    assert outstanding["weights_staged policy@1"] == 4
    assert outstanding["weights_committed policy@1"] == 2


@pytest.mark.parametrize(("outstanding", "laws"), [(2, {"C12"}), (3, set()), (4, set()), (5, set()), (6, {"C12"})])
def test_an_admission_during_the_bump_may_count_the_consumed_groups_or_not(outstanding: int, laws: set[str]) -> None:
    steps = lawful_steps()
    moving = [find(steps, TaskDrawn, "train.4"), find(steps, GroupAdmitted, "train.4")]
    others = [step for index, step in enumerate(steps) if index not in moving]
    bump = find(others, WeightsActivated, "policy@1/engine")
    events, read = as_log([*others[:bump], *admit(4, outstanding), *others[bump:]])
    assert {violation.law for violation in check_log(events, BOUNDS, read)} == laws


def test_every_sampled_token_is_trained_filtered_discarded_or_open() -> None:
    events, read = as_log(lawful_steps())
    checker = LawChecker(BOUNDS, read)
    for event in events:
        checker.observe(event)
        ledger = checker.ledger
        parts = (ledger.trained, ledger.filtered, ledger.abandoned, ledger.discarded, ledger.open)
        assert ledger.generated == sum(parts)
        assert min(parts) >= 0
    # Ten episodes of 6 tokens and a failed attempt of 3; one member of 6 was never scored, a group of 12 was filtered.
    ledger = checker.ledger
    assert (ledger.generated, ledger.trained, ledger.filtered, ledger.discarded) == (63, 42, 12, 6 + 3)
    assert ledger.other == 6


def test_a_crash_between_plan_and_commit_leaves_the_tasks_open() -> None:
    steps = lawful_steps()
    events, read = as_log(steps[: find(steps, WeightsCommitted, "policy@2")])
    checker = LawChecker(BOUNDS, read)
    assert [violation for event in events for violation in checker.observe(event)] == []
    assert checker.tasks[OrdinalState.OPEN] == 2
    assert checker.outstanding == 2


def test_without_bounds_only_the_laws_without_bounds_hold() -> None:
    steps = beyond_credit(lawful_steps())
    events, read = as_log(steps[: find(steps, BatchSelected, "1")])
    assert check_log(events, read=read) == []
    assert {violation.law for violation in check_log(events, BOUNDS, read)} == {"C12"}


def test_a_row_that_is_no_plan_is_an_integrity_error() -> None:
    steps = lawful_steps()
    index, wrong = find(steps, BatchPlanned), row_of("plan", ("no", "plan"))
    payload = steps[index].with_payload(plan=wrong.address).payload
    events, read = as_log(replaced(steps, index, Step(payload, "1", (wrong,))))
    with pytest.raises(IntegrityError, match="is no BatchPlan"):
        check_log(events, BOUNDS, read)


def test_a_prepared_version_needs_no_commit() -> None:
    steps = lawful_steps()
    events, read = as_log(steps[: find(steps, WeightsPrepared, "policy@2/engine") + 1])
    assert check_log(events, BOUNDS, read) == []
