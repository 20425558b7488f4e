"""Quotas: the least share of each batch that a stratum gets while it has groups to give.

Hard tasks finish late. Where a batch takes whoever is ready, they come in clumps or not at all; a quota holds places for
them, and the update waits for their groups as long as any is open. A stratum without open groups holds no place.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from headrace.scheduling.ordering import BatchOrder, OpenGroup


class Quotas(msgspec.Struct, frozen=True):
    """Places held by stratum.

    Attributes:
        shares: least share of a batch, by stratum; empty for none.
    """

    shares: dict[str, float]

    def choose(
        self, order: BatchOrder, groups: Sequence[OpenGroup], strata: Mapping[int, str], version: int, *, is_last: bool
    ) -> tuple[int, ...] | None:
        """Ordinals of the next batch, rising; None to wait.

        Args:
            order: chooses the groups of the places that no quota holds.
            groups: every open group.
            strata: of each, by ordinal.
            version: version that the next gradient is taken at.
            is_last: no further group will come.
        """
        if not self.shares:
            return order.choose(groups, version, is_last)
        size, held = order.size(len(groups), is_last), list[OpenGroup]()
        for stratum, share in sorted(self.shares.items()):
            mine = [group for group in groups if strata[group.ordinal] == stratum]
            places = min(math.ceil(share * size - 1e-9), len(mine))
            ready = sorted((rank, group.ordinal, group) for group in mine if (rank := group.ready_rank) is not None)
            if len(ready) < places:
                return None
            held += [group for _, _, group in ready[:places]]
        if size == 0 or len(held) == size:
            return tuple(sorted(group.ordinal for group in held)) or None
        others = [group for group in groups if group not in held]
        rest = msgspec.structs.replace(order, batch_groups=size - len(held)).choose(others, version, is_last)
        return None if rest is None else tuple(sorted([*rest, *(group.ordinal for group in held)]))
