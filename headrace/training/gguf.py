"""From a GGUF file to a Hugging Face folder: weights as float32 safetensors, configuration, tokenizer, chat template.

Invariant: the folder loads without the GGUF file and without the `gguf` package, and its weights are those that the file's
quantized values stand for; nothing is fitted or rounded again.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.errors import ConfigError
from headrace.training.weights import weights_bytes

GENERATION_CONFIG = "generation_config.json"


def convert_gguf(source: Path, out: Path) -> None:
    """Makes the folder `out`.

    Raises:
        ConfigError: when the file cannot be read, or the package that reads it is not installed.
    """
    if not source.is_file():
        raise ConfigError(f"{source}: no such GGUF file")
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=torch.float32, local_files_only=True
        )
        tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
    except ImportError as error:
        raise ConfigError(f"{source}: a package that reads GGUF is missing: {error}") from error
    except (
        Exception
    ) as error:  # boundary: the reader raises what it likes for a file that is none, struct.error included
        raise ConfigError(f"{source}: {type(error).__name__}: {error}") from error
    config = loaded.config
    # The loaded one remembers that it was quantized and refuses to be saved; a model of the same configuration does not.
    config.quantization_config = None
    plain = type(loaded)(config)
    plain.load_state_dict(loaded.state_dict())
    plain.tie_weights()
    out.mkdir(parents=True)
    (out / "model.safetensors").write_bytes(weights_bytes(plain))
    settings = config.to_dict()
    settings.pop("quantization_config", None)
    settings["dtype"] = "float32"
    type(config).from_dict(settings).save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / GENERATION_CONFIG).unlink(missing_ok=True)
