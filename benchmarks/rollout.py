"""R1 and R2: CPU per model turn of the whole orchestrator on W-A, in memory and with the durable journal.

Run: `python -m benchmarks.rollout [--peers PYTHON]`. Everything between the ports is the product: admission, harness, action
journal, sealing, grading, rewards, collection, batch plans, publication of versions. The workers at the ports are scripted
and in process; the tool adds two numbers on every side, behind the product's own session with its lease and receipts.
R1's peers run their rollout loop alone on the same load: no journal, no grader, no batches, no versions.
R2's is Inspect with its scorer and its log on disk, on the first groups of the load, since its turns are dear.

R2 also kills a run with SIGKILL half-way, verifies what is on disk, and makes every sealed episode again from its events.
"""

import argparse
import asyncio
import dataclasses
import json
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.sitting.measure import Figure, Side, options, sit, tree_cpu_s
from benchmarks.sitting.peer import peer_side
from benchmarks.sitting.scripted import (
    CANARY,
    POLICY,
    ScriptedGrader,
    ScriptedInference,
    ScriptedTasks,
    ScriptedTrainer,
    SumEnvironment,
    weights_bytes,
    weights_of,
)
from benchmarks.sitting.workload import (
    CALLS,
    EPISODES,
    GROUPS,
    IN_FLIGHT,
    IN_FLIGHT_GROUPS,
    MEMBERS,
    SAMPLED_TOKENS,
    TURNS,
    Load,
    fresh_harness,
    make_load,
)
from headrace.config import Config, EvaluationSection, RunSection, ScheduleSection
from headrace.control.context import Ports, RunFacts
from headrace.control.orchestrator import Orchestrator, RunSummary
from headrace.ports import Environment
from headrace.records.action import ActionCommitted
from headrace.records.batch import GroupClosed
from headrace.records.ids import EpisodeId
from headrace.records.observation import ActionObserved
from headrace.records.provenance import PolicyVersion
from headrace.records.segment import Origin, TurnGenerated
from headrace.records.trajectory import Transcript, TranscriptSealed
from headrace.records.verdict import VerdictSealed
from headrace.runtime.cycles import rarely_searched
from headrace.store.blobs import FileBlobs
from headrace.store.group_commit import GroupCommitJournal
from headrace.store.memory import MemoryJournal
from headrace.store.reader import open_reader
from headrace.store.sqlite import SqliteJournal
from headrace.store.verify import BLOBS_NAME, verify_run

