"""The parent's socket as an asyncio protocol.

Invariant: it breaks once, with one reason, whatever the cause: end of stream, bytes that are no frame, or a decision of
its owner. After that nothing is delivered.
"""

import asyncio
from collections.abc import Callable

from headrace.processes.frames import Frame, FrameError, FrameReader


class Channel(asyncio.Protocol):
    """Frames in, bytes out.

    Attributes:
        broken: resolves to the reason; an empty one is a plain end of stream.
        last_heard_s: loop time of the last bytes received.
    """

    def __init__(self, on_frame: Callable[[Frame], None], max_frame_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        self.broken: asyncio.Future[str] = loop.create_future()
        self.last_heard_s = loop.time()
        self._loop = loop
        self._on_frame = on_frame
        self._reader = FrameReader(max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    async def writable(self) -> None:
        """Returns once the peer takes bytes again, or the channel is broken."""
        await self._writable.wait()

    def send(self, data: bytes) -> None:
        """Queues the bytes; callers wait for `writable` first."""
        assert self._transport is not None
        self._transport.write(data)

    def close(self, reason: str) -> None:
        """Breaks the channel; the peer sees the end of the stream."""
        if not self.broken.done():
            self.broken.set_result(reason)
        self._writable.set()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self.broken.done():
            return
        self.last_heard_s = self._loop.time()
        try:
            for frame in self._reader.feed(data):
                self._on_frame(frame)
        except FrameError as error:
            self.close(f"broke the protocol: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.broken.done():
            self.broken.set_result("" if exc is None else f"channel failed: {exc}")
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
