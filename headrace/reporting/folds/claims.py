"""The environment's claim beside the grader's verdict. They are two things; where they differ is counted, not settled."""

import msgspec

from headrace.reporting.folds.index import RunIndex
from headrace.reporting.folds.lives import TranscriptLife
from headrace.reporting.quantities import ratio


class ClaimRow(msgspec.Struct, frozen=True):
    """Episodes of one claim. Unit: episodes.

    Attributes:
        purpose: why they ran.
        claim: terminal label.
        success: verdict at or above the success bound.
        partial: verdict between 0 and the bound.
        failure: verdict 0.
        absent: no verdict.
        disagreements: claims of success or failure that the verdict contradicts.
    """

    purpose: str
    claim: str
    success: int
    partial: int
    failure: int
    absent: int
    disagreements: int


class Claims(msgspec.Struct, frozen=True):
    """The table.

    Attributes:
        rows: by purpose and claim.
        compared: episodes with both a claim of success or failure and a verdict.
        disagreements: those that differ.
        rate: disagreements over compared; None when nothing compares.
    """

    rows: tuple[ClaimRow, ...]
    compared: int
    disagreements: int
    rate: float | None


def claims(index: RunIndex) -> Claims:
    """The table so far."""
    table: dict[tuple[str, str], list[TranscriptLife]] = {}
    for life in index.transcripts.values():
        table.setdefault((life.episode.group.purpose, life.sealed.terminal), []).append(life)
    rows = tuple(_row(*key, table[key], index.success_bound) for key in sorted(table))
    compared = sum(r.success + r.partial + r.failure for r in rows if r.claim in ("success", "failure"))
    disagreements = sum(row.disagreements for row in rows)
    return Claims(rows, compared, disagreements, ratio(disagreements, compared))


def _row(purpose: str, claim: str, lives: list[TranscriptLife], bound: float) -> ClaimRow:
    rewards = [life.reward for life in lives]
    success = sum(reward is not None and reward >= bound for reward in rewards)
    absent = sum(reward is None for reward in rewards)
    failure = sum(reward == 0 for reward in rewards)
    against = {"success": len(rewards) - absent - success, "failure": success}
    return ClaimRow(
        purpose, claim, success, len(rewards) - absent - success - failure, failure, absent, against.get(claim, 0)
    )
