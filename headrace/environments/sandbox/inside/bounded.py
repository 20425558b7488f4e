"""Output of which the first three quarters and the last quarter of a bound are kept."""


class Bounded:
    """Bytes that arrive, as many of them as may be shown.

    Args:
        limit_bytes: how many are kept.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._head_bytes = limit_bytes * 3 // 4
        self._tail_bytes = limit_bytes - self._head_bytes
        self._head, self._tail, self._total = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        self._total += len(data)
        room = self._head_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room > 0 else data
        del self._tail[: -self._tail_bytes]

    def take(self) -> tuple[bytes, int]:
        """What to show and the true size; the next output starts anew."""
        total = self._total
        hidden = total - len(self._head) - len(self._tail)
        marker = f"\n[... {hidden} bytes cut ...]\n".encode() if hidden else b""
        shown = bytes(self._head) + marker + bytes(self._tail)
        self._head, self._tail, self._total = bytearray(), bytearray(), 0
        return shown, total
