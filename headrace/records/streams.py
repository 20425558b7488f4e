"""Named random streams. Every draw is a pure function of (seed, names, position), so order of execution is irrelevant.

Example: `stream(7, "tasks", "train").random()` gives the same number in every process.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), Philox4x64-10 as in numpy.
"""

import hashlib
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

_TWO_WORDS = struct.Struct("<2Q")


def stream_key(seed: int, *names: str | int) -> int:
    """128-bit Philox key of a named stream."""
    return int.from_bytes(stream_key_bytes(seed, *names), "little")


def stream_key_bytes(seed: int, *names: str | int) -> bytes:
    """The key's 16 bytes, the least significant first."""
    label = "\x1f".join(map(str, (seed, *names)))
    return hashlib.sha256(label.encode()).digest()[:16]


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """Generator at the start of the named stream."""
    return np.random.Generator(np.random.Philox(key=stream_key(seed, *names)))


def uniforms(seed: int, *names: str | int) -> Iterator[float]:
    """Uniform numbers in [0, 1) of the named stream, without end, fetched in blocks."""
    generator = stream(seed, *names)
    while True:
        yield from generator.random(1024).tolist()


class Streams:
    """One generator, set to the start of any named stream: what `stream` gives, in a tenth of the time.

    Args:
        seed: of all of them.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._bits = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._bits)
        # Tuples: numpy's setter takes their numbers out faster than those of its own arrays.
        self._place: dict[str, tuple[int, ...]] = {"counter": (0,) * 4, "key": (0, 0)}
        self._start: Any = {**self._bits.state, "state": self._place, "buffer": (0,) * 4}

    def at(self, *names: str | int) -> np.random.Generator:
        """The generator at the start of the named stream, until the next call."""
        self._place["key"] = _TWO_WORDS.unpack(stream_key_bytes(self._seed, *names))
        self._bits.state = self._start
        return self._generator


def keyed_stream(key: int, position: int = 0) -> np.random.Generator:
    """Generator of a known key; `position` skips that many blocks of four 64-bit draws."""
    bits = np.random.Philox(key=key)
    return np.random.Generator(bits.advance(position) if position else bits)
