# pyright: basic, reportMissingImports=false
"""New weights for a running vLLM, from a memory-mapped safetensors file that the trainer wrote on the same machine.

Loaded by vLLM itself in each of its processes, through the entry point `vllm.general_plugins`.

Invariant: only bytes that hash to the announced address are loaded, and a tied output layer is packed again, which
vLLM's own reload leaves with the weights of before.
"""

import dataclasses
import hashlib
import mmap
from typing import Any

BACKEND = "headrace_file"
"""Name for `--weight-transfer-config`."""


def register() -> None:
    """Makes the backend known to this process."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:  # there is no public way to ask
        WeightTransferEngineFactory.register_engine(BACKEND, _engine_class())


def _engine_class() -> type:
    import safetensors.torch
    from vllm.distributed.weight_transfer.base import (
        WeightTransferEngine,
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    @dataclasses.dataclass
    class Init(WeightTransferInitInfo):
        """Nothing to agree on."""

    @dataclasses.dataclass
    class Update(WeightTransferUpdateInfo):
        """Attributes:
        path: the file.
        address: SHA-256 of its bytes.
        """

        path: str
        address: str

    class FileWeights(WeightTransferEngine[Init, Update]):
        """Loads a file in checkpoint format."""

        init_info_cls = Init
        update_info_cls = Update

        def init_transfer_engine(self, init_info: Init) -> None:
            pass

        def start_weight_update(self) -> None:
            initialize_layerwise_reload(self.model)

        def receive_weights(self, update_info: Update) -> None:
            with open(update_info.path, "rb") as file:  # noqa: PTH123
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            found = hashlib.sha256(mapped).hexdigest()
            if found != update_info.address:
                raise ValueError(f"{update_info.path} hashes to {found}, announced was {update_info.address}")
            self.model.load_weights(safetensors.torch.load(bytes(mapped)).items())

        def finish_weight_update(self) -> None:
            finalize_layerwise_reload(self.model, self.model_config)
            self._pack_tied_head()

        def shutdown(self) -> None:
            pass

        def _pack_tied_head(self) -> None:
            model: Any = self.model
            if not getattr(self.model_config.hf_text_config, "tie_word_embeddings", False):
                return
            model.lm_head.weight = model.model.embed_tokens.weight
            model.lm_head.quant_method.process_weights_after_loading(model.lm_head)

    return FileWeights
