"""Named random streams. Every draw is a pure function of (seed, names, position), so order of execution is irrelevant.

Example: `stream(7, "tasks", "train").random()` gives the same number in every process.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), Philox4x64-10 as in numpy.
"""

import hashlib
from collections.abc import Iterator

import numpy as np


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


def keyed_stream(key: int, position: int = 0) -> np.random.Generator:
    """Generator of a known key; `position` skips that many blocks of four 64-bit draws."""
    bits = np.random.Philox(key=key)
    return np.random.Generator(bits.advance(position) if position else bits)
