"""The child's end of the process channel without msgspec, for the inside of a sandbox.

The same frames as `headrace.processes.frames`: a 4-byte little-endian length, then the msgpack array
`[kind, call_id, text, payload]`. Only what those frames use of msgpack is read.
"""

import os
import struct
from typing import NamedTuple

HELLO = 1
REPLY = 2
REJECT = 4


class Request(NamedTuple):
    """One call of the parent.

    Attributes:
        call_id: names it in the answer.
        method: what is asked.
        payload: its argument.
    """

    call_id: int
    method: str
    payload: bytes


def receive(fd: int) -> Request | None:
    """The next call; None at the end of the stream."""
    header = _read(fd, 4)
    if header is None:
        return None
    body = _read(fd, int.from_bytes(header, "little"))
    if body is None or body[0] != 0x94:
        return None
    _, position = _value(body, 1)
    call_id, position = _value(body, position)
    method, position = _value(body, position)
    payload, position = _value(body, position)
    assert isinstance(call_id, int) and isinstance(method, bytes) and isinstance(payload, bytes)
    return Request(call_id, method.decode(), payload)


def send(fd: int, kind: int, call_id: int = 0, *, text: str = "", payload: bytes = b"") -> None:
    """Writes one frame whole."""
    encoded = text.encode()
    body = struct.pack(">BBBIBI", 0x94, kind, 0xCE, call_id, 0xDB, len(encoded)) + encoded
    body += struct.pack(">BI", 0xC6, len(payload)) + payload
    rest = memoryview(struct.pack("<I", len(body)) + body)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _read(fd: int, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(fd, size - len(data))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


_UNSIGNED_SIZES = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_LENGTH_SIZES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}


def _value(body: bytes, position: int) -> tuple[int | bytes, int]:
    """An unsigned integer, or the bytes of a text or binary value, and where the next one starts."""
    tag = body[position]
    position += 1
    if tag < 0x80:
        return tag, position
    if tag in _UNSIGNED_SIZES:
        end = position + _UNSIGNED_SIZES[tag]
        return int.from_bytes(body[position:end], "big"), end
    if 0xA0 <= tag < 0xC0:
        size = tag & 0x1F
    else:
        width = _LENGTH_SIZES[tag]
        size = int.from_bytes(body[position : position + width], "big")
        position += width
    return body[position : position + size], position + size
