"""A copy of weights and optimizer state to return to when an update fails halfway.

Invariant: after `restore` every tensor holds what it held when the copy was made; parameters stay the same objects.
"""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """State of parameters and their optimizers."""

    _tensors: list[tuple[Parameter, Tensor]]
    _optimizers: list[tuple[Optimizer, dict[str, Any]]]

    @classmethod
    def of(cls, trained: Sequence[tuple[Sequence[Parameter], Optimizer]]) -> "Snapshot":
        """The present state."""
        tensors = [(parameter, parameter.detach().clone()) for parameters, _ in trained for parameter in parameters]
        return cls(tensors, [(optimizer, copy.deepcopy(optimizer.state_dict())) for _, optimizer in trained])

    def restore(self) -> None:
        """Puts everything back."""
        with torch.no_grad():
            for parameter, tensor in self._tensors:
                parameter.copy_(tensor)
        for optimizer, state in self._optimizers:
            optimizer.load_state_dict(state)
