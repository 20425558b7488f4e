"""Single episodes without a trainer: a real environment, harness and grader, and whatever speaks as the policy.

Invariant: an episode here goes through the same driver, sealer and grading as one of a training run; no child outlives the
bench.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from headrace.config import Config
from headrace.control.episode import EpisodeDriver, EpisodePorts, EpisodeSettings
from headrace.control.grading import Grading
from headrace.control.leases import CountingLeases
from headrace.control.member import MemberRunner, MemberSpec
from headrace.control.pacing import ServiceTurns
from headrace.control.publishing import WORKER
from headrace.control.recorder import Recorder, WorkerClock, sealed_row
from headrace.control.sealing import Sealed, Sealer
from headrace.graders.service import ChildGrader
from headrace.harness import WritingHarness
from headrace.ports import Inference
from headrace.processes.child import Child
from headrace.records.ids import Address, GroupId, PolicyId
from headrace.records.provenance import PolicyVersion
from headrace.records.reward import RewardRule, reward_of
from headrace.records.segment import Sampling
from headrace.records.task import Task
from headrace.records.trajectory import Transcript
from headrace.records.verdict import Verdict
from headrace.runtime.adapters import LocalEnvironment, open_environment, open_harness, start_worker
from headrace.runtime.placement import place_beside
from headrace.runtime.policy import given_policy, tokenizer_folder
from headrace.scheduling.retry import RetryRule
from headrace.store.memory import MemoryJournal


@dataclasses.dataclass(frozen=True)
class Played:
    """One episode that is over.

    Attributes:
        task: what was asked.
        transcript: the sealed record.
        verdict: what the grader says of it.
        reward: None when there is no score.
    """

    task: Task
    transcript: Transcript
    verdict: Verdict
    reward: float | None


class Bench:
    """Where single episodes run.

    Attributes:
        config: what they go by.
        environment: where tools act.
        harness: renders and parses.
        grader: who verifies.
    """

    def __init__(
        self, config: Config, environment: LocalEnvironment, harness: WritingHarness, grader: ChildGrader
    ) -> None:
        self.config = config
        self.environment = environment
        self.harness = harness
        self.grader = grader
        self._leases = CountingLeases()

    def runner(
        self, inference: Inference, policies: Sequence[PolicyVersion], *, has_wall_limit: bool
    ) -> "EpisodeRunner":
        """Runs episodes of one policy.

        Args:
            inference: speaks.
            policies: versions that it may speak as.
            has_wall_limit: whether `budget.wall_s` ends an episode.
        """
        config, recorder = self.config, Recorder(MemoryJournal())
        retry = RetryRule(config.schedule.infra_attempts, config.schedule.grade_tries)
        policy_id = policies[0].policy_id if policies else PolicyId(config.policy.policy_id)
        weights: dict[int, Address] = {policy.version: policy.weights for policy in policies}
        driver = EpisodeDriver(
            EpisodePorts(
                self.harness,
                inference,
                self.environment,
                WorkerClock(recorder, WORKER),
                WorkerClock(recorder, "environment"),
                ServiceTurns(config.environment.calls_per_s),
            ),
            recorder,
            Sealer(recorder, self.harness, self.environment.version, weights),
            EpisodeSettings(policy_id, config.timeouts, has_wall_limit),
        )
        clock, rule = WorkerClock(recorder, "grader"), RewardRule(config.algorithm.reward_rule)
        grading = Grading(self.grader, recorder, clock, retry=retry, timeout_s=config.timeouts.grade_s)
        members = MemberRunner(driver, grading, self._leases, retry=retry, reward_rule=rule, seed=config.run.seed)
        return EpisodeRunner(members, grading, rule)


class EpisodeRunner:
    """Episodes of one policy on a bench."""

    def __init__(self, members: MemberRunner, grading: Grading, rule: RewardRule) -> None:
        self._members = members
        self._grading = grading
        self._rule = rule

    async def run(self, task: Task, group: GroupId, member: int, sampling: Sampling) -> Played:
        """The attempt that counts, graded."""
        spec = MemberSpec(group, member, task, sealed_row("task", task).address, sampling, None)
        return await self.judge(task, await self._members.roll(spec))

    async def judge(self, task: Task, sealed: Sealed) -> Played:
        """A sealed episode, graded."""
        verdicts = await self._grading.grade([sealed], task)
        verdict = verdicts[sealed.address].verdict
        return Played(task, sealed.transcript, verdict, reward_of(verdict, self._rule))


@contextlib.asynccontextmanager
async def open_bench(config: Config, tokenizer: Path | None = None) -> AsyncIterator[Bench]:
    """A bench for a configuration; `tokenizer` is a folder with a tokenizer.json, None takes the one that the run would.

    Raises:
        ConfigError: when a part cannot be built.
        BoundaryError: when a worker does not start.
    """
    async with contextlib.AsyncExitStack() as stack:
        environment = open_environment(config)
        stack.push_async_callback(environment.stop)
        await environment.start()
        harness = open_harness(config, environment.tools, tokenizer or tokenizer_folder(await given_policy(config)))
        place = place_beside(config, environment.isolation)

        def start_grader() -> "asyncio.Future[Child]":
            return asyncio.ensure_future(start_worker("grader", place.argv))

        grader = ChildGrader(await start_grader(), start_grader)
        stack.push_async_callback(grader.close)
        yield Bench(config, environment, harness, grader)
