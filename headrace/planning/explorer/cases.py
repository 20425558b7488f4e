"""What a seed stands for: a small run, an interleaving, and the faults that it meets.

Invariant: a case is a pure function of the seed and the kinds of faults allowed. Consecutive seeds walk through the worlds,
and within a world through its kill points, so that a sweep enumerates them instead of hoping for them.
"""

import functools
from typing import Any

import msgspec
import numpy as np

from headrace.config import Config, Section, decode_config
from headrace.errors import ConfigError
from headrace.records.action import EffectClass
from headrace.records.streams import stream
from headrace.runtime.lives import endure
from headrace.runtime.mortal import JOURNAL, kill_points
from headrace.runtime.simulated import Simulation
from headrace.simulation.faults import Fault, FaultKind, FaultPlan
from headrace.simulation.scenario import Scenario, load_scenario

_FAILURES = ("malformed", "tool_error", "open_failure", "tool_failure", "grade_failure", "grade_invalid")


class World(Section, frozen=True):
    """A kind of run.

    Attributes:
        schedule: its mode and staleness.
        effect: what its actions do to the world.
        in_flight: what becomes of attempts that a crash interrupts.
        is_faultless: whether nothing fails by itself, so that a resumed run has to end with the very same state.
        placement: whether engine and trainer share a device.
    """

    schedule: dict[str, Any]
    effect: EffectClass = EffectClass.PURE
    in_flight: str = "resume"
    is_faultless: bool = False
    placement: str = "separate"


WORLDS: dict[str, World] = {
    "sync": World(schedule={"mode": "sync"}, is_faultless=True),
    "async": World(schedule={"mode": "separate_async", "credit_batches": 1, "order": "ordinal"}),
    "external": World(schedule={"mode": "sync"}, effect=EffectClass.EXTERNAL),
    "drop": World(
        schedule={"mode": "separate_async", "credit_batches": 2, "staleness": "drop", "max_lag": 0, "order": "ordinal"},
        effect=EffectClass.RESETTABLE,
    ),
    "shared": World(
        schedule={"mode": "colocate_async", "credit_batches": 1, "order": "ordinal"},
        effect=EffectClass.SNAPSHOT,
        placement="shared",
    ),
    "wait": World(
        schedule={"mode": "separate_async", "credit_batches": 1, "staleness": "wait", "max_lag": 1, "order": "ordinal"},
        in_flight="reissue",
    ),
}
"""Worlds by name; seed s is of world s modulo their number."""

RANDOM_FAULTS: dict[str, frozenset[str]] = {
    "reject": frozenset({"inference", "environment", "grader", "trainer"}),
    "lose": frozenset({"inference", "environment", "grader", "trainer"}),
    "delay": frozenset({"inference", "environment", "grader", "trainer"}),
    "duplicate": frozenset({"inference", "environment", "grader"}),
    "crash": frozenset({"inference", "environment", "grader", "trainer"}),
    "disk": frozenset({JOURNAL}),
}
"""Kinds of random faults, and the ports that they can hit; `disk` is a commit that fails, before or after it wrote."""


class Case(Section, frozen=True):
    """One run with its faults. As JSON it is what replays a failure.

    Attributes:
        seed: root of every draw of the run.
        world: which of `WORLDS`.
        faults: what happens to it.
        shuffle: seed of the interleaving; None keeps asyncio's order.
        updates: policy updates.
        batch_groups: groups of an update.
        group_size: members of a group.
    """

    seed: int
    world: str
    faults: tuple[Fault, ...] = ()
    shuffle: int | None = None
    updates: int = 2
    batch_groups: int = 2
    group_size: int = 2

    def simulation(self) -> Simulation:
        """The run without its faults."""
        world = WORLDS[self.world]
        return Simulation(
            self._config(world),
            _scenario(world.is_faultless, world.placement),
            shuffle_seed=self.shuffle,
            num_held_out=1,
            effect=world.effect,
            # The last world ends with its data, one group short of a full batch.
            num_train=self.updates * self.batch_groups - 1 if self.world == "wait" else None,
        )

    def _config(self, world: World) -> Config:
        is_ordered = world.schedule.get("order") == "ordinal" or world.schedule["mode"] == "sync"
        return decode_config(
            {
                "run": {"seed": self.seed, "updates": self.updates, "deterministic": is_ordered},
                "schedule": {**world.schedule, "batch_groups": self.batch_groups, "group_size": self.group_size},
                "evaluation": {"every_updates": 2, "temperatures": [1.0]},
                "checkpoint": {"every_updates": 1, "in_flight": world.in_flight, "keep_last": 1},
                "timeouts": {"generate_s": 60.0, "tool_s": 10.0, "grade_s": 10.0},
            },
            f"world {self.world}",
        )

    def to_json(self) -> str:
        """The case on one line, without what is as by default."""
        return msgspec.json.encode(_without_defaults(self)).decode()


def fault_names() -> tuple[str, ...]:
    """What `--faults` may name besides `all`."""
    return ("kill", "pair", "stop", "shuffle", *RANDOM_FAULTS)


