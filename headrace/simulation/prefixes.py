"""What of a prefix a simulated engine has in its cache."""

from collections.abc import Sequence


class PrefixCache:
    """How many tokens of a prefix are in the cache, per key and version; the oldest entries go first."""

    def __init__(self, num_entries: int) -> None:
        self._num_entries = num_entries
        self._entries: dict[str, tuple[int, int]] = {}

    def put(self, key: str, version: int, num_tokens: int) -> None:
        self._entries.pop(key, None)
        self._entries[key] = (version, num_tokens)
        if len(self._entries) > self._num_entries:
            del self._entries[next(iter(self._entries))]

    def tokens(self, keys: Sequence[str], version: int) -> int:
        """Tokens cached under this very version, by the key that holds most."""
        found = [self._entries[key] for key in keys if key in self._entries]
        return max((count for held, count in found if held == version), default=0)
