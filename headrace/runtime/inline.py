"""The inline composition root: the real engine, trainer, calculator and scorer in this process, under virtual time.

Every step of theirs charges virtual seconds, so the run is a function of its configuration and weights alone: two processes
give the same event hash and the same weights, bit for bit. No thread, process or socket is involved.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.config import Config, decode_options
from headrace.control.context import Ports, RunFacts
from headrace.control.orchestrator import Orchestrator, RunSummary
from headrace.control.recorder import Observer
from headrace.environments.inline import InlineEnvironment, no_duration
from headrace.graders.inline import InlineGrader
from headrace.graders.reasoning_gym import open_grader_core
from headrace.harness import open_harness
from headrace.inference.core import EngineCore
from headrace.inference.inline import InlineInference
from headrace.inference.options import EngineOptions
from headrace.inference.turns import StepWork
from headrace.records.action import Action
from headrace.records.events import Event
from headrace.records.ids import Address, PolicyId
from headrace.records.provenance import PolicyVersion
from headrace.records.update import WeightsCommitted
from headrace.runtime.cycles import rarely_searched
from headrace.runtime.local import canary_of
from headrace.runtime.simulated import resumed_laws
from headrace.simulation.loop import run_virtual
from headrace.store.blobs import FileBlobs
from headrace.store.group_commit import Storage
from headrace.store.memory import MemoryJournal, MemoryStorage
from headrace.tasks.reasoning_gym import open_tasks
from headrace.training.core import TrainerCore, TrainerOptions
from headrace.training.inline import InlineTrainer

_PREFILL_TOKENS_PER_S = 50_000.0
_DECODE_STEP_S = 0.002
_SEQUENCE_S = {"score": 0.002, "update": 0.006, "canary": 0.001, "save": 0.01, "load": 0.01}


@dataclasses.dataclass(frozen=True)
class InlineResult:
    """What came of an inline run.

    Attributes:
        summary: how it ended; `head` is the hash over all events.
        events: the whole log.
        weights: address of every committed version, from 0.
    """

    summary: RunSummary
    events: tuple[Event, ...]
    weights: tuple[Address, ...]


@dataclasses.dataclass(frozen=True)
class InlineWorld:
    """What an inline run stands in.

    Attributes:
        storage: the journal's; one that holds events of the run already is gone on with.
        tool_s: virtual seconds of each action.
    """

    storage: Storage = dataclasses.field(default_factory=MemoryStorage)
    tool_s: Callable[[Action], float] = no_duration


def run_inline(
    config: Config,
    policy: Path,
    blobs: Path,
    *,
    world: InlineWorld | None = None,
    shuffle_seed: int | None = None,
    observers: Sequence[Observer] = (),
) -> InlineResult:
    """Runs to the end, with every law checked after every event.

    Args:
        config: `run.deterministic` should be set.
        policy: folder of version 0, with its tokenizer.
        blobs: folder for weights and checkpoints.
        world: what it stands in; a fresh one by default.
        shuffle_seed: explores another interleaving of ready callbacks per seed.
        observers: called with every event.
    """
    return run_virtual(_run(config, policy, blobs, world or InlineWorld(), observers), shuffle_seed=shuffle_seed)


async def _run(  # noqa: PLR0917 - the arguments of `run_inline`
    config: Config, policy: Path, blobs_folder: Path, world: InlineWorld, observers: Sequence[Observer]
) -> InlineResult:
    loop = asyncio.get_running_loop()
    policy_id = PolicyId(config.policy.policy_id)
    journal, blobs = MemoryJournal(world.storage), FileBlobs(blobs_folder)
    environment = InlineEnvironment(duration_s=world.tool_s)
    tasks = open_tasks(
        config.tasks.kind,
        config.tasks.options,
        seed=config.run.seed,
        budget=config.budget,
        environment=config.environment.kind,
    )
    harness = open_harness(config.harness.kind, config.harness.options, environment.tools, policy)
    engine = InlineInference(
        EngineCore(
            decode_options(config.inference.options, EngineOptions, "inference.options"), policy, blobs.path, loop.time
        ),
        _engine_cost_s,
    )
    core = TrainerCore(
        decode_options(config.trainer.options, TrainerOptions, "trainer.options"),
        policy,
        config.algorithm,
        read_row=journal.read,
        put_weights=blobs.put,
        clock=loop.time,
        policy_id=policy_id,
        files=blobs,
    )
    weights = core.export()
    ports = Ports(
        tasks=tasks,
        harness=harness,
        inference=engine,
        environment=environment,
        grader=InlineGrader(open_grader_core(config.grader.kind, config.grader.options)),
        trainer=InlineTrainer(core, lambda method, size: _SEQUENCE_S[method] * size),
        journal=journal,
    )
    facts = RunFacts(
        run_id=f"inline-{config.run.seed}",
        runtime="inline",
        wall_clock="",
        resources={"cores": 1.0},
        initial=PolicyVersion(policy_id, 0, weights),
        initial_bytes=blobs.path(weights).stat().st_size,
        canary=canary_of(tasks, harness),
    )
    laws = resumed_laws(config, journal)
    with rarely_searched():
        summary = await Orchestrator(config, ports, facts, observers=(laws, *observers)).run()
    await engine.close()
    await environment.stop()
    await journal.durable(journal.last_seq)
    events = tuple(journal.events())
    await journal.close()
    committed = tuple(event.payload.weights for event in events if isinstance(event.payload, WeightsCommitted))
    return InlineResult(summary, events, committed)


def _engine_cost_s(work: StepWork) -> float:
    """Seconds of a step: a fixed decode step, and prefill by the token. A cost model, not a measurement."""
    return work.prefill_tokens / _PREFILL_TOKENS_PER_S + (_DECODE_STEP_S if work.decode_rows else 0.0)
