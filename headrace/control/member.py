"""Runs one member of a group to its last state: attempts within bounds, then a verdict.

Invariant: only an infrastructure failure, or stored bytes that were quarantined, starts a new attempt, and never one whose
effect outside is unknown.

* consumes: a member of an admitted group.
* waits for: its episode, then the grader.
* unblocked by: a terminal state that may not be tried again.
* produces: a `MemberOutcome`.
"""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from headrace.control.breaking import Breakers
from headrace.control.episode import EpisodeDriver, EpisodeSpec
from headrace.control.grading import Graded, Grading
from headrace.control.opening import RunInterrupted
from headrace.control.past import AttemptPast
from headrace.control.sealing import Sealed
from headrace.ports import Leases
from headrace.records.batch import MemberResult
from headrace.records.checkpoint import InFlight
from headrace.records.execution import Lease
from headrace.records.ids import Address, EpisodeId, GroupId
from headrace.records.reward import RewardRule, reward_of
from headrace.records.segment import Sampling
from headrace.records.streams import stream
from headrace.records.task import Task
from headrace.records.terminal import InfraError, Terminal, Truncated
from headrace.records.verdict import Scored
from headrace.scheduling.retry import RetryRule
from headrace.scheduling.staleness import Sampled

NO_ATTEMPTS: Mapping[int, AttemptPast] = {}


class MemberSpec(msgspec.Struct, frozen=True):
    """What to run: one member of a group.

    Attributes:
        group: the drawn task.
        member: position in the group.
        task: what is asked.
        task_address: its address.
        sampling: how to sample.
        pin_version: version to use throughout; None follows publication.
        past: its attempts under earlier processes of the run, by number.
    """

    group: GroupId
    member: int
    task: Task
    task_address: Address
    sampling: Sampling
    pin_version: int | None
    past: Mapping[int, AttemptPast] = NO_ATTEMPTS


class MemberOutcome(msgspec.Struct, frozen=True):
    """The last state of a member.

    Attributes:
        result: what counts.
        sampled: its sampled tokens by version.
        paths: paths that hold sampled tokens of their own.
        num_tokens: length of all its paths.
        components: named scores behind the reward; None when the verdict carries none.
        is_truncated: whether a limit ended it.
    """

    result: MemberResult
    sampled: Sampled
    paths: tuple[int, ...]
    num_tokens: int
    components: dict[str, float] | None = None
    is_truncated: bool = False

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the policy sampled, which is what it trains on."""
        return sum([count for _, count in self.sampled.tokens])


class MemberRunner:
    """Runs members; holds no state of any."""

    def __init__(  # noqa: PLR0913 - what it acts through and the rules that it goes by
        self,
        driver: EpisodeDriver,
        grading: Grading,
        leases: Leases,
        *,
        retry: RetryRule,
        reward_rule: RewardRule,
        seed: int,
        in_flight: InFlight = "resume",
        breakers: Breakers | None = None,
    ) -> None:
        self._driver = driver
        self._grading = grading
        self._leases = leases
        self._retry = retry
        self._reward_rule = reward_rule
        self._seed = seed
        self._in_flight: InFlight = in_flight
        self._breakers = breakers

    @property
    def is_group_scoped(self) -> bool:
        """Whether verdicts need all members together."""
        return self._grading.is_group_scoped

    async def roll(self, spec: MemberSpec) -> Sealed:
        """The attempt that counts. What ended with its process is no failure of the member's, and has no bound."""
        attempt, failures = 0, 0
        while True:
            if attempt in spec.past and spec.past[attempt].is_void:
                attempt += 1
                continue
            sealed = await self._attempt(spec, attempt)
            attempt += 1
            terminal = sealed.transcript.terminal
            if isinstance(terminal, InfraError) and terminal.boundary == RunInterrupted.boundary:
                if terminal.is_effect_unknown:
                    return sealed
                continue
            failures += 1
            if not self._retry.may_attempt_again(terminal, failures):
                return sealed
            if attempt not in spec.past:
                jitter = float(stream(self._seed, "backoff", str(sealed.transcript.episode)).random())
                await asyncio.sleep(self._retry.delay_s(failures, jitter))

    async def _attempt(self, spec: MemberSpec, attempt: int) -> Sealed:
        """The sealed attempt: recalled, gone on with, or made."""
        past = spec.past.get(attempt)
        if past is not None and past.sealed is not None:
            return self._driver.recall(past)
        episode = EpisodeId(spec.group, spec.member, attempt)
        pin, seed = spec.pin_version, self._seed
        run = EpisodeSpec(
            episode, spec.task, spec.task_address, spec.sampling, pin, seed, past=past, in_flight=self._in_flight
        )
        if self._breakers is None:
            return await self._driver.run(run, self._grant(run))
        await self._breakers.enter(spec.task.environment)
        terminal: Terminal | None = None
        try:
            sealed = await self._driver.run(run, self._grant(run))
            terminal = sealed.transcript.terminal
            return sealed
        finally:
            self._breakers.leave(spec.task.environment, terminal)

    def _grant(self, run: EpisodeSpec) -> Lease:
        return self._leases.grant(run.episode, asyncio.get_running_loop().time() + run.task.budget.wall_s)

    def recall(self, past: AttemptPast) -> MemberOutcome:
        """Outcome of an attempt that counts, from the journal: its last verdict is the one that does."""
        sealed = self._driver.recall(past)
        verdict = sealed.verdicts[-1]
        return self._outcome(sealed, Graded(verdict, verdict.address))

    async def grade(self, sealed: Sequence[Sealed], task: Task) -> list[MemberOutcome]:
        """Outcomes of sealed members, in the order given."""
        verdicts = await self._grading.grade(sealed, task)
        return [self._outcome(item, verdicts[item.address]) for item in sealed]

    def _outcome(self, sealed: Sealed, graded: Graded) -> MemberOutcome:
        transcript, verdict = sealed.transcript, graded.verdict
        reward = reward_of(verdict, self._reward_rule)
        counts: dict[int, int] = {}
        for segment in transcript.sampled():
            if segment.policy is not None and segment.ids:
                counts[segment.policy.version] = counts.get(segment.policy.version, 0) + len(segment)
        return MemberOutcome(
            result=MemberResult(transcript.episode, sealed.address, graded.address, reward),
            sampled=Sampled(tuple(sorted(counts.items()))),
            paths=transcript.sampled_paths,
            num_tokens=transcript.num_tokens,
            components=dict(verdict.outcome.components) if isinstance(verdict.outcome, Scored) else None,
            is_truncated=isinstance(transcript.terminal, Truncated),
        )
