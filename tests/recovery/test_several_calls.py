"""A scripted policy with several calls a turn and bad turns between, in the real harness: killed at every commit."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from recovery.crashes import DEAD, MortalStorage, broken_laws_of, consumed, weights

from headrace.config import Config, decode_config
from headrace.control.context import Ports, RunFacts
from headrace.control.orchestrator import Orchestrator
from headrace.control.past import AttemptPast
from headrace.control.recovery import recover
from headrace.environments.inline import InlineEnvironment
from headrace.errors import StoreError
from headrace.graders.inline import InlineGrader
from headrace.graders.reasoning_gym import open_grader_core
from headrace.harness import open_harness
from headrace.records.action import Action
from headrace.records.ids import EpisodeId, PolicyId
from headrace.records.provenance import PolicyVersion
from headrace.runtime.simulated import resumed_laws
from headrace.simulation.costs import TrainerCost
from headrace.simulation.laws import Constant
from headrace.simulation.loop import run_virtual
from headrace.simulation.scripted import ScriptedInference, ScriptedTurn
from headrace.simulation.trainer import SimulatedTrainer
from headrace.simulation.weights import WeightShelf
from headrace.store.group_commit import CommitPolicy
from headrace.store.memory import MemoryJournal, MemoryStorage
from headrace.tasks.reasoning_gym import open_tasks

POLICY = PolicyId("policy")
IMPATIENT = CommitPolicy(max_delay_s=0.01)
"""Commits so often that calls of one turn fall into several commits."""


def configured(**checkpoint: Any) -> Config:
    return decode_config(
        {
            "run": {"seed": 5, "updates": 2, "deterministic": True},
            "budget": {"turns": 5, "turn_tokens": 200, "episode_tokens": 900, "observation_tokens": 24},
            "tasks": {"kind": "reasoning_gym", "options": {"held_out_per_stratum": 1}},
            "schedule": {"batch_groups": 1, "group_size": 2},
            "evaluation": {"every_updates": 0},
            "checkpoint": checkpoint,
        },
        "several calls",
    )


def expression(text: str) -> str:
    return '{"name": "calculator", "arguments": {"expression": "' + text + '"}}'


def script(episode: EpisodeId, step: int) -> ScriptedTurn:
    """Three calls, of which one is wrong; a turn that nobody can read; one call; an answer."""
    number = 10 * episode.group.ordinal + episode.member
    turns = (
        ScriptedTurn(
            calls=(expression(f"{number} + 1"), expression("1 / 0"), expression(f"{number} * 3")), token_s=1e-3
        ),
        ScriptedTurn(calls=("{not json",), token_s=1e-3),
        ScriptedTurn(calls=(expression(f"{number} - 1"),), token_s=1e-3),
        ScriptedTurn(text=str(number - 1), token_s=1e-3),
    )
    return turns[step]


def slowly(action: Action) -> float:
    return 0.03 + 0.01 * action.id.ordinal


def run(config: Config, storage: MortalStorage, shelf: WeightShelf) -> None:
    run_virtual(_run(config, storage, shelf))


async def _run(config: Config, storage: MortalStorage, shelf: WeightShelf) -> None:
    journal, environment = MemoryJournal(storage, policy=IMPATIENT), InlineEnvironment(duration_s=slowly)
    harness = open_harness("chatml", {}, environment.tools, None)
    trainer = SimulatedTrainer(
        TrainerCost(update_s=Constant(value=0.1)), shelf, policy_id=POLICY, seed=config.run.seed, read=journal.read
    )
    tasks = open_tasks("reasoning_gym", config.tasks.options, seed=5, budget=config.budget, environment="sandbox")
    ports = Ports(
        tasks=tasks,
        harness=harness,
        inference=ScriptedInference(script, harness.turn_ids, shelf, policy_id=POLICY),
        environment=environment,
        grader=InlineGrader(open_grader_core("reasoning_gym", {})),
        trainer=trainer,
        journal=journal,
    )
    initial = PolicyVersion(POLICY, 0, trainer.weights)
    facts = RunFacts("calls", "simulated", "", {"cores": 1.0}, initial, 1, [np.arange(8, dtype=np.int32)])
    try:
        await Orchestrator(config, ports, facts, observers=(resumed_laws(config, journal),)).run()
    finally:
        await environment.stop()
        await asyncio.gather(journal.close(), return_exceptions=True)


def crash(config: Config, dies_at: int) -> tuple[MemoryStorage, WeightShelf]:
    storage, shelf = MemoryStorage(), WeightShelf()
    with pytest.raises(StoreError, match=DEAD):
        run(config, MortalStorage(storage, dies_at), shelf)
    return storage, shelf


def is_between(wanted: Callable[[AttemptPast], bool], storage: MemoryStorage) -> bool:
    past = recover(storage.events(0))
    return any(wanted(attempt) for group in past.groups.values() for attempt in group.running())


def test_a_turn_of_several_calls_goes_on_at_the_call_where_its_process_died() -> None:
    config, whole = configured(), MemoryStorage()
    counting = MortalStorage(whole)
    run(config, counting, WeightShelf())
    events = list(whole.events(0))
    expected = weights(events), consumed(events, whole.read)
    some_calls = committed_only = 0
    for dies_at in range(1, counting.commits + 1):
        storage, shelf = crash(config, dies_at)
        some_calls += is_between(lambda a: 0 < len(a.intents.keys() - a.observed.keys()) < 3, storage)
        committed_only += is_between(lambda a: bool(a.commits.keys() - a.observed.keys()), storage)
        run(config, MortalStorage(storage), shelf)
        after = list(storage.events(0))
        assert (weights(after), consumed(after, storage.read)) == expected, f"died at commit {dies_at}"
        assert broken_laws_of(config, storage) == []
    assert some_calls > 3, "some crash falls between two calls of a turn"
    assert committed_only > 3, "some crash falls between a COMMIT and its OBSERVED"
