"""Content addresses and the five versions: task, policy, harness, environment, grader.

A version is derived from content and never typed by hand. The first four are sealed with the transcript, the fifth with
the verdict.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from headrace.errors import IntegrityError
from headrace.records.ids import Address, PolicyId

T = TypeVar("T")
Read = Callable[[Address], bytes]
"""Bytes of a sealed row; raises KeyError when there is none."""

canonical_bytes: Final[Callable[[Any], bytes]] = msgspec.msgpack.Encoder(order="deterministic").encode
"""The one byte string that stands for a record: msgpack, fields in their declared order, mappings sorted."""


def address_of(data: bytes) -> Address:
    """SHA-256 of the bytes, as 64 hexadecimal digits."""
    return Address(hashlib.sha256(data).hexdigest())


def content_version(*parts: bytes | str) -> Address:
    """Version of several contents in order; each is length-prefixed, so no two lists collide by concatenation."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return Address(digest.hexdigest())


def check_address(expected: Address, data: bytes, what: str) -> None:
    """Raises IntegrityError when the bytes do not hash to the address."""
    actual = address_of(data)
    if actual != expected:
        raise IntegrityError(f"{what}: bytes hash to {actual}, the address says {expected}; the copy is damaged")


def read_record(read: Read, address: Address, kind: type[T]) -> T:
    """The record of a sealed row.

    Raises:
        KeyError: when there is no such row.
        IntegrityError: when the bytes are no record of that kind.
    """
    try:
        return msgspec.msgpack.decode(read(address), type=kind)
    except (msgspec.DecodeError, ValueError) as error:
        raise IntegrityError(f"row {address} is no {kind.__name__}: {error}") from error


class PolicyVersion(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Which weights a version number stood for.

    Attributes:
        policy_id: name of the policy.
        version: number of updates behind the weights.
        weights: address of the weights file that the engine proved to hold.
    """

    policy_id: PolicyId
    version: int
    weights: Address


class Provenance(msgspec.Struct, frozen=True, gc=False):
    """The versions that a transcript was made under; the grader's is in the verdict.

    Attributes:
        task: address of the task's canonical bytes.
        policies: every policy version that sampled a token, in rising order; at least one unless nothing was sampled.
        harness: content version of prompts, tool schemas, template, tokenizer and harness code.
        environment: content version of the environment's code, its options and dependencies.
    """

    task: Address
    policies: tuple[PolicyVersion, ...]
    harness: Address
    environment: Address

    def require_complete(self) -> None:
        """Raises IntegrityError when a version other than a policy's is missing; sealing without it is refused."""
        for name, version in (("task", self.task), ("harness", self.harness), ("environment", self.environment)):
            if len(version) != 64:
                raise IntegrityError(f"provenance.{name} is {version!r}: a 64-digit content version is needed")
