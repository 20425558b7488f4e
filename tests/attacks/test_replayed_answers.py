"""Workers that answer with something else than was asked: old receipts, stale leases, another request's turn."""

import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import pytest
from control.simulated_runs import config, faultless, payloads, run

from headrace.control.acting import ActionRunner
from headrace.control.context import Ports
from headrace.ports import Handle, TurnTiming
from headrace.records.action import Action, ActionCommitted, EffectClass
from headrace.records.batch import BatchPlanned
from headrace.records.execution import IncarnationLost, Lease, Receipt, StoredReceipt
from headrace.records.ids import ActionId, Address, LeaseToken
from headrace.records.provenance import address_of
from headrace.records.run import AnswerRefused
from headrace.records.segment import GenerateRequest, TokenSegment
from headrace.records.terminal import InfraError
from headrace.records.trajectory import Transcript, TranscriptSealed
from headrace.reporting.report import report_run
from headrace.runtime.simulated import SimulatedDisk, Simulation, SimulationResult, simulate
from headrace.simulation.faults import FaultInjector, FaultPlan
from headrace.simulation.faulty import FaultyEnvironment, FaultyInference
from headrace.store.memory import MemoryJournal

Lie = Callable[[Receipt, Sequence[Receipt]], Receipt]
"""What is answered in place of the true receipt, which comes with all those before it."""

LIES: dict[str, Lie] = {
    "an old receipt": lambda true, past: past[-1],
    "the oldest receipt, of another episode": lambda true, past: past[0],
    "a stale lease": lambda true, past: msgspec.structs.replace(true, token=LeaseToken(true.token - 1)),
    "a lease that nobody holds yet": lambda true, past: msgspec.structs.replace(true, token=LeaseToken(10**6)),
    "other arguments": lambda true, past: msgspec.structs.replace(true, arguments=address_of(b"other")),
}
EVERY = 3
UPDATES = 2


class LyingEnvironment(FaultyEnvironment):
    """Runs every action, and of every third answers a lie; with `always` also to probes."""

    def __init__(self, inner: Any, lie: Lie, *, always: bool = False) -> None:
        super().__init__(inner, FaultInjector(FaultPlan()))
        self._lie = lie
        self._always = always
        self._past: list[Receipt] = []
        self._doomed: set[ActionId] = set()
        self.lies = 0

    async def execute(self, handle: Handle, action: Action, lease: Lease, timeout_s: float) -> Receipt:
        true = await super().execute(handle, action, lease, timeout_s)
        self._past.append(true)
        if action.id in self._doomed or len(self._past) % EVERY == 0:
            self._doomed |= {action.id} if self._always else set()
            return self._lied(true)
        return true

    async def probe(self, handle: Handle, action_id: ActionId, timeout_s: float) -> Receipt | IncarnationLost | None:
        true = await super().probe(handle, action_id, timeout_s)
        return self._lied(true) if self._always and isinstance(true, Receipt) else true

    def _lied(self, true: Receipt) -> Receipt:
        self.lies += 1
        return self._lie(true, self._past[:-1])


