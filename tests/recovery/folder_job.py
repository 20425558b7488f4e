"""A run whose policy writes to files, which kills itself at a chosen moment: `folder_job.py FOLDER MOMENT EFFECT`.

Each member says `one` and then `two`, and is done. The environment is a workspace (`EFFECT` snapshot), a part that appends
to a file outside (`external`), or a confined interpreter for each episode (`interpreter`). `MOMENT`: `never`;
`executed` once `two` was executed and its revision is not stored; `stored` once the revision is stored and nobody was
told; `committed` once its COMMIT is recorded and not on disk; `intended` before `two` reaches the executor; `stopped`
ends as SIGTERM does; `paused acting`, `paused consuming` and `paused publishing` stand still before `two`, with a batch
selected that is not on disk, and before the COMMIT of version 1, until somebody wakes them; `paused calling` stands still
in `two` with a sandbox open.
"""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from headrace.config import Config, decode_config
from headrace.control.context import Ports, RunFacts
from headrace.control.orchestrator import Orchestrator
from headrace.environments.workspace.calls import Caller
from headrace.environments.workspace.store import RevisionStore
from headrace.graders.inline import InlineGrader
from headrace.graders.parts import PythonGrader, PythonGraderOptions
from headrace.harness import open_harness
from headrace.records.action import ActionCommitted, ActionIntended, EffectClass
from headrace.records.batch import BatchSelected
from headrace.records.events import Event
from headrace.records.ids import EpisodeId, PolicyId
from headrace.records.provenance import PolicyVersion
from headrace.records.task import Task
from headrace.records.update import CanaryChecked
from headrace.runtime.adapters import open_environment
from headrace.simulation.costs import TrainerCost
from headrace.simulation.laws import Constant
from headrace.simulation.scripted import ScriptedInference, ScriptedTurn
from headrace.simulation.trainer import SimulatedTrainer
from headrace.simulation.weights import WeightShelf
from headrace.store.sqlite import SqliteJournal

POLICY = PolicyId("policy")
WORDS = ("one", "two")
MEMBERS = 2


def config_of(effect: str) -> Config:
    part = {"file": str(Path(__file__).with_name("outside_part.py")), "name": "append", "effect": "external"}
    environment: dict[str, Any] = {"kind": "python", "options": part}
    if effect == "snapshot":
        environment = {"kind": "workspace", "options": {"tools": ["shell"], "programs": ["sh", "cat"], "by": "overlay"}}
    if effect == "interpreter":
        environment = {"kind": "sandbox", "options": {"tools": ["python"]}}
    tree: dict[str, Any] = {
        "run": {"seed": 3, "updates": 1, "deterministic": True},
        "budget": {"turns": 4, "turn_tokens": 300, "episode_tokens": 900},
        "schedule": {"batch_groups": 1, "group_size": MEMBERS},
        "evaluation": {"every_updates": 0},
        "checkpoint": {"every_updates": 0},
        "environment": environment,
    }
    return decode_config(tree, "job")


class OneTask:
    """The same task for ever."""

    def __init__(self, config: Config, folder: Path) -> None:
        parameters = '{"path":"' + str(folder / "outside") + '"}' if config.environment.kind == "python" else "{}"
        self._task = Task("t", "easy", 1, 0, "Write.", config.budget, config.environment.kind, parameters)

    def next(self) -> Task:
        return self._task

    def held_out(self) -> list[Task]:
        return []


