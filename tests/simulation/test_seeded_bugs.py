"""Each checker catches the bug that it is there for, in a run of the real control plane with that bug built in.

What breaks the log itself in every other way is in `tests/checkers/`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from inference.engine_case import drain, generate, make_core, publish, rescored, rescoring_error, some_ids
from simulation.trials import World, at, cut
from tiny_policy import PolicyFolder, prompt, request

from headrace.checkers import (
    Manifests,
    Violation,
    bounds_of,
    check_coverage,
    check_effects,
    check_liveness,
    check_log,
    check_rescoring,
    check_resumed,
    state_hashes,
)
from headrace.control import member as member_module
from headrace.control.collecting import Collector, Group
from headrace.control.selecting import Batch
from headrace.control.source import SourceLoop
from headrace.control.updating import UpdateLoop
from headrace.inference.core import EngineCore, Output
from headrace.inference.rows import NO_VERSION
from headrace.planning.explorer.judging import manifests_of
from headrace.records.action import ActionIntended, EffectClass
from headrace.records.batch import BatchPlan, GroupRejected
from headrace.records.provenance import address_of
from headrace.records.reward import reward_of
from headrace.records.segment import TokenSegment
from headrace.records.update import WeightsCommitted
from headrace.runtime.lives import Endured, endure
from headrace.runtime.rescoring import difference
from headrace.runtime.simulated import SimulatedDisk
from headrace.simulation.faults import Fault, FaultKind, FaultPlan
from headrace.simulation.laws import Constant
from headrace.simulation.trainer import SimulatedTrainer
from headrace.store.group_commit import Entry
from headrace.store.memory import MemoryStorage

TOLERANCE = 1e-4
"""Between two float32 passes over the same tokens, in nats."""
LONG_TOOLS = {"tool_s": Constant(value=1.0), "turns": Constant(value=3.0)}


def laws(world: World, endured: Endured) -> set[str]:
    """The laws that a run broke."""
    found = check_log(endured.events, bounds_of(world.simulation().config), endured.disk.storage.read)
    return {violation.law for violation in found}


# --- C4: drop a sync


class LyingStorage(MemoryStorage):
    """Says that an INTENT is on disk although it has not been synced; it gets there with the next commit."""

    def __init__(self) -> None:
        super().__init__()
        self._unsynced: list[Entry] = []

    def commit(self, epoch: int, entries: Sequence[Entry]) -> None:
        waiting = [*self._unsynced, *entries]
        if any(isinstance(entry.event.payload, ActionIntended) for entry in entries):
            self._unsynced = waiting
            return
        self._unsynced = []
        super().commit(epoch, waiting)

    def cut_power(self) -> None:
        self._unsynced = []


@pytest.mark.parametrize(("storage", "broken"), [(MemoryStorage, set()), (LyingStorage, {"C4"})])
def test_a_dropped_sync_of_the_intent_makes_an_external_action_happen_twice(
    storage: type[MemoryStorage], broken: set[str]
) -> None:
    def between(number: int, disk: SimulatedDisk) -> SimulatedDisk:
        if isinstance(disk.storage, LyingStorage):
            disk.storage.cut_power()
        return disk

    found: set[str] = set()
    world = World(effect=EffectClass.EXTERNAL, workload=LONG_TOOLS)
    for plan in at("environment", "execute", "kill_after", 1, 2, 3):
        disk = SimulatedDisk(storage=storage())
        endured = endure(world.simulation(), FaultPlan(faults=plan), disk=disk, between=between)
        found |= {violation.law for violation in check_effects(endured.effects)}
    assert found == broken


# --- C7: coerce absent to 0


@pytest.mark.parametrize("is_broken", [False, True])
def test_an_absent_reward_that_becomes_0_is_noticed(monkeypatch: pytest.MonkeyPatch, is_broken: bool) -> None:
    def or_zero(*given: Any) -> float:
        return reward_of(*given) or 0.0

    if is_broken:
        monkeypatch.setattr(member_module, "reward_of", or_zero)
    world = World(sections={"schedule": {"grade_tries": 1, "group_size": 3}})
    faults = (Fault(worker="grader", method="grade", kind=FaultKind.REJECT, call=2, times=2),)
    found = laws(world, endure(world.simulation(), FaultPlan(faults=faults)))
    assert ("C7" in found) is is_broken


# --- C6: stamp the version at completion


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_version_stamped_at_completion_is_noticed_when_tokens_are_scored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    """The real engine: turns that a swap cuts, and a worker that names the version which it serves when they end."""
    step = EngineCore.step
    held: dict[str, list[TokenSegment]] = {}

    def stamping(self: EngineCore) -> list[Output]:
        found: list[Output] = []
        for output in step(self):
            if not isinstance(output.item, TokenSegment):
                found.append(output)
                continue
            pieces = held.setdefault(output.request_id, [])
            pieces.append(output.item)
            if output.item.finish is not None:
                found.append(Output(output.request_id, _as_one(held.pop(output.request_id))))
        return found

    if is_broken:
        monkeypatch.setattr(EngineCore, "step", stamping)
    folder = PolicyFolder.create(tmp_path)
    core, ids = make_core(folder), some_ids(12)
    core.submit(request("e/0", prompt(*ids), max_tokens=24))
    result = drain(core, {9: lambda: publish(core, folder, 1)})["e/0"]
    assert result.versions == ([1] if is_broken else [0, 1])
    error = rescoring_error(folder, ids, result)
    assert (error > 100 * TOLERANCE) if is_broken else (error < TOLERANCE), f"largest difference {error:.3g} nats"
    told = difference(address_of(b"a transcript"), rescored(folder, ids, result), TOLERANCE)
    assert ("another version sampled them" in (told or "")) is is_broken, "headrace verify --rescore notices"


def _as_one(pieces: list[TokenSegment]) -> TokenSegment:
    """The turn as one segment, with the version of its end."""
    last = pieces[-1]
    return msgspec.structs.replace(
        last,
        ids=type(last.ids)(b"".join(piece.ids for piece in pieces)),
        behavior_logprobs=type(last.ids)(b"".join(piece.behavior_logprobs or b"" for piece in pieces)),
    )


# --- C12: give credit back at hand-over


@pytest.mark.parametrize("is_broken", [False, True])
def test_credit_that_comes_back_at_hand_over_is_noticed(monkeypatch: pytest.MonkeyPatch, is_broken: bool) -> None:
    record_plan, consume = UpdateLoop._record_plan, Collector.consume

    def early(self: UpdateLoop, plan: BatchPlan, batch: Batch, cause: int) -> int:
        found = record_plan(self, plan, batch, cause)
        self._collector.consume(batch.groups)
        return found

    def once(self: Collector, groups: Sequence[Group]) -> None:
        consume(self, [group for group in groups if group.id.ordinal in self._open])

    if is_broken:
        monkeypatch.setattr(UpdateLoop, "_record_plan", early)
        monkeypatch.setattr(Collector, "consume", once)
    world = World(schedule="async", updates=3)
    found = laws(world, endure(world.simulation(), FaultPlan()))
    assert ("C12" in found) is is_broken


# --- C6 and F28: detach the salt of the prefix cache


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_prefix_cache_without_the_version_in_its_key_is_noticed_when_tokens_are_scored_again(
    tmp_path: Path, is_broken: bool
) -> None:
    """F28, with the real engine: after a swap no request hits blocks of the version before."""

    folder = PolicyFolder.create(tmp_path)
    core, ids = make_core(folder), some_ids(40)
    error = 0.0
    for version in range(3):
        if is_broken:  # without the version in the key, what an older one computed is found under the new one
            rows = core._lineup._rows
            rows.version_S[rows.version_S != NO_VERSION] = version
        publish(core, folder, version)
        for number in range(2):
            (result,) = generate(core, request(f"e{version}{number}/0", prompt(*ids), max_tokens=8))
            assert result.versions == [version]
            error = max(error, rescoring_error(folder, ids, result))
    assert core.stats().counters.reused_tokens > 0, "the cache was hit at all"
    assert (error > 100 * TOLERANCE) is is_broken, f"largest difference {error:.3g} nats"
    assert is_broken or error < TOLERANCE


def test_tokens_that_come_out_otherwise_when_scored_again_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_rescoring(endure(World().simulation(), FaultPlan()).events, 1e-4) == []
    score = SimulatedTrainer._row_score

    def differs(self: SimulatedTrainer, *given: Any) -> Any:
        return msgspec.structs.replace(score(self, *given), fresh_abs_max=2e-4)

    monkeypatch.setattr(SimulatedTrainer, "_row_score", differs)
    found = check_rescoring(endure(World().simulation(), FaultPlan()).events, 1e-4)
    assert [violation.law for violation in found] == ["C6", "C6"]


# --- C9: load a checkpoint unverified


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_trainer_that_loads_without_looking_at_the_bytes_is_noticed(
    monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    async def load(self: SimulatedTrainer, manifest: Any, timeout_s: float) -> None:
        self.version, self.weights = manifest.version, manifest.weights

    if is_broken:
        monkeypatch.setattr(SimulatedTrainer, "load", load)
    world, disk = World(updates=3, sections={"checkpoint": {"every_updates": 1, "keep_last": 3}}), SimulatedDisk()
    manifests, found = manifests_of(disk), list[Violation]()

    def between(number: int, disk: SimulatedDisk) -> SimulatedDisk:
        written = [event.payload for event in disk.storage.events(0) if event.kind == "checkpoint_written"]
        disk.shelf.damage(written[-1].manifest.weights)
        return disk

    (plan,) = cut("weights_activated", 3)
    observers = [lambda event: found.extend(manifests.observe(event))]
    endure(world.simulation(), FaultPlan(faults=plan), disk=disk, between=between, observers=observers)
    assert bool(found) is is_broken
    assert {violation.law for violation in found} <= {"C9"}


def test_a_checkpoint_that_is_recorded_before_its_files_are_there_is_noticed() -> None:
    world, disk = World(), SimulatedDisk()
    endured = endure(world.simulation(), FaultPlan(), disk=disk)
    lost = Manifests(lambda address: None)
    found = [violation for event in endured.events for violation in lost.observe(event)]
    assert {violation.law for violation in found} == {"C9"}
    assert "absent" in found[0].message
    assert [violation for event in endured.events for violation in manifests_of(disk).observe(event)] == []


# --- C11: begin the data again at a restart


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_restart_that_begins_the_data_again_is_noticed(monkeypatch: pytest.MonkeyPatch, is_broken: bool) -> None:
    def forget(self: SourceLoop, past: Any, *_: Any) -> tuple[()]:
        self.is_exhausted = past.is_exhausted
        return ()

    if is_broken:
        monkeypatch.setattr(SourceLoop, "restore", forget)
    world = World(updates=3)
    whole = endure(world.simulation(), FaultPlan())
    expected = state_hashes(whole.events, whole.disk.storage.read)
    endured = endure(world.simulation(), FaultPlan(faults=cut("weights_committed", 2)[0]))
    found = check_resumed(endured.events, endured.disk.storage.read, expected)
    assert [violation.law for violation in found] == (["C11"] if is_broken else [])
    assert check_resumed(whole.events[:-60], whole.disk.storage.read, expected)[0].message.endswith(
        "was never committed"
    )


# --- C13: a wake-up that gets lost, a task that is never finished


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_group_that_nobody_is_told_of_is_noticed(monkeypatch: pytest.MonkeyPatch, is_broken: bool) -> None:
    def silent(self: Collector, group: Any) -> None:
        group.ready_rank = 0

    if is_broken:
        monkeypatch.setattr(Collector, "_finish", silent)
    endured = endure(World().simulation(), FaultPlan())
    assert endured.ended.startswith("stuck: Deadlock") is is_broken
    found = check_liveness(endured.events, bound_s=100.0)
    assert {violation.law for violation in found} == ({"C13"} if is_broken else set())


def test_a_task_that_takes_longer_than_the_bound_or_never_ends_is_noticed() -> None:
    events = endure(World().simulation(), FaultPlan()).events
    assert check_liveness(events, bound_s=100.0) == []
    late = check_liveness(events, bound_s=1.0)
    assert late
    assert all(violation.law == "C13" and "1 s are allowed" in violation.message for violation in late)
    commit = next(
        index for index, event in enumerate(events) if isinstance(event.payload, WeightsCommitted | GroupRejected)
    )
    cut_off = check_liveness(events[: commit + 40], bound_s=100.0)
    assert [violation.law for violation in cut_off] == ["C13", "C13"]
    assert check_liveness([], bound_s=1.0)[0].message == "the log is empty; the run never began"


# --- C15: a point where nothing ever happened


def test_a_point_that_never_fired_is_noticed() -> None:
    assert check_coverage({"a", "b"}, {"a": 3, "b": 1}, what="point") == []
    found = check_coverage({"a", "b", "c"}, {"a": 3, "b": 0}, what="point")
    assert [violation.law for violation in found] == ["C15", "C15"]
    assert [violation.message for violation in found] == [
        "point 'b' never fired in the sweep",
        "point 'c' never fired in the sweep",
    ]
