"""From the members of a batch to its rows: filters on rewards, advantages, what was removed.

Invariant: a member without a reward, or whose reward a filter took away, has no row and no vote in any statistic. Rows stand
in the order (ordinal, member, path); a row carries the grader's reward, and whatever filters and penalties changed is in
its advantage. Nothing here reads a clock or asks anybody.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec

from headrace.algorithms.advantages import MemberData, batch_advantages
from headrace.algorithms.filters import is_informative, overlong_penalty
from headrace.config import AlgorithmSection
from headrace.control.collecting import Group
from headrace.control.member import MemberOutcome
from headrace.records.batch import BatchRow, MembersRemoved
from headrace.records.ids import Address, GroupId
from headrace.records.learning.filters import Filters
from headrace.records.update import RowScore

Rewards = list[list[float | None]]
FIRST: Mapping[GroupId, int] = {}
OVERLONG_MASK, OVERLONG_SHAPE, GATE = "overlong_mask", "overlong_shape", "statistical_gate"


class BatchShaper:
    """Rewards, rows and advantages of one batch.

    Args:
        groups: in batch order.
        algorithm: the learning signal.
        uses: which use it is of groups that trained before.
    """

    def __init__(
        self, groups: Sequence[Group], algorithm: AlgorithmSection, uses: Mapping[GroupId, int] = FIRST
    ) -> None:
        self._groups = tuple(groups)
        self._algorithm = algorithm
        self._uses = uses
        self._removed: Counter[tuple[str, str]] = Counter()
        self._plain: tuple[BatchRow, ...] | None = None
        self._rewards: Rewards = [
            [self._shaped(outcome, group) for outcome in group.outcomes] for group in self._groups
        ]

    @property
    def removed(self) -> tuple[MembersRemoved, ...]:
        """What filters did to members, by filter and difficulty."""
        return tuple(MembersRemoved(*key, count) for key, count in sorted(self._removed.items()))

    @property
    def difficulties(self) -> dict[Address, str]:
        """Stratum of each transcript."""
        return {
            outcome.result.transcript: group.task.difficulty
            for group in self._groups
            for outcome in group.outcomes
            if outcome.result.transcript is not None
        }

    def extended(self, groups: Sequence[Group]) -> "BatchShaper":
        """The same batch with more groups."""
        everyone = sorted([*self._groups, *groups], key=lambda group: group.id)
        return BatchShaper(everyone, self._algorithm, self._uses)

    def mean_reward(self) -> float:
        """Mean over members with a reward that train for the first time, as the grader gave it; 0 when there is none."""
        first = [outcome for group in self._groups if group.id not in self._uses for outcome in group.outcomes]
        given = [outcome.result.reward for outcome in first if outcome.result.reward is not None]
        return sum(given) / len(given) if given else 0.0

    def rows(self) -> tuple[BatchRow, ...]:
        """Rows of every member that has a reward and an advantage, before what only the trainer knows."""
        if self._plain is None:
            self._plain = self._rows({})
        return self._plain

    def rows_after(self, scores: Sequence[RowScore], without: Collection[Address] = ()) -> tuple[BatchRow, ...]:
        """The same rows, with advantages from rewards less the penalties that the trainer measured.

        Args:
            scores: of the rows.
            without: transcripts that leave rows and baselines alike, as if they had no reward.
        """
        penalties: dict[tuple[str, int], float] = {
            (score.transcript, score.path): score.penalty_sum for score in scores if score.penalty_sum
        }
        return self._rows(penalties, without) if penalties or without else self.rows()

    def count_rejected(self, transcripts: Collection[Address]) -> None:
        """Counts members that the statistical gate took out."""
        for group in self._groups if transcripts else ():
            found = sum(outcome.result.transcript in transcripts for outcome in group.outcomes)
            if found:
                self._removed[GATE, group.task.difficulty] += found

    def _shaped(self, outcome: MemberOutcome, group: Group) -> float | None:
        """The reward that counts."""
        filters, reward = self._algorithm.filters, outcome.result.reward
        if reward is None or outcome.result.transcript is None:
            return None
        match filters.overlong:
            case "keep":
                return reward
            case "mask":
                if outcome.is_truncated:
                    self._removed[OVERLONG_MASK, group.task.difficulty] += 1
                    return None
                return reward
            case "shape":
                penalty = self._penalty(outcome, group, filters)
                if penalty:
                    self._removed[OVERLONG_SHAPE, group.task.difficulty] += 1
                return reward + penalty

    @staticmethod
    def _penalty(outcome: MemberOutcome, group: Group, filters: Filters) -> float:
        budget = group.task.budget.episode_tokens
        return overlong_penalty(
            outcome.num_tokens,
            budget=budget,
            buffer=min(filters.overlong_buffer, budget),
            penalty=filters.overlong_penalty,
        )

    def _rows(
        self, penalties: Mapping[tuple[str, int], float], without: Collection[Address] = ()
    ) -> tuple[BatchRow, ...]:
        coefficient = self._algorithm.kl.coefficient
        rewards: Rewards = [
            [
                None
                if reward is None or o.result.transcript in without
                else reward - coefficient * sum(penalties.get((str(o.result.transcript), p), 0.0) for p in o.paths)
                for reward, o in zip(of_group, group.outcomes, strict=True)
            ]
            for of_group, group in zip(self._rewards, self._groups, strict=True)
        ]
        data = MemberData(
            rewards,
            [[outcome.sampled_tokens for outcome in group.outcomes] for group in self._groups],
            [[outcome.components for outcome in group.outcomes] for group in self._groups],
        )
        advantages = batch_advantages(self._algorithm.advantage, data, self._algorithm.estimator)
        return tuple(
            row
            for group, of_rewards, of_advantages in zip(self._groups, rewards, advantages, strict=True)
            for row in _rows_of(group, of_rewards, of_advantages, self._uses.get(group.id, 1))
        )


def _rows_of(group: Group, rewards: list[float | None], advantages: list[float | None], use: int) -> list[BatchRow]:
    rows: list[BatchRow] = []
    for member, outcome in enumerate(group.outcomes):
        reward, advantage, transcript = outcome.result.reward, advantages[member], outcome.result.transcript
        if advantage is None or rewards[member] is None or reward is None or transcript is None:
            continue
        row = BatchRow(
            transcript=transcript,
            path=0,
            group=group.id,
            member=member,
            use=use,
            reward=reward,
            advantage=advantage,
            weight=1.0,
        )
        rows.extend(row if path == row.path else msgspec.structs.replace(row, path=path) for path in outcome.paths)
    return rows


def filter_reason(group: Group, filters: Filters) -> str | None:
    """Why a finished group may not train by a rule on its rewards; None when it may."""
    if not filters.dynamic_sampling:
        return None
    rewards = [outcome.result.reward for outcome in group.outcomes]
    if is_informative(rewards, filters.tolerance):
        return None
    return "dynamic sampling: all rewards are equal"
