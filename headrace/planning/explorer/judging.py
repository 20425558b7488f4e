"""Runs a case and judges its log: what it broke, where its faults struck, which ways its recoveries took."""

import functools
import hashlib
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.checkers import (
    Manifests,
    Violation,
    bounds_of,
    check_effects,
    check_liveness,
    check_log,
    check_resumed,
    state_hashes,
)
from headrace.control.recovery import recover
from headrace.errors import HeadraceError, IntegrityError
from headrace.planning.explorer.branches import branches_of
from headrace.planning.explorer.cases import WORLDS, Case, point_name
from headrace.records.action import EffectClass
from headrace.records.events import Event
from headrace.records.ids import Address
from headrace.records.provenance import canonical_bytes
from headrace.records.run import RunStarted
from headrace.runtime.lives import FINISHED, Endured, endure
from headrace.runtime.simulated import SimulatedDisk
from headrace.simulation.faults import ENDINGS, FaultKind, FaultPlan

LIVENESS_S = 2_000.0
"""Virtual seconds within which every task ends once the last process began; an undisturbed run ends within 100."""


class Found(msgspec.Struct, frozen=True):
    """What came of a case.

    Attributes:
        case: which.
        violations: laws that do not hold; empty when all do.
        lives: how each process ended.
        points: kill points that fired, by class.
        branches: ways of recovery that were taken.
        kinds: kinds of faults that fired.
        head: hash over the whole log.
        events: length of the log.
        cpu_s: CPU seconds that it took.
    """

    case: Case
    violations: tuple[Violation, ...]
    lives: tuple[str, ...]
    points: dict[str, int]
    branches: dict[str, int]
    kinds: dict[str, int]
    head: str
    events: int
    cpu_s: float


def run_case(case: Case) -> Found:
    """The case, run and judged."""
    begin_s = time.process_time()
    disk, broken = SimulatedDisk(), list[Violation]()
    manifests = manifests_of(disk)
    endured = endure(
        case.simulation(),
        FaultPlan(faults=case.faults),
        disk=disk,
        observers=[lambda event: broken.extend(manifests.observe(event))],
    )
    events = endured.events
    fired = [firing.fault for firing in endured.injector.fired]
    return Found(
        case=case,
        violations=(*broken, *judge(case, endured, events)),
        lives=tuple(life.ended for life in endured.lives),
        points=Counter(point_name(fault) for fault in fired if fault.kind in ENDINGS),
        branches=dict(branches_of(events)),
        kinds=Counter(fault.kind.value for fault in fired),
        head=log_hash(events),
        events=len(events),
        cpu_s=time.process_time() - begin_s,
    )


def judge(case: Case, endured: Endured, events: list[Event]) -> list[Violation]:
    """Every law of the log, and what the world outside says."""
    found = laws_of(case.simulation().config, endured.disk, events)
    if endured.ended.startswith("stuck"):
        found.append(Violation("C13", len(events), f"process {len(endured.lives)} {endured.ended}"))
    last_start_ns = max((event.t_ns for event in events if isinstance(event.payload, RunStarted)), default=0)
    found += check_liveness(events, bound_s=LIVENESS_S, quiet_from_ns=last_start_ns)
    past = recover(events)
    if past.ended is None or past.ended.reason not in FINISHED:
        found.append(Violation("C13", len(events), f"the run never came to its end: {endured.ended}"))
    if WORLDS[case.world].effect is EffectClass.EXTERNAL:
        found += check_effects(endured.effects)
    if _is_comparable(case):
        found += check_resumed(events, endured.disk.storage.read, _undisturbed(case))
    return found


def laws_of(config: Any, disk: SimulatedDisk, events: list[Event]) -> list[Violation]:
    """The laws that need nothing but the log and its rows."""
    try:
        found = check_log(events, bounds_of(config), disk.storage.read)
    except (KeyError, IntegrityError) as error:
        return [Violation("C10", len(events), f"a row that the log names cannot be read: {error}")]
    return found


def manifests_of(disk: SimulatedDisk) -> Manifests:
    """C9 over the simulated store."""

    def look(address: Address) -> bool | None:
        try:
            disk.shelf.read(address)
        except KeyError:
            return None
        except HeadraceError:
            return False
        return True

    return Manifests(look)


def log_hash(events: list[Event]) -> str:
    """Hash over the whole log: two runs that did the same have the same."""
    digest = hashlib.sha256()
    for event in events:
        digest.update(canonical_bytes(event))
    return digest.hexdigest()


def _is_comparable(case: Case) -> bool:
    """Whether the run has to end as if nothing had happened: only its process died, and nothing started again."""
    world = WORLDS[case.world]
    only_kills = all(fault.kind in (FaultKind.KILL, FaultKind.KILL_AFTER) for fault in case.faults)
    return world.is_faultless and world.in_flight == "resume" and only_kills


def _undisturbed(case: Case) -> Mapping[int, str]:
    return _states(msgspec.structs.replace(case, faults=(), shuffle=None).to_json())


@functools.lru_cache(256)
def _states(case_json: str) -> Mapping[int, str]:
    case = msgspec.json.decode(case_json, type=Case)
    endured = endure(case.simulation(), FaultPlan())
    return state_hashes(endured.events, endured.disk.storage.read)