def script(folder: Path, effect: str):
    def say(episode: EpisodeId, step: int) -> ScriptedTurn:
        if step >= len(WORDS):
            return ScriptedTurn(text="done")
        word = WORDS[step]
        if effect == "snapshot":
            return ScriptedTurn(calls=('{"name":"shell","arguments":{"code":"echo ' + word + ' >> log; cat log"}}',))
        if effect == "interpreter":
            code = f"import os; os.makedirs('artifact', exist_ok=True); print('{word}', file=open('artifact/log', 'a'))"
            return ScriptedTurn(calls=('{"name":"python","arguments":{"code":"' + code + '"}}',))
        path, line = str(folder / "outside"), f"{episode.group.ordinal}.{episode.member} {word}"
        return ScriptedTurn(calls=('{"name":"append","arguments":{"path":"' + path + '","line":"' + line + '"}}',))

    return say


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def doom(moment: str) -> None:
    """Arms the moments that are no event."""
    put, start, pauses = RevisionStore.put, Caller.start, iter([True])

    def dying_put(self: RevisionStore, episode: Any, tree: Any, contents: Any) -> Any:
        is_doomed = any(entry.size_bytes == len("one\ntwo\n") for entry in tree.values())
        if is_doomed and moment == "executed":
            die()
        address = put(self, episode, tree, contents)
        if is_doomed and moment == "stored":
            die()
        return address

    async def dying_start(self: Caller, layers: Any, is_overlay: bool, size_bytes: int) -> Any:
        if size_bytes and moment == "intended":
            die()
        process = await start(self, layers, is_overlay, size_bytes)
        if size_bytes and moment == "paused calling" and next(pauses, False):
            os.kill(os.getpid(), signal.SIGSTOP)
        return process

    RevisionStore.put, Caller.start = dying_put, dying_start


class Observer:
    """Kills at events."""

    def __init__(self, moment: str) -> None:
        self._moment = moment

    def _pause(self) -> None:
        self._moment = "never"
        os.kill(os.getpid(), signal.SIGSTOP)

    def __call__(self, event: Event) -> None:
        match event.payload:
            case ActionCommitted(action_id=action) if self._moment == "committed" and action.step == 1:
                die()
            case ActionIntended(action=action) if self._moment == "stopped" and action.id.step == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            case ActionIntended(action=action) if self._moment == "paused acting" and action.id.step == 1:
                self._pause()
            case ActionIntended(action=action, effect=EffectClass.RESETTABLE) if (
                self._moment == "paused calling" and action.id.step == 1
            ):
                self._pause()
            case BatchSelected() if self._moment == "paused consuming":
                self._pause()
            case CanaryChecked(policy=policy) if self._moment == "paused publishing" and policy.version == 1:
                self._pause()
            case _:
                pass


async def run(folder: Path, moment: str, effect: str) -> None:
    config = config_of(effect)
    async with contextlib.AsyncExitStack() as stack:
        environment = open_environment(config, folder)
        stack.push_async_callback(environment.stop)
        await environment.start()
        journal = SqliteJournal(folder, incarnation=f"job-{os.getpid()}")
        stack.push_async_callback(journal.close)
        harness = open_harness("chatml", {}, environment.tools, None)
        shelf = WeightShelf()
        inference = ScriptedInference(script(folder, effect), harness.turn_ids, shelf, policy_id=POLICY)
        trainer = SimulatedTrainer(
            TrainerCost(update_s=Constant(value=0.0)), shelf, policy_id=POLICY, seed=3, read=journal.read
        )
        grader = InlineGrader(
            PythonGrader(
                PythonGraderOptions(file=str(Path(__file__).with_name("outside_part.py")), name="lines_of_log")
            )
        )
        initial = PolicyVersion(POLICY, 0, trainer.weights)
        facts = RunFacts("job", "local", "", {"cores": 1.0}, initial, 1, [np.arange(8, dtype=np.int32)])
        ports = Ports(OneTask(config, folder), harness, inference, environment, grader, trainer, journal)
        orchestrator = Orchestrator(config, ports, facts, observers=(Observer(moment),))
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await orchestrator.run()


def main() -> None:
    folder, moment, effect = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    doom(moment)
    try:
        asyncio.run(run(folder, moment, effect))
    except asyncio.CancelledError:
        sys.exit(143)


if __name__ == "__main__":
    main()
