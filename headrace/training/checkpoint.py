"""What a trainer's state is made of, as safetensors: parameters, optimizer moments, random state.

Invariant: reading back what was written gives the same bits, and state that does not fit what is there is refused before
anything has changed. No pickle: tensors by the position of their parameter, and nothing else.
"""

from collections.abc import Sequence

import safetensors
import safetensors.torch
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from headrace.errors import IntegrityError

_RANDOM = "torch"


def tensors_bytes(parameters: Sequence[Parameter]) -> bytes:
    """The values of parameters, by position."""
    return safetensors.torch.save({_name(i): p.detach().contiguous() for i, p in enumerate(parameters)})


def load_tensors(parameters: Sequence[Parameter], data: bytes) -> None:
    """Copies values into the parameters. Raises IntegrityError when they do not fit; nothing has changed then."""
    given = _read(data)
    _check_names(given, {_name(i) for i in range(len(parameters))})
    for index, parameter in enumerate(parameters):
        if given[_name(index)].shape != parameter.shape:
            raise IntegrityError(
                f"parameter {index} is {tuple(given[_name(index)].shape)} in the checkpoint, {tuple(parameter.shape)} here"
            )
    with torch.no_grad():
        for index, parameter in enumerate(parameters):
            parameter.copy_(given[_name(index)])


def optimizer_bytes(optimizer: Optimizer) -> bytes:
    """The optimizer's state by parameter position and name; its settings come from the configuration."""
    state = optimizer.state_dict()["state"]
    return safetensors.torch.save(
        {
            f"{_name(position)}.{key}": value.detach().contiguous()
            for position, values in state.items()
            for key, value in values.items()
        }
    )


def read_optimizer(parameters: Sequence[Parameter], data: bytes) -> dict[int, dict[str, Tensor]]:
    """State by parameter position.

    Raises:
        IntegrityError: when a position is unknown or a moment has another shape than its parameter.
    """
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _read(data).items():
        position, _, key = name.partition(".")
        index = int(position) if position.isdecimal() else len(parameters)
        if index >= len(parameters) or (tensor.dim() > 0 and tensor.shape != parameters[index].shape):
            raise IntegrityError(f"optimizer state {name} of shape {tuple(tensor.shape)} fits no parameter")
        state.setdefault(index, {})[key] = tensor
    return state


def load_optimizer(optimizer: Optimizer, state: dict[int, dict[str, Tensor]]) -> None:
    """Puts the state in place; the optimizer keeps its settings."""
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def random_bytes() -> bytes:
    """State of torch's generator in this process."""
    return safetensors.torch.save({_RANDOM: torch.get_rng_state()})


def load_random(data: bytes) -> None:
    """Sets the state of torch's generator in this process. Raises IntegrityError."""
    given = _read(data)
    _check_names(given, {_RANDOM})
    torch.set_rng_state(given[_RANDOM])


def _name(position: int) -> str:
    return f"{position:05d}"


def _read(data: bytes) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise IntegrityError(f"{len(data)} bytes are no safetensors file: {error}") from error


def _check_names(given: dict[str, Tensor], expected: set[str]) -> None:
    if given.keys() != expected:
        raise IntegrityError(
            f"a part of the checkpoint has other names than here: {sorted(given.keys() ^ expected)[:4]}"
        )
