"""Retention: which checkpoints are kept, and which files nothing needs any more.

Invariant: the newest checkpoint is always kept, and a file goes only when no kept checkpoint names it and no version that
may still be loaded has it as its weights.
"""

from collections.abc import Collection, Mapping, Sequence

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

    def needed(
        self, manifests: Sequence[Manifest], weights: Mapping[int, Address], held: Collection[int]
    ) -> set[Address]:
        """Files that stay: those of kept checkpoints, and the weights of versions that may still be loaded.

        These are version 0, where every comparison begins; the newest; those that are held; and every version after the
        oldest of the newest `keep_last` checkpoints, since a recovery that falls back to that one loads recorded weights
        where arithmetic is not reproducible. Without a checkpoint that is every version.

        Example: of versions 0 to 45 with checkpoints 10, 20, 30, 40 and keep_last 2, version 0 and versions 30 to 45 stay.

        Args:
            manifests: checkpoints that were not dropped yet, in order.
            weights: of every committed version.
            held: versions to which a held-out round under way is pinned.
        """
        oldest = manifests[-self.keep_last :][0].version if manifests else 0
        loadable = {0, max(weights, default=0), *held}
        files = {blob for item in self.kept(manifests) for blob in item.blobs}
        return files | {address for version, address in weights.items() if version > oldest or version in loadable}

    def unneeded(
        self, manifests: Sequence[Manifest], weights: Mapping[int, Address], held: Collection[int]
    ) -> tuple[Address, ...]:
        """Files of checkpoints and of versions that do not stay, in order of address; arguments as of `needed`."""
        files = {blob for item in manifests for blob in item.blobs} | set(weights.values())
        return tuple(sorted(files - self.needed(manifests, weights, held)))
