"""The local composition root: nothing to start first; every worker is a child process of this one.

Invariant: no child outlives the run, however it ends.
"""

import asyncio
import contextlib
import dataclasses
import datetime
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from headrace.config import Config
from headrace.control.context import Ports, RunFacts
from headrace.control.orchestrator import Orchestrator, RunSummary
from headrace.control.publishing import WORKER
from headrace.control.recorder import Observer
from headrace.graders.service import ChildGrader
from headrace.harness import WritingHarness
from headrace.inference.child import ChildInference
from headrace.ports import TaskSource
from headrace.processes.child import Child
from headrace.records.arrays import IntArray
from headrace.records.ids import PolicyId
from headrace.records.provenance import PolicyVersion
from headrace.records.run import WeightsHeld
from headrace.runtime.adapters import (
    LocalEnvironment,
    open_environment,
    open_harness,
    open_tasks,
    start_worker,
)
from headrace.runtime.cycles import rarely_searched
from headrace.runtime.engines import open_engine
from headrace.runtime.folders import BLOBS, WORKSPACES
from headrace.runtime.models import keep_model_files
from headrace.runtime.placement import GraderPlace, place_beside
from headrace.runtime.policy import WarmStartReport, given_policy, prepare_policy, tokenizer_folder
from headrace.runtime.preflight import measured_tasks, model_shape, preflight, prompt_lengths, tokenizer_ids
from headrace.runtime.workers.settings import TrainerSettings, command
from headrace.store.blobs import FileBlobs
from headrace.store.sqlite import SqliteJournal
from headrace.training.child import ChildTrainer, TrainerHello

CANARY_TASKS = 8
"""Prompts whose tokens are the canary."""


@dataclasses.dataclass(frozen=True)
class LocalRun:
    """A run to be.

    Attributes:
        config: the checked configuration.
        folder: its folder, which exists; empty, or holding a run that is gone on with.
        observers: called with every event.
        warm_start: called with progress of the warm start.
    """

    config: Config
    folder: Path
    observers: Sequence[Observer] = ()
    warm_start: WarmStartReport = lambda _: None


async def run_local(run: LocalRun) -> RunSummary:
    """Runs to the end.

    Raises:
        HeadraceError: whatever stopped it, already recorded in the journal.
    """
    config, folder = run.config, run.folder
    async with contextlib.AsyncExitStack() as stack:
        environment = open_environment(config, folder)
        stack.push_async_callback(environment.stop)
        await environment.start()
        tasks = open_tasks(config)
        given = await given_policy(config)
        harness = open_harness(config, environment.tools, tokenizer_folder(given))
        vocabulary = tokenizer_ids(harness)
        prompts = prompt_lengths(harness, measured_tasks(tasks))
        fits = preflight(config, model_shape(config, given, vocabulary), vocabulary, prompts)
        policy = await prepare_policy(config, harness, run.warm_start)
        keep_model_files(policy, folder)
        (folder / "tokenizer.json").write_bytes(harness.codec.source)
        journal = SqliteJournal(folder, incarnation=f"local-{os.getpid()}")
        stack.push_async_callback(journal.close)
        FileBlobs(folder / BLOBS).sweep()  # what a killed process left half written
        place = place_beside(config, environment.isolation)
        workers = await stack.enter_async_context(_workers(config, folder, policy, place))
        hello = msgspec.msgpack.decode(workers.trainer.hello, type=TrainerHello)
        size_bytes = (folder / BLOBS / hello.weights[:2] / hello.weights).stat().st_size
        facts = RunFacts(
            run_id=folder.name,
            runtime="local",
            wall_clock=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            resources={"cores": float(len(os.sched_getaffinity(0)))},
            initial=PolicyVersion(hello.policy_id, hello.version, hello.weights),
            initial_bytes=size_bytes,
            canary=canary_of(tasks, harness),
            copies=_copies(hello, size_bytes, workers.grader.weights_bytes),
            holds_one_version=open_engine(config.inference).holds_one_version,
            notes={"sandbox": _isolation(environment), "grader": place.note, "fits": fits},
        )
        ports = Ports(
            tasks=tasks,
            harness=harness,
            inference=ChildInference(workers.engine),
            environment=environment,
            grader=workers.grader,
            trainer=ChildTrainer(workers.trainer),
            journal=journal,
        )
        watch = (workers.engine.wait_lost(), workers.trainer.wait_lost())
        with rarely_searched():
            summary = await Orchestrator(config, ports, facts, observers=run.observers, watch=watch).run()
        # No attempt is left that could go on at one of its revisions.
        await asyncio.to_thread(shutil.rmtree, folder / WORKSPACES, ignore_errors=True)
        return summary


def canary_of(tasks: TaskSource, harness: WritingHarness) -> list[IntArray]:
    """Fixed token sequences on which engine and trainer are compared: the first held-out prompts."""
    prompts = [harness.open(task) for task in tasks.held_out()[:CANARY_TASKS]]
    return [np.concatenate([segment.ids_T for segment in segments]) for segments in prompts]


@dataclasses.dataclass(frozen=True)
class _Workers:
    engine: Child
    trainer: Child
    grader: ChildGrader


@contextlib.asynccontextmanager
async def _workers(config: Config, folder: Path, policy: Path, place: GraderPlace) -> AsyncIterator[_Workers]:
    """Engine, trainer and grader, started side by side and closed in any case."""
    trainer_settings = TrainerSettings(
        config.trainer.options, str(policy), str(folder), config.policy.policy_id, config.algorithm
    )

    def start_grader() -> "asyncio.Future[Child]":
        return asyncio.ensure_future(start_worker("grader", place.argv))

    starts = [
        asyncio.ensure_future(open_engine(config.inference).start(policy, folder / BLOBS)),
        asyncio.ensure_future(start_worker("trainer", command("trainer", trainer_settings))),
        start_grader(),
    ]
    started = await asyncio.gather(*starts, return_exceptions=True)
    children = [child for child in started if isinstance(child, Child)]
    try:
        for failure in started:
            if isinstance(failure, BaseException):
                raise failure
        engine, trainer, grader = children
        grading = ChildGrader(grader, start_grader)
        try:
            yield _Workers(engine, trainer, grading)
        finally:
            await grading.close()
    finally:
        await asyncio.gather(*(child.close() for child in children))


def _isolation(environment: LocalEnvironment) -> str:
    """How strong the sandbox of this platform is, in one line."""
    found = environment.isolation
    missing = f"; not confined here: {', '.join(found.missing)}" if found.missing else ""
    note = f"; {found.note}" if found.note else ""
    return f"{found.level}, metered by {found.metering}{missing}{note}"


def _copies(hello: TrainerHello, served_bytes: int, grader_bytes: int) -> tuple[WeightsHeld, ...]:
    """Every copy of weights that a local run holds: the engine's, and whatever trainer and grader say they have."""
    judges = (
        [WeightsHeld("reward model", PolicyId("reward_model"), "grader", "cpu", grader_bytes)] if grader_bytes else []
    )
    return (
        WeightsHeld("policy (served)", hello.policy_id, WORKER, "cpu", served_bytes),
        *(
            WeightsHeld(role, hello.policy_id, "trainer", "cpu", size_bytes)
            for role, size_bytes in hello.copies.items()
        ),
        *judges,
    )
