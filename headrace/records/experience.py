"""Experience that trains a second time: the rule, and what a batch says of it.

A group is trained once in the ledger, at its first use; later uses hold no slot and take no ordinal.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from headrace.errors import ConfigError
from headrace.records.ids import GroupId
from headrace.records.learning.advantages import AdvantageName
from headrace.records.learning.choice import tag_of
from headrace.records.learning.corrections import WEIGHTING, Correction
from headrace.records.learning.kl import Kl


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whether groups that trained before fill up a batch, and which.

    Support condition: every token that the trained policy could choose had a probability above 0 under the version that
    sampled it, so the ratio of the two exists. Tokens are sampled by temperature alone, without any cut of the support, so
    it holds up to rounding; what the old version hardly ever sampled is still hardly ever in the data, and no weight
    brings it back. Weighting: each replayed token carries the log-prob recorded when it was sampled, and the correction that
    the algorithm names weighs it by policy over that behaviour, truncated or masked at that correction's own bound. A
    configuration without such a weight is refused, since old data would count as on-policy. Advantages are against the
    group's own members, who were sampled together; estimators over the whole batch see replayed members beside new ones.

    Attributes:
        kind: `none`, each transcript trains once; `recent`: the groups of smallest lag first.
        uses: plans that a group may be in, the first included; at least 2.
        max_lag: largest lag of a replayed token, in updates; at least 1.
        share: of the batch that replayed groups may make up, above 0 and below 1. They come on top of the new ones, which
            are `schedule.batch_groups`: a quarter is one replayed group to three new ones.
    """

    kind: Literal["none", "recent"] = "none"
    uses: int = 2
    max_lag: int = 4
    share: float = 0.25


class ReplayedGroup(msgspec.Struct, frozen=True, gc=False):
    """A group in a batch that trained before.

    Attributes:
        group: which.
        use: which use of it this is, from 2.
        oldest_lag: lag of its oldest token, updates.
        mean_lag: token-weighted, updates.
    """

    group: GroupId
    use: int
    oldest_lag: int
    mean_lag: float


class RetiredGroup(msgspec.Struct, frozen=True, gc=False):
    """A trained group that is replayed no more.

    Attributes:
        group: which.
        reason: why.
    """

    group: GroupId
    reason: str


def check_replay(replay: Replay, corrections: Sequence[Correction], kl: Kl, advantage: AdvantageName) -> None:
    """Raises ConfigError for numbers out of bounds, and wherever old data would count as if this policy had sampled it."""
    if replay.kind == "none":
        return
    if replay.uses < 2 or replay.max_lag < 1 or not 0.0 < replay.share < 1.0:
        raise ConfigError(
            f"algorithm.replay: uses is {replay.uses}, at least 2; max_lag is {replay.max_lag}, at least 1; share is "
            f"{replay.share}, above 0 and below 1"
        )
    if not any(isinstance(item, WEIGHTING) for item in corrections):
        names = [tag_of(item) for item in corrections]
        raise ConfigError(
            f"algorithm.replay is {replay.kind} with corrections {names}: none weighs by policy over recorded behaviour, so "
            'old data would count as on-policy; set anchor = "old" and a correction such as '
            '{ kind = "sequence_mis", bound = 3.0 }, or replay.kind = "none"'
        )
    if kl.coefficient > 0 and kl.place == "loss" and not kl.importance:
        raise ConfigError(
            f"algorithm.replay is {replay.kind} with kl.coefficient {kl.coefficient} in the loss: its estimate would take "
            "old data as on-policy; set kl.importance = true"
        )
    if advantage == "gae":
        raise ConfigError(
            f"algorithm.replay is {replay.kind} with advantage gae: its returns would take old data as on-policy, and no "
            "weight stands in them; choose an advantage of the group"
        )
