"""The wire between parent and child: a 4-byte little-endian length, then one msgpack array.

Invariant: whatever bytes arrive, the reader holds at most one frame bound of them and either yields well-formed frames
or raises `FrameError`; after that it is never used again.
"""

import enum
import struct

import msgspec

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""Largest body of one frame. What is larger travels as a file."""

_LENGTH = struct.Struct("<I")


class FrameError(Exception):
    """The peer sent something that is not a frame, or a frame over the bound."""


class Kind(enum.IntEnum):
    """What a frame is. CALL goes to the child; all others come from it."""

    CALL = 0
    HELLO = 1
    REPLY = 2
    ITEM = 3
    REJECT = 4
    FAIL = 5
    BEAT = 6


class Frame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One message.

    Attributes:
        kind: what it is.
        call_id: which call it belongs to; 0 for HELLO and BEAT.
        text: method of a CALL, message of a REJECT or FAIL.
        payload: bytes that only the two ends understand.
    """

    kind: Kind
    call_id: int
    text: str = ""
    payload: bytes = b""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Frame)


def encode_frame(frame: Frame) -> bytes:
    """Length and body. Raises FrameError when the body is over the bound."""
    body = _ENCODER.encode(frame)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"frame of {len(body)} bytes; the bound is {MAX_FRAME_BYTES}: hand large data over as a file")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now, in order. Raises FrameError on anything that is not a frame."""
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(buffer, start)
            if size > self._max_frame_bytes:
                raise FrameError(f"a frame of {size} bytes was announced; the bound is {self._max_frame_bytes}")
            end = start + _LENGTH.size + size
            if len(buffer) < end:
                break
            try:
                with memoryview(buffer) as view, view[start + _LENGTH.size : end] as body:
                    frames.append(_DECODER.decode(body))
            except (msgspec.MsgspecError, ValueError) as error:
                raise FrameError(f"a frame of {size} bytes could not be read: {error}") from error
            start = end
        if start:
            del buffer[:start]
        return frames
