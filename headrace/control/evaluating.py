"""Held-out evaluation: its own purpose, pinned to a committed version, without credit and without ordinals.

Invariant: a round uses exactly one version, whatever is published meanwhile; an episode without a verdict is in no mean.

* consumes: a version.
* waits for: all episodes of the round.
* unblocked by: the last verdict.
* produces: `EvaluationStarted`, `EvaluationCompleted`.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from headrace.control.context import RunContext
from headrace.control.member import MemberOutcome, MemberRunner, MemberSpec
from headrace.control.past import AttemptPast, RoundPast, RunPast
from headrace.control.recorder import sealed_row
from headrace.control.together import all_of
from headrace.records.evaluation import EvaluationCompleted, EvaluationStarted, StratumScore
from headrace.records.ids import GroupId, PolicyId, PolicyRef, Purpose
from headrace.records.segment import Sampling
from headrace.records.task import Task

NO_ATTEMPTS: Mapping[int, Mapping[int, AttemptPast]] = {}


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """What rounds go by.

    Attributes:
        policy_id: which policy.
        every_updates: a round after every so many updates; 0 for none.
        temperatures: one round for each.
        success_bound: a reward at or above it is a success.
        last_update: the run's last update, which is always evaluated.
    """

    policy_id: PolicyId
    every_updates: int
    temperatures: tuple[float, ...]
    success_bound: float
    last_update: int


class Evaluator:
    """Runs held-out rounds."""

    def __init__(
        self,
        runner: MemberRunner,
        tasks: Sequence[Task],
        context: RunContext,
        settings: EvaluationSettings,
    ) -> None:
        self._runner = runner
        self._tasks = tasks
        self._recorder = context.recorder
        self._versions = context.versions
        self._changed = context.changed
        self._settings = settings
        self._next_ordinal = 0
        self._past: dict[str, RoundPast] = {}

    def restore(self, past: RunPast) -> list[int]:
        """Versions with rounds to go on with: those that were running, and those of the newest version not begun."""
        self._past = {item.key: item for item in past.rounds}
        self._next_ordinal = sum(item.episodes for item in past.rounds)
        versions = {item.version for item in past.open_rounds}
        if self.is_due(past.version):
            keys = {self._key(past.version, temperature) for temperature in self._settings.temperatures}
            versions |= {past.version} if keys - self._past.keys() else set()
        return sorted(versions)

    def _key(self, version: int, temperature: float) -> str:
        return f"{PolicyRef(self._settings.policy_id, version)}/{temperature}"

    def is_due(self, version: int) -> bool:
        """Whether a version gets a round."""
        settings = self._settings
        if settings.every_updates == 0 or not self._tasks:
            return False
        return version % settings.every_updates == 0 or version == settings.last_update

    async def evaluate(self, version: int) -> None:
        """One round per temperature at a version that the caller has pinned; unpins it."""
        try:
            await all_of(self._round(version, t) for t in self._settings.temperatures)
        finally:
            self._versions.unpin(version)
            self._changed.notify()

    async def _round(self, version: int, temperature: float) -> None:
        recorder, policy = self._recorder, PolicyRef(self._settings.policy_id, version)
        key, begin_s = self._key(version, temperature), recorder.elapsed_s
        past = self._past.get(key)
        if past is not None and past.is_complete:
            return
        rows = tuple(sealed_row("task", task) for task in self._tasks)
        started = recorder.record(EvaluationStarted(policy, temperature, len(self._tasks)), key=key, rows=rows)
        first, known = self._next_ordinal, NO_ATTEMPTS
        if past is None:
            self._next_ordinal += len(self._tasks)
        else:
            first, known, begin_s = past.first_ordinal, past.attempts, past.started_ns / 1e9
        specs = [
            MemberSpec(
                GroupId.of(Purpose.EVAL, ordinal),
                0,
                task,
                row.address,
                Sampling(temperature),
                version,
                known.get(ordinal, {}),
            )
            for ordinal, (task, row) in enumerate(zip(self._tasks, rows, strict=True), start=first)
        ]
        outcomes = await all_of(self._episode(spec) for spec in specs)
        recorder.record(
            self._result(policy, temperature, outcomes, recorder.elapsed_s - begin_s), key=key, cause=started
        )

    async def _episode(self, spec: MemberSpec) -> MemberOutcome:
        sealed = await self._runner.roll(spec)
        (outcome,) = await self._runner.grade([sealed], spec.task)
        return outcome

    def _result(
        self, policy: PolicyRef, temperature: float, outcomes: Sequence[MemberOutcome], wall_s: float
    ) -> EvaluationCompleted:
        counts: dict[tuple[str, str], list[int]] = {}
        unscored = 0
        for task, outcome in zip(self._tasks, outcomes, strict=True):
            reward = outcome.result.reward
            if reward is None:
                unscored += 1
                continue
            count = counts.setdefault((task.family, task.difficulty), [0, 0])
            count[0] += 1
            count[1] += reward >= self._settings.success_bound
        strata = tuple(
            StratumScore(family, difficulty, graded, successes)
            for (family, difficulty), (graded, successes) in sorted(counts.items())
        )
        return EvaluationCompleted(
            policy=policy,
            temperature=temperature,
            graded=sum(stratum.graded for stratum in strata),
            successes=sum(stratum.successes for stratum in strata),
            unscored=unscored,
            strata=strata,
            wall_s=wall_s,
        )