BATCH_GROUPS = IN_FLIGHT_GROUPS // 2
UPDATES = -(-GROUPS // BATCH_GROUPS)
KILL_AT_UPDATE = UPDATES // 2
US_PER_TURN = 1e6 / (EPISODES * TURNS)
R1 = Figure("R1", "W-A in process, memory store", "us per turn", US_PER_TURN, 130.0)
R2 = Figure("R2", "W-A with the durable journal, sealed, addressed", "us per turn", US_PER_TURN, None)
R2_OVER_R1 = 2.5
INSPECT_GROUPS = 20
"""160 episodes: a run of Inspect takes seconds; its figure is per turn all the same."""


@dataclasses.dataclass(frozen=True)
class Finished:
    """One run of the load."""

    summary: RunSummary
    cpu_s: float
    peak: int
    trained_rows: int


async def play(
    load: Load, journal: GroupCommitJournal, environment: Environment, trainer: ScriptedTrainer | None = None
) -> Finished:
    """Plays a load through the orchestrator, and closes the journal."""
    schedule = ScheduleSection(
        mode="separate_async", batch_groups=BATCH_GROUPS, group_size=MEMBERS, credit_batches=1, order="ready"
    )
    config = Config(run=RunSection(updates=UPDATES), schedule=schedule, evaluation=EvaluationSection(every_updates=0))
    inference, trainer = ScriptedInference(load), trainer or ScriptedTrainer()
    ports = Ports(ScriptedTasks(load), fresh_harness(), inference, environment, ScriptedGrader(load), trainer, journal)
    facts = RunFacts("w-a", "local", "", {}, PolicyVersion(POLICY, 0, weights_of(0)), 1, CANARY)
    began_s = tree_cpu_s()
    with rarely_searched():
        summary = await Orchestrator(config, ports, facts).run()
        await journal.close()
    return Finished(summary, tree_cpu_s() - began_s, inference.peak, len(trainer.rows))


def check(load: Load, finished: Finished, read: Callable[[Any], bytes], events: list[Any]) -> None:
    """Asserts what a run of W-A must have produced."""
    assert finished.summary.reason == "exhausted" or finished.summary.updates == UPDATES, finished.summary
    assert finished.peak == IN_FLIGHT, finished.peak
    kinds = Counter(type(event.payload) for event in events)
    assert kinds[TurnGenerated] == EPISODES * TURNS, kinds
    assert kinds[ActionCommitted] == kinds[ActionObserved] == CALLS, kinds
    assert kinds[VerdictSealed] == kinds[TranscriptSealed] == EPISODES, kinds
    rewards = {m.episode: m.reward for e in events if isinstance(e.payload, GroupClosed) for m in e.payload.members}
    assert rewards == load.rewards
    absent = sum(reward is None for reward in rewards.values())
    assert 0 < absent == EPISODES - finished.trained_rows, (absent, finished.trained_rows)
    versions: set[int] = set()
    sampled = 0
    for event in events:
        if isinstance(event.payload, TranscriptSealed):
            assert event.payload.terminal in {"success", "failure"}, event.payload.terminal
            transcript = msgspec.msgpack.decode(read(event.payload.transcript), type=Transcript)
            sampled += check_transcript(load, transcript)
            versions.update(transcript.versions)
    assert sampled == SAMPLED_TOKENS, sampled
    assert len(versions) > UPDATES // 2, versions


def check_transcript(load: Load, transcript: Transcript) -> int:
    """Sampled tokens, once ids, log-probs, versions and tool results are those of the load."""
    step = 0
    for segment in transcript.sequence(0):
        is_sampled = segment.origin is Origin.POLICY
        assert (segment.behavior_logprobs is not None) is is_sampled is (segment.policy is not None)
        if is_sampled:
            turn = load.turns[f"{transcript.episode}/{step}"]
            assert (segment.ids, segment.behavior_logprobs) == (turn.ids, turn.logprobs)
            if turn.output:
                assert transcript.actions[step].output.decode().strip() == turn.output
            step += 1
    assert step == TURNS
    return transcript.num_sampled_tokens


def run_in_memory(load: Load) -> float:
    async def work() -> tuple[Finished, MemoryJournal]:
        journal = MemoryJournal()
        return await play(load, journal, SumEnvironment()), journal

    finished, journal = asyncio.run(work())
    check(load, finished, journal.read, list(journal.events()))
    return finished.cpu_s


def run_on_disk(load: Load) -> float:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:

        async def work() -> Finished:
            return await play(load, SqliteJournal(Path(folder), incarnation="bench"), SumEnvironment())

        finished = asyncio.run(work())
        with open_reader(Path(folder)) as reader:
            check(load, finished, reader.read, list(reader.events(0)))
        return finished.cpu_s


def run_floor(load: Load) -> float:
    """A bare loop on the same load: the call parsed by `json`, arrays at the end, nothing kept, checked or versioned."""
    prompts = [
        np.concatenate([s.ids_T for s in fresh_harness().open(task)]) for task in load.tasks for _ in range(MEMBERS)
    ]

    async def episode(prompt: Any, turns: Any, gate: asyncio.Semaphore) -> tuple[Any, Any, Any]:
        async with gate:
            ids, mask, logprobs = [prompt], [np.zeros(len(prompt), bool)], [np.full(len(prompt), np.nan, np.float32)]
            for turn in turns:
                await asyncio.sleep(0)
                ids.append(np.frombuffer(turn.ids, "<i4"))
                logprobs.append(np.frombuffer(turn.logprobs, "<f4"))
                mask.append(np.ones(len(ids[-1]), bool))
                if turn.output:
                    call = json.loads(turn.text.partition("<tool_call>")[2].partition("</tool_call>")[0])
                    left, _, right = call["arguments"]["expression"].partition("+")
                    assert str(int(left) + int(right)) == turn.output
            return np.concatenate(ids), np.concatenate(mask), np.concatenate(logprobs)

    async def work() -> list[Any]:
        gate = asyncio.Semaphore(IN_FLIGHT)
        pairs = zip(prompts, load.episodes, strict=True)
        return await asyncio.gather(*(episode(prompt, e.turns, gate) for prompt, e in pairs))

    began_s = tree_cpu_s()
    made = asyncio.run(work())
    used_s = tree_cpu_s() - began_s
    assert sum(int(mask.sum()) for _, mask, _ in made) == SAMPLED_TOKENS
    return used_s


def check_peer(result: dict[str, Any]) -> None:
    """A peer made every turn, and trains exactly the sampled tokens."""
    assert result["episodes"] == EPISODES and result["turns"] == EPISODES * TURNS, result
    assert result["trained_tokens"] == SAMPLED_TOKENS, result


def check_inspect(result: dict[str, Any]) -> None:
    """Inspect's log, read back from disk, holds every turn and every tool call of its share of the load."""
    episodes = INSPECT_GROUPS * MEMBERS
    assert result["episodes"] == episodes and result["turns"] == episodes * TURNS, result
    assert result["calls"] == episodes * (TURNS - 1), result


def inspect_side(python: Path | None, folder: Path) -> Side:
    """R2's peer, whose runs count as though it had played the whole load."""
    harness = fresh_harness()
    data = make_load(harness, INSPECT_GROUPS).write(folder / "first-groups.json", harness)
    side = peer_side("Inspect", "rollout_inspect.py", python, data, check=check_inspect, published=4874.0)
    run = side.run
    return side if run is None else dataclasses.replace(side, run=lambda: run() * GROUPS / INSPECT_GROUPS)


class _Announcing(ScriptedTrainer):
    """Says when the plan of an update is durable, which is when the control plane asks for it."""

    def __init__(self, journal: GroupCommitJournal) -> None:
        super().__init__()
        self._journal = journal

    async def update(self, plan: Any, timeout_s: float) -> Any:
        if plan.update == KILL_AT_UPDATE:
            print(json.dumps({"durable_seq": self._journal.durable_seq}), flush=True)
        return await super().update(plan, timeout_s)


def be_killed(folder: Path) -> None:
    """Plays the load until somebody kills this process."""

    async def work() -> None:
        journal = SqliteJournal(folder, incarnation="victim")
        await play(make_load(fresh_harness()), journal, SumEnvironment(), _Announcing(journal))

    asyncio.run(work())


def check_survives_kill(load: Load) -> dict[str, int]:
    """Kills a run, verifies its bytes, and makes every sealed episode again from the events alone."""
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
        folder = Path(name)
        blobs = FileBlobs(folder / BLOBS_NAME)
        for version in range(UPDATES + 1):
            assert blobs.put(weights_bytes(version)) == weights_of(version)
        victim = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.rollout", "--be-killed", folder], stdout=subprocess.PIPE, text=True
        )
        assert victim.stdout is not None
        acknowledged = json.loads(victim.stdout.readline())["durable_seq"]
        victim.kill()
        assert victim.wait() == -signal.SIGKILL
        report = verify_run(folder)
        assert report.is_sound, [str(problem) for problem in report.problems[:3]]
        assert report.counts["events"] >= acknowledged > 0, (report.counts, acknowledged)
        replayed = replay(load, folder)

        async def take_over() -> tuple[str, int]:
            journal = SqliteJournal(folder, incarnation="heir")
            found = journal.head(), journal.last_seq
            await journal.close()
            return found

        assert asyncio.run(take_over()) == (report.head, report.counts["events"])
        return {"acknowledged": acknowledged, "events": report.counts["events"], "replayed": replayed}


