"""Arrays in records: little-endian bytes whose dtype is in the type, seen through read-only numpy views.

An array object inside a frozen struct would break equality, hashing and the JSON Schema; bytes do not.
"""

from collections.abc import Iterable
from typing import Final, NewType

import numpy as np
import numpy.typing as npt

Int32Bytes = NewType("Int32Bytes", bytes)
"""Little-endian int32 values, 4 bytes each."""

Float32Bytes = NewType("Float32Bytes", bytes)
"""Little-endian IEEE 754 float32 values, 4 bytes each."""

_INT32: Final = np.dtype("<i4")
_FLOAT32: Final = np.dtype("<f4")
IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]


def int32_bytes(values: Iterable[int] | IntArray) -> Int32Bytes:
    """Bytes of the values. Raises OverflowError when one does not fit into 32 bits."""
    array: IntArray = np.asarray(values if isinstance(values, np.ndarray) else list(values), dtype=_INT32)
    return Int32Bytes(array.tobytes())


def float32_bytes(values: Iterable[float] | FloatArray) -> Float32Bytes:
    """Bytes of the values, rounded to float32."""
    array: FloatArray = np.asarray(values if isinstance(values, np.ndarray) else list(values), dtype=_FLOAT32)
    return Float32Bytes(array.tobytes())


def as_int32(data: Int32Bytes) -> IntArray:
    """Read-only view of shape [T]. Raises ValueError when the length is not a multiple of 4."""
    return np.frombuffer(data, _INT32)


def as_float32(data: Float32Bytes) -> FloatArray:
    """Read-only view of shape [T]. Raises ValueError when the length is not a multiple of 4."""
    return np.frombuffer(data, _FLOAT32)
