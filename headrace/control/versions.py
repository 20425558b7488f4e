"""Which policy versions exist, which one is current, and which are pinned.

Invariant: version numbers rise by one and stand for one content each.
"""

from collections import Counter
from collections.abc import Mapping

from headrace.errors import InvariantViolated
from headrace.records.ids import Address


class Versions:
    """Committed versions of one policy; `weights` is shared with the sealer."""

    def __init__(self) -> None:
        self.weights: dict[int, Address] = {}
        self._pins: Counter[int] = Counter()

    @property
    def current(self) -> int:
        """Newest committed version. Raises InvariantViolated before the first one."""
        if not self.weights:
            raise InvariantViolated("no version is committed yet")
        return len(self.weights) - 1

    @property
    def pinned(self) -> frozenset[int]:
        """Versions that engines have to keep."""
        return frozenset(version for version, count in self._pins.items() if count > 0)

    def commit(self, version: int, weights: Address) -> None:
        """The version exists from here on. Raises InvariantViolated unless it follows the last one."""
        if version != len(self.weights):
            raise InvariantViolated(f"version {version} does not follow {len(self.weights) - 1}")
        self.weights[version] = weights

    def restore(self, weights: Mapping[int, Address]) -> None:
        """Takes over the versions of an earlier process."""
        for version in sorted(weights):
            self.commit(version, weights[version])

    def pin(self, version: int) -> None:
        """Keeps a version served until `unpin`."""
        self._pins[version] += 1

    def unpin(self, version: int) -> None:
        """Takes back one `pin`."""
        self._pins[version] -= 1