class LyingInference(FaultyInference):
    """Generates every turn, and in place of every fifth answers once with the turn before it."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner, FaultInjector(FaultPlan()))
        self._past: list[list[TokenSegment | TurnTiming]] = []
        self._lied: set[str] = set()

    @property
    def lies(self) -> int:
        return len(self._lied)

    async def generate(self, request: GenerateRequest, timeout_s: float) -> AsyncIterator[TokenSegment | TurnTiming]:
        self._past.append([item async for item in super().generate(request, timeout_s)])
        is_lie = len(self._past) % 5 == 0 and request.request_id not in self._lied
        self._lied |= {request.request_id} if is_lie else set()
        for item in self._past[-2 if is_lie else -1]:
            yield item


def played(adapt: Callable[[Ports], Ports], effect: EffectClass) -> tuple[SimulationResult, SimulatedDisk]:

    disk = SimulatedDisk()
    simulation = Simulation(
        config({"mode": "sync", "credit_batches": 0}, updates=UPDATES), faultless(), adapt=adapt, effect=effect
    )
    return simulate(simulation, disk=disk), disk


def lied_to(lie: Lie, effect: EffectClass, *, always: bool = False) -> tuple[SimulationResult, SimulatedDisk, int]:
    made: list[LyingEnvironment] = []

    def adapt(ports: Ports) -> Ports:
        made.append(LyingEnvironment(ports.environment, lie, always=always))
        return dataclasses.replace(ports, environment=made[0])

    result, disk = played(adapt, effect)
    return result, disk, made[0].lies


def transcripts(result: SimulationResult) -> list[Address]:
    return sorted(item.transcript for item in payloads(result, TranscriptSealed))


def stray_commits(result: SimulationResult, disk: SimulatedDisk) -> list[str]:
    """Commits whose receipt is of another action."""
    journal = MemoryJournal(disk.storage)
    return [
        str(item.action_id)
        for item in payloads(result, ActionCommitted)
        if msgspec.msgpack.decode(journal.read(item.receipt), type=StoredReceipt)[0] != item.action_id
    ]


@pytest.mark.parametrize("effect", [EffectClass.PURE, EffectClass.EXTERNAL], ids=lambda effect: effect.value)
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_replayed_receipt_is_refused_counted_and_asked_for_again(lie: Lie, effect: EffectClass) -> None:
    result, disk, lies = lied_to(lie, effect)
    truthful, _ = played(lambda ports: ports, effect)
    refused = payloads(result, AnswerRefused)
    assert lies > 8
    assert [item.boundary for item in refused] == ["environment"] * lies
    assert stray_commits(result, disk) == []
    assert transcripts(result) == transcripts(truthful)
    assert set(disk.effects.values()) == {1}
    report = report_run(result.events, MemoryJournal(disk.storage).read)
    assert report.guards.answers == {"environment": lies}


def test_without_the_check_a_commit_names_a_receipt_of_another_action(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionRunner, "_checked", lambda self, receipt, action, lease: receipt)
    result, disk, _ = lied_to(LIES["an old receipt"], EffectClass.EXTERNAL)
    assert stray_commits(result, disk) != []


@pytest.mark.parametrize("effect", [EffectClass.PURE, EffectClass.EXTERNAL], ids=lambda effect: effect.value)
def test_an_executor_that_lies_to_probes_too_is_an_infrastructure_error(effect: EffectClass) -> None:
    result, disk, lies = lied_to(LIES["other arguments"], effect, always=True)
    journal = MemoryJournal(disk.storage)
    sealed = [
        msgspec.msgpack.decode(journal.read(address), type=Transcript) for address in dict.fromkeys(transcripts(result))
    ]
    broken = [item.terminal for item in sealed if isinstance(item.terminal, InfraError)]
    tries = 2 if effect is EffectClass.EXTERNAL else 6  # without an effect three times, each with a probe
    assert len(payloads(result, AnswerRefused)) == lies == tries * len(broken) > 0
    assert {item.boundary for item in broken} == {"environment"}
    assert {item.is_effect_unknown for item in broken} == {effect is EffectClass.EXTERNAL}
    assert stray_commits(result, disk) == []
    assert set(disk.effects.values()) == {1}


def test_a_turn_of_another_request_is_refused_and_the_turn_is_asked_for_again() -> None:
    made: list[LyingInference] = []

    def adapt(ports: Ports) -> Ports:
        made.append(LyingInference(ports.inference))
        return dataclasses.replace(ports, inference=made[0])

    result, disk = played(adapt, EffectClass.PURE)
    refused = payloads(result, AnswerRefused)
    assert [item.boundary for item in refused] == ["inference"] * made[0].lies
    assert made[0].lies > 8
    assert len(payloads(result, BatchPlanned)) == UPDATES
    truthful, _ = played(lambda ports: ports, EffectClass.PURE)
    assert transcripts(result) == transcripts(truthful)
    report = report_run(result.events, MemoryJournal(disk.storage).read)
    assert report.guards.answers == {"inference": made[0].lies}


def test_nobody_is_refused_in_an_honest_run() -> None:
    assert payloads(run({"mode": "sync", "credit_batches": 0}, updates=UPDATES), AnswerRefused) == []
