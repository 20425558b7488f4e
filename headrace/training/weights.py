"""Weights as canonical bytes: the file that trainer and engines share.

Format: safetensors. Names are those of the Hugging Face state dict. A parameter with several names appears once, under its
first one in module order: with `tie_word_embeddings` the output layer is left out, and a reader ties it to the input
embedding itself (one that copied the output layer must copy it again on each load). Metadata is {"format": "pt"}, so that
the bytes beside a `config.json` are a folder that `from_pretrained` reads.

Invariant: equal weights give equal bytes, whatever the order of the state dict, so the SHA-256 of the bytes is the version.
"""

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from headrace.errors import IntegrityError

METADATA = {"format": "pt"}


def canonical_state(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and persistent buffer once, by its first name; the tensors are the model's own."""
    aliases = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    first = {name for name, _ in model.named_parameters()}
    state = model.state_dict()
    return {name: state[name] for name in sorted(state) if name in first or name not in aliases}


def weights_bytes(model: nn.Module) -> bytes:
    """The model's weights in the shared format."""
    state = {name: tensor.detach().contiguous() for name, tensor in canonical_state(model).items()}
    return safetensors.torch.save(state, metadata=METADATA)


def load_weights(model: nn.Module, data: bytes) -> None:
    """Copies the weights into the model's own tensors; tied ones follow, since they are the same tensor.

    Raises:
        IntegrityError: when the bytes are no safetensors, or names, shapes or types differ; the model is then unchanged.
    """
    try:
        given = safetensors.torch.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise IntegrityError(f"weights of {len(data)} bytes are no safetensors file: {error}") from error
    own = canonical_state(model)
    if given.keys() != own.keys():
        raise IntegrityError(f"weights have other names than the model: {sorted(given.keys() ^ own.keys())[:4]}")
    for name, tensor in own.items():
        if given[name].shape != tensor.shape or given[name].dtype != tensor.dtype:
            raise IntegrityError(
                f"weights {name}: {tuple(given[name].shape)} {given[name].dtype}, "
                f"the model has {tuple(tensor.shape)} {tensor.dtype}"
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(given[name])
