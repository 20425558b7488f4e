"""What a child wrote to its standard streams: a bounded tail for error messages, and whole in a file on request.

Invariant: reading never stops while the child lives, so a child that writes much is never blocked by it.
"""

import asyncio
import contextlib
import os
from pathlib import Path

TAIL_BYTES = 4096
_READ_BYTES = 1 << 16


class OutputTail:
    """The read end of a child's output."""

    def __init__(self, log_path: Path | None) -> None:
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._tail = bytearray()
        self._log = None if log_path is None else log_path.open("ab", buffering=0)
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()

    def watch(self) -> None:
        """Reads from now on; the child holds the only write end."""
        os.close(self.write_fd)
        self._loop.add_reader(self._read_fd, self._read)

    async def drained(self, timeout_s: float) -> None:
        """Returns once all output is read; gives up on a descendant that still holds the stream."""
        await asyncio.wait((self._ended,), timeout=timeout_s)
        if not self._ended.done():
            self._finish()

    def quoted(self) -> str:
        """The last lines, ready to be appended to a message; empty when nothing was written."""
        text = bytes(self._tail).decode("utf-8", "replace").strip()
        return f"; its last output:\n{text}" if text else ""

    def close(self) -> None:
        """Frees the pipe of a child that was never started."""
        os.close(self.write_fd)
        os.close(self._read_fd)
        if self._log is not None:
            self._log.close()

    def _read(self) -> None:
        try:
            data = os.read(self._read_fd, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._finish()
            return
        if self._log is not None:
            # A full disk must not take the child down with it.
            with contextlib.suppress(OSError):
                self._log.write(data)
        self._tail += data
        del self._tail[:-TAIL_BYTES]

    def _finish(self) -> None:
        self._loop.remove_reader(self._read_fd)
        os.close(self._read_fd)
        if self._log is not None:
            self._log.close()
        self._ended.set_result(None)
