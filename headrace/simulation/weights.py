"""Weights without parameters: a few bytes per version, by content address, from which engine and trainer score alike."""

import msgspec
import numpy as np

from headrace.errors import IntegrityError
from headrace.records.arrays import Float32Bytes, IntArray, float32_bytes
from headrace.records.ids import Address, PolicyId
from headrace.records.provenance import address_of, canonical_bytes, check_address


class SimulatedWeights(msgspec.Struct, frozen=True):
    """What stands for a weights file. Two histories of updates have two contents.

    Attributes:
        policy_id: which policy.
        version: number of updates behind it.
        previous: address of the version before; empty for version 0.
        plan: address of the batch plan of its update; for version 0 whatever names the starting point.
    """

    policy_id: PolicyId
    version: int
    previous: str
    plan: str

    @property
    def address(self) -> Address:
        return address_of(canonical_bytes(self))

    def logprobs(self, ids_T: IntArray) -> Float32Bytes:
        """Log-probs [T - 1] of the tokens after the first; other weights give others."""
        digits = self.address
        level, slope = int(digits[:8], 16) / 2**32, int(digits[8:16], 16) / 2**32
        return float32_bytes((-1.0 - level - slope * (ids_T[1:] % 8) / 8).astype(np.float32))


class WeightShelf:
    """Weights by content address, in memory; the trainer writes, engines read."""

    def __init__(self) -> None:
        self._data: dict[Address, bytes] = {}

    def put(self, weights: SimulatedWeights) -> Address:
        """The address under which they now lie."""
        data = canonical_bytes(weights)
        address = address_of(data)
        self._data[address] = data
        return address

    def read(self, address: Address) -> SimulatedWeights:
        """The weights at an address.

        Raises:
            KeyError: when there are none.
            IntegrityError: when the bytes are damaged.
        """
        data = self._data[address]
        check_address(address, data, "weights")
        try:
            return msgspec.msgpack.decode(data, type=SimulatedWeights)
        except msgspec.DecodeError as error:
            raise IntegrityError(f"weights {address}: {error}") from error

    def holds(self, address: Address) -> bool:
        """Whether there are weights at the address."""
        return address in self._data

    def addresses(self) -> tuple[Address, ...]:
        """Of everything that lies on it."""
        return tuple(self._data)

    def remove(self, address: Address) -> None:
        """Takes the weights off the shelf, if they are there."""
        self._data.pop(address, None)

    def damage(self, address: Address) -> None:
        """Flips one bit of the stored bytes: a fault to be found by whoever loads them."""
        data = bytearray(self._data[address])
        data[-1] ^= 1
        self._data[address] = bytes(data)
