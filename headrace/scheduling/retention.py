"""Retention: which checkpoints are kept, and which files nothing names any more.

Invariant: the newest checkpoint is always kept, and a file goes only when no kept manifest and no version that is served
names it.
"""

from collections.abc import Collection, Sequence

import msgspec

from headrace.records.checkpoint import Manifest
from headrace.records.ids import Address


class Retention(msgspec.Struct, frozen=True):
    """The configured rule.

    Attributes:
        keep_last: newest checkpoints that stay; at least 1.
        keep_every: checkpoints after every so many updates stay for good; 0 keeps none beyond the newest.
    """

    keep_last: int
    keep_every: int

    def kept(self, manifests: Sequence[Manifest]) -> list[Manifest]:
        """Those that stay, of all in order.

        Example: of versions 10, 20, 30, 40 with keep_last 1 and keep_every 20, versions 20 and 40 stay.
        """
        newest = manifests[-self.keep_last :]
        is_marked = [self.keep_every > 0 and item.version % self.keep_every == 0 for item in manifests]
        return [item for item, marked in zip(manifests, is_marked, strict=True) if marked or item in newest]

    def unnamed(self, manifests: Sequence[Manifest], served: Collection[Address]) -> tuple[Address, ...]:
        """Files of dropped manifests that nothing else names, in order of address.

        Args:
            manifests: all, in order.
            served: weights that engines hold or may have to load.
        """
        kept = self.kept(manifests)
        named = {blob for item in kept for blob in item.blobs} | set(served)
        dropped = {blob for item in manifests if item not in kept for blob in item.blobs}
        return tuple(sorted(dropped - named))
