"""Quotas: the least share of each batch that a stratum gets while it has groups to give.

Hard tasks finish late. Where a batch takes whoever is ready, they come in clumps or not at all; a quota holds places for
them, and the update waits for their groups as long as any is open. A stratum without open groups holds no place. What takes
the places of rejected samples goes by the same shares, only that nobody waits any more: a place that unfinished groups hold
stays empty.
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

    def replace(
        self,
        ready: Sequence[OpenGroup],
        strata: Mapping[int, str],
        left: Mapping[str, float],
        *,
        size: int,
        places: int,
    ) -> tuple[int, ...]:
        """Ordinals of the groups that take the places of rejected samples, rising.

        Args:
            ready: finished groups that may come, by completion.
            strata: of these and of every unfinished group, by ordinal.
            left: what is left of the batch by stratum, in groups.
            size: groups of a whole batch.
            places: most groups that may come.

        Example: of 4 places half are held for hard tasks, 1 hard and 2 easy groups are left and one may come: a hard one
        does, or nobody while hard ones only run.
        """
        chosen, free = list[int](), places
        for stratum, share in sorted(self.shares.items()):
            lacking = math.ceil(math.ceil(share * size - 1e-9) - left.get(stratum, 0.0) - 1e-9)
            held = max(0, min(lacking, free, sum(name == stratum for name in strata.values())))
            chosen += [group.ordinal for group in ready if strata[group.ordinal] == stratum][:held]
            free -= held
        others = [group.ordinal for group in ready if group.ordinal not in chosen]
        return tuple(sorted([*chosen, *others[:free]]))
