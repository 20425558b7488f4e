"""D1: CPU per empty episode of admission and collection.

Run: `python -m benchmarks.scheduling [--peers PYTHON]`. W-D: 4000 episodes in groups of eight that yield once and do nothing
else, at most 256 in flight. Every tenth group comes back without rewards and is rejected. The product's admission loop,
collector, data frontier, batch order and journal run; the episode driver does not, since there is no episode.
"""

import asyncio
import dataclasses
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from benchmarks.sitting.measure import Figure, Side, options, sit, tree_cpu_s
from benchmarks.sitting.peer import peer_side
from benchmarks.sitting.scripted import weights_of
from headrace.control.collecting import Collector
from headrace.control.context import RunContext
from headrace.control.member import MemberOutcome, MemberRunner, MemberSpec
from headrace.control.recorder import Recorder
from headrace.control.signal import Changed
from headrace.control.source import SourceLoop
from headrace.control.versions import Versions
from headrace.records.batch import GroupAdmitted, GroupClosed, GroupRejected, MemberResult
from headrace.records.events import OrdinalState
from headrace.records.ids import EpisodeId
from headrace.records.task import Budget, Task, TaskDrawn
from headrace.scheduling.admission import Admission
from headrace.scheduling.ordering import BatchOrder
from headrace.scheduling.staleness import Sampled
from headrace.store.memory import MemoryJournal

EPISODES, MEMBERS = 4000, 8
GROUPS = EPISODES // MEMBERS
BATCH_GROUPS, MAX_OUTSTANDING = 16, 32
REJECTED_EVERY = 10
D1 = Figure("D1", "W-D: empty episodes through admission and collection", "us per episode", 1e6 / EPISODES, 25.0)
BUDGET = Budget()


class Tasks:
    """The source: as many tasks as there are groups."""

    def __init__(self) -> None:
        self._drawn = 0

    def next(self) -> Task | None:
        if self._drawn == GROUPS:
            return None
        self._drawn += 1
        return Task("empty", "one", 7, self._drawn - 1, "", BUDGET, "none")

    def held_out(self) -> Sequence[Task]:
        return ()


@dataclasses.dataclass(frozen=True)
class Empty:
    """An episode in which nothing happened."""

    spec: MemberSpec


class EmptyRunner:
    """What the collector asks of a `MemberRunner`; its episodes yield once."""

    is_group_scoped = False

    async def roll(self, spec: MemberSpec) -> Empty:
        await asyncio.sleep(0)
        return Empty(spec)

    async def grade(self, sealed: Sequence[Empty], task: Task) -> list[MemberOutcome]:
        return [self._outcome(item.spec) for item in sealed]

    def _outcome(self, spec: MemberSpec) -> MemberOutcome:
        is_rejected = spec.group.ordinal % REJECTED_EVERY == 0
        result = MemberResult(EpisodeId(spec.group, spec.member, 0), None, None, None if is_rejected else 1.0)
        return MemberOutcome(result, Sampled(()), (), 0)


async def product() -> tuple[list[Any], Collector]:
    """Admits, collects and consumes everything."""
    journal = MemoryJournal()
    async with asyncio.TaskGroup() as tasks:
        versions = Versions()
        versions.commit(0, weights_of(0))
        context = RunContext(
            Recorder(journal), versions, Changed(), lambda work, name: tasks.create_task(work, name=name)
        )
        runner = cast("MemberRunner", EmptyRunner())
        collector = Collector(runner, context, group_size=MEMBERS, max_outstanding=MAX_OUTSTANDING, temperature=1.0)
        source = SourceLoop(Tasks(), collector, context, Admission(GROUPS, 1))
        order = BatchOrder("ready", BATCH_GROUPS, None)
        admission = tasks.create_task(source.run(), name="admission")
        chosen: list[int] = []

        def can_go_on() -> bool:
            chosen[:] = order.choose(collector.open_groups(), 0, is_last=collector.frontier.drawn == GROUPS) or ()
            closed = collector.frontier.count(OrdinalState.TRAINED) + collector.frontier.count(OrdinalState.ABANDONED)
            return bool(chosen) or closed == GROUPS

        while True:
            await context.changed.wait_until(can_go_on)
            if not chosen:
                break
            collector.consume([collector.group(ordinal) for ordinal in chosen])
        admission.cancel()
    await journal.close()
    return list(journal.events()), collector


def run_product() -> float:
    began_s = tree_cpu_s()
    events, collector = asyncio.run(product())
    used_s = tree_cpu_s() - began_s
    payloads = [event.payload for event in events]
    admitted = [payload for payload in payloads if isinstance(payload, GroupAdmitted)]
    assert len(admitted) == sum(isinstance(payload, TaskDrawn) for payload in payloads) == GROUPS
    assert sum(len(payload.members) for payload in payloads if isinstance(payload, GroupClosed)) == EPISODES
    rejected = sum(isinstance(payload, GroupRejected) for payload in payloads)
    accepted = collector.frontier.count(OrdinalState.TRAINED)
    assert (accepted + rejected, rejected) == (GROUPS, GROUPS // REJECTED_EVERY), (accepted, rejected)
    assert max(payload.outstanding for payload in admitted) == MAX_OUTSTANDING
    assert collector.outstanding == collector.frontier.count(OrdinalState.OPEN) == 0
    return used_s


def run_floor() -> float:
    """A bare loop: a task per episode behind a semaphore, groups by `gather`, results in lists."""

    async def episode() -> float:
        await asyncio.sleep(0)
        return 1.0

    async def group(ordinal: int, gate: asyncio.Semaphore, accepted: list[Any], rejected: list[Any]) -> None:
        async with gate:
            rewards = await asyncio.gather(*(episode() for _ in range(MEMBERS)))
            (rejected if ordinal % REJECTED_EVERY == 0 else accepted).append(rewards)

    async def work() -> tuple[int, int]:
        gate, accepted, rejected = asyncio.Semaphore(MAX_OUTSTANDING), [], []
        await asyncio.gather(*(group(ordinal, gate, accepted, rejected) for ordinal in range(GROUPS)))
        return len(accepted), len(rejected)

    began_s = tree_cpu_s()
    accepted, rejected = asyncio.run(work())
    used_s = tree_cpu_s() - began_s
    assert (accepted + rejected, rejected) == (GROUPS, GROUPS // REJECTED_EVERY)
    return used_s


def check_peer(result: dict[str, Any]) -> None:
    assert result["accepted"] + result["rejected"] == EPISODES, result
    assert result["rejected"] == EPISODES // REJECTED_EVERY, result


def main() -> None:
    arguments = options(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "load.json"
        bound = MAX_OUTSTANDING * MEMBERS
        data.write_text(json.dumps({"episodes": EPISODES, "in_flight": bound, "rejected_every": REJECTED_EVERY}))
        areal = peer_side("AReaL", "scheduling_areal.py", arguments.peers, data, check=check_peer, published=19.0)
        sit(D1, [Side("product", run_product), Side("floor", run_floor), areal], arguments.repeats)


if __name__ == "__main__":
    main()