def parse_case(text: str) -> Case:
    """The case of a line of JSON.

    Raises:
        ConfigError: when it is none.
    """
    try:
        case = msgspec.json.decode(text, type=Case)
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigError(f"--case: {error}") from error
    if case.world not in WORLDS:
        raise ConfigError(f"--case: no world is called {case.world!r}; there are {', '.join(WORLDS)}")
    return case


def case_of(seed: int, kinds: frozenset[str]) -> Case:
    """What the seed stands for.

    Args:
        seed: >= 0.
        kinds: of `fault_names`.
    """
    names = tuple(WORLDS)
    world = names[seed % len(names)]
    draws = stream(seed, "explorer", "case")
    faults: list[Fault] = []
    if "kill" in kinds:
        faults.append(_kill(world, seed // len(names)))
    if "pair" in kinds and draws.random() < 0.5:
        faults.append(_kill(world, int(draws.integers(1 << 30))))
    if "stop" in kinds and draws.random() < 0.125:
        faults.append(_at_commit(draws, world, FaultKind.STOP))
    random_kinds = sorted(kinds & RANDOM_FAULTS.keys())
    if random_kinds:
        faults += [_random_fault(draws, world, random_kinds) for _ in range(int(draws.integers(0, 3)))]
    shuffle = int(draws.integers(1 << 30)) if "shuffle" in kinds and draws.random() < 0.75 else None
    return Case(seed=seed, world=world, faults=tuple(faults), shuffle=shuffle)


def _kill(world: str, number: int) -> Fault:
    """Kill point `number` of the world: first one of each kind of call and event, then the second ones, and so on."""
    classes = point_classes(world)
    first = list(WORLDS).index(world) * len(classes) // len(WORLDS)  # each world begins elsewhere
    points = classes[(first + number) % len(classes)]
    return points[number // len(classes) % len(points)]


def _random_fault(draws: np.random.Generator, world: str, kinds: list[str]) -> Fault:
    name = kinds[int(draws.integers(len(kinds)))]
    calls = [(key, count) for key, count in _calls(world) if key[0] in RANDOM_FAULTS[name]]
    if name == "disk":
        return _at_commit(draws, world, FaultKind.LOSE if draws.random() < 0.5 else FaultKind.REJECT)
    (worker, method), count = calls[int(draws.integers(len(calls)))]
    delay_s = float(np.round(10.0 ** draws.uniform(-2.0, 2.0), 3))
    return Fault(
        worker=worker,
        method=method,
        kind=FaultKind(name),
        call=1 + int(draws.integers(count)),
        times=1 + int(draws.integers(3)) // 2 if name != "crash" else 1,
        delay_s=delay_s if name in ("delay", "crash") else 0.0,
    )


def _at_commit(draws: np.random.Generator, world: str, kind: FaultKind) -> Fault:
    count = dict(_calls(world))[JOURNAL, "commit"]
    return Fault(worker=JOURNAL, method="commit", kind=kind, call=1 + int(draws.integers(count)))


@functools.cache
def _calls(world: str) -> tuple[tuple[tuple[str, str], int], ...]:
    """Every call that an undisturbed run of the world makes, with how often; closing has nothing to lose."""
    counted = endure(Case(seed=0, world=world).simulation(), FaultPlan()).injector.calls
    return tuple(sorted((key, count) for key, count in counted.items() if key[1] not in ("close", "next")))


@functools.cache
def point_classes(world: str) -> tuple[tuple[Fault, ...], ...]:
    """Kill points of an undisturbed run of the world, by port, method and side; commits are points of their own."""
    counted = endure(Case(seed=0, world=world).simulation(), FaultPlan()).injector.calls
    classes: dict[tuple[str, str, FaultKind], list[Fault]] = {}
    for pair in kill_points(counted):
        for point in pair:
            classes.setdefault((point.worker, point.method, point.kind), []).append(point)
    return tuple(tuple(points) for _, points in sorted(classes.items(), key=lambda item: str(item[0])))


def point_name(fault: Fault) -> str:
    """Name of the class of a kill point, such as `before environment.execute`."""
    side = "after" if fault.kind is FaultKind.KILL_AFTER else "before"
    return f"{side} {fault.worker}.{fault.method}"


@functools.cache
def _scenario(is_faultless: bool, placement: str) -> Scenario:
    base = load_scenario("small_mixed")
    workload = base.workload
    if is_faultless:
        workload = msgspec.structs.replace(workload, **dict.fromkeys(_FAILURES, 0.0))
    trainer = msgspec.structs.replace(base.trainer, save_s=0.5)
    engine = msgspec.structs.replace(base.engine, slots=8)
    return msgspec.structs.replace(base, workload=workload, trainer=trainer, engine=engine, placement=placement)


def _without_defaults(value: Any) -> Any:
    """A struct as a tree of plain values, without the fields that are as by default."""
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.fields(value)
        return {
            field.encode_name: _without_defaults(getattr(value, field.name))
            for field in fields
            if field.required or getattr(value, field.name) != field.default
        }
    if isinstance(value, list | tuple):
        return [_without_defaults(item) for item in value]
    return msgspec.to_builtins(value)
