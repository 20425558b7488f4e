"""A trainer's state in the store: written part by part, read back whole or not at all.

Invariant: a manifest in the store names files that are there, and a state that does not verify or does not fit changes
nothing.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch.nn import Parameter

from headrace.errors import IntegrityError, Outcome, TrainerError
from headrace.records.checkpoint import Manifest
from headrace.records.ids import Address, PolicyId
from headrace.training.checkpoint import (
    load_optimizer,
    load_random,
    load_tensors,
    optimizer_bytes,
    random_bytes,
    read_optimizer,
    tensors_bytes,
)
from headrace.training.snapshot import Snapshot
from headrace.training.weights import load_weights, weights_bytes

Trained = tuple[list[Parameter], torch.optim.Optimizer]


class Files(Protocol):
    """Files by content address, as `store.blobs.FileBlobs` has them."""

    def read(self, address: Address) -> bytes:
        """Bytes of a file, checked against the address. Raises KeyError or IntegrityError."""
        ...

    def remove(self, address: Address) -> None:
        """Removes a file if it is there."""
        ...


class StoredState:
    """Everything that an update moves, and the files that it lies in.

    Args:
        model: whose weights are published.
        policy: its parameters and their optimizer.
        critic: the same of the critic, if there is one.
        put: stores a file, returns its address.
        files: where files are read from; None can write them and read none.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        policy: Trained,
        critic: Trained | None,
        *,
        put: Callable[[bytes], Address],
        files: Files | None,
    ) -> None:
        self._model = model
        self._critic = critic
        self._put = put
        self._files = files
        self._optimizers = {"optimizer": policy} | ({} if critic is None else {"critic_optimizer": critic})

    def save(self, policy_id: PolicyId, version: int, scheduler: str, algorithm: Address) -> Manifest:
        """The manifest of the present state, which is in the store."""
        # One part after the other: of a large model there is no room for the bytes of all at once.
        weights, size_bytes = self._stored(weights_bytes(self._model))
        parts = {name: self._stored(optimizer_bytes(optimizer)) for name, (_, optimizer) in self._optimizers.items()}
        parts["random"] = self._stored(random_bytes())
        if self._critic is not None:
            parts["critic"] = self._stored(tensors_bytes(self._critic[0]))
        manifest = Manifest(
            policy_id=policy_id,
            version=version,
            weights=weights,
            parts={name: address for name, (address, _) in parts.items()},
            size_bytes=size_bytes + sum(size for _, size in parts.values()),
            scheduler=scheduler,
            algorithm=algorithm,
        )
        self._put(manifest.to_json())  # last, so that it names files that are there
        return manifest

    def load(self, manifest: Manifest) -> None:
        """Puts a saved state in place.

        Raises:
            TrainerError: REJECTED when a file is missing, damaged or does not fit; nothing has changed then.
        """
        before = Snapshot.of(list(self._optimizers.values()))
        try:
            weights = self.read(manifest.weights)
            parts = {name: self.read(address) for name, address in manifest.parts.items()}
            moments = {
                name: read_optimizer(parameters, parts[name]) for name, (parameters, _) in self._optimizers.items()
            }
            self.read(manifest.address)  # a checkpoint without its manifest was never finished, or is being removed
            load_weights(self._model, weights)
            if self._critic is not None:
                load_tensors(self._critic[0], parts["critic"])
            load_random(parts["random"])
        except (KeyError, IntegrityError) as error:
            before.restore()
            message = f"checkpoint of version {manifest.version} cannot be loaded: {error}"
            raise TrainerError(message, Outcome.REJECTED) from error
        for name, (_, optimizer) in self._optimizers.items():
            load_optimizer(optimizer, moments[name])

    def load_weights(self, weights: Address) -> None:
        """Puts stored weights in place of the present ones. Raises KeyError or IntegrityError."""
        load_weights(self._model, self.read(weights))

    def read(self, address: Address) -> bytes:
        """Bytes of a file. Raises KeyError or IntegrityError."""
        if self._files is None:
            raise KeyError(f"no store to read {address} from")
        return self._files.read(address)

    def forget(self, blobs: Sequence[Address]) -> None:
        """Removes files that nothing names any more."""
        if self._files is not None:
            for address in blobs:
                self._files.remove(address)

    def _stored(self, data: bytes) -> tuple[Address, int]:
        return self._put(data), len(data)