def replay(load: Load, folder: Path) -> int:
    """Number of sealed episodes, each of which comes to its sealed digest from its events and the harness."""
    harness, tasks = fresh_harness(), {str(n): task for n, task in enumerate(load.tasks)}
    turns: dict[EpisodeId, list[TurnGenerated]] = {}
    count = 0
    with open_reader(folder) as reader:
        for event in reader.events(0):
            payload = event.payload
            if isinstance(payload, TurnGenerated):
                turns.setdefault(payload.episode, []).append(payload)
            elif isinstance(payload, TranscriptSealed):
                sealed = msgspec.msgpack.decode(reader.read(payload.transcript), type=Transcript)
                segments = list(harness.open(tasks[event.key.split(".")[1]]))
                outputs = iter([outcome.output for outcome in sealed.actions])
                for turn in turns.pop(sealed.episode):
                    segments += turn.segments
                    calls = harness.parse(turn.segments[-1].ids_T).calls
                    if calls:
                        segments += harness.observe([next(outputs) for _ in calls], 64).segments
                path = msgspec.structs.replace(sealed.paths[0], segments=tuple(segments))
                again = msgspec.structs.replace(sealed, paths=(path,))
                assert again.address == payload.transcript, f"{sealed.episode} replays to another digest"
                assert len(sealed.provenance.policies) >= 1
                assert all(
                    len(a) == 64 for a in (sealed.task, sealed.provenance.harness, sealed.provenance.environment)
                )
                count += 1
    assert count >= KILL_AT_UPDATE * BATCH_GROUPS * MEMBERS, count
    return count


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--be-killed", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.be_killed:
        be_killed(arguments.be_killed)
        return
    harness = fresh_harness()
    load = make_load(harness)
    with tempfile.TemporaryDirectory() as folder:
        data = load.write(Path(folder) / "load.json", harness)
        peers = [
            peer_side("OpenRLHF", "rollout_openrlhf.py", arguments.peers, data, check=check_peer, published=97.0),
            Side("AReaL", None, "its loop takes no tool", 130.0),
            Side("SkyRL", None, "its generator does not import under Python 3.11", 132.0),
            Side("verl", None, "its agent loop needs a model folder and servers", 1425.0),
        ]
        floor = Side("floor", lambda: run_floor(load))
        r1 = sit(R1, [Side("product", lambda: run_in_memory(load)), floor, *peers], arguments.repeats)
        survived = check_survives_kill(load)
        both = [Side("product", lambda: run_on_disk(load)), Side("R1", lambda: run_in_memory(load)), floor]
        r2 = sit(R2, [*both, inspect_side(arguments.peers, Path(folder))], arguments.repeats)
    print(f"    killed with SIGKILL: {survived}; every sealed episode replays to its digest, the journal verifies")
    ratio = r2["product"] / r2["R1"]
    print(f"    {ratio:.2f} x R1, target <= {R2_OVER_R1}: {'met' if ratio <= R2_OVER_R1 else 'NOT MET'}")
    del r1


if __name__ == "__main__":
    main()
