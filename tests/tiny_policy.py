"""A random policy of a few thousand parameters, in the folder form that engines read."""

import dataclasses
import functools
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from headrace.records.arrays import int32_bytes
from headrace.records.ids import Address, PolicyId
from headrace.records.provenance import address_of
from headrace.records.segment import GenerateRequest, Origin, Sampling, TokenSegment
from headrace.records.streams import stream_key

torch.set_num_threads(1)

VOCABULARY = 48
POLICY = PolicyId("policy")


@dataclasses.dataclass(frozen=True)
class PolicyFolder:
    """config.json and weights by content address."""

    path: Path

    @classmethod
    def create(cls, path: Path, *, is_tied: bool = False, context: int = 128, width: int = 32) -> "PolicyFolder":
        path.mkdir(parents=True, exist_ok=True)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=width,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=context,
            tie_word_embeddings=is_tied,
            initializer_range=0.3,
        )
        config.architectures = ["LlamaForCausalLM"]
        config.save_pretrained(path)
        return cls(path)

    def model(self, seed: int) -> PreTrainedModel:
        """The model that `publish(seed)` writes, built by transformers alone."""
        return _build(self.path, seed)

    def publish(self, seed: int) -> Address:
        """Address of the weights of `model(seed)`, which lie in the folder."""
        return self.write(self.model(seed).state_dict())

    def write(self, state: dict[str, torch.Tensor]) -> Address:
        kept = {name: tensor.contiguous().clone() for name, tensor in state.items()}
        data = safetensors.torch.save(kept)
        address = address_of(data)
        self.weights_path(address).write_bytes(data)
        return address

    def weights_path(self, address: Address) -> Path:
        return self.path / f"{address}.safetensors"

    def logprobs(self, seed: int, ids: npt.ArrayLike, temperature: float = 1.0) -> npt.NDArray[np.float32]:
        """Log-probs [T - 1] by one full forward without a cache: what a trainer would compute."""
        row = torch.from_numpy(np.asarray(ids, dtype=np.int64))[None]
        with torch.inference_mode():
            logits = self.model(seed)(input_ids=row, use_cache=False).logits[0, :-1].float()
        values = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
        return values.gather(1, row[0, 1:, None])[:, 0].numpy()


@functools.cache
def _build(path: Path, seed: int) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig.from_pretrained(path)).eval()


def prompt(*ids: int) -> tuple[TokenSegment, ...]:
    return (TokenSegment(Origin.TEMPLATE, int32_bytes(ids)),)


def request(
    request_id: str,
    prefix: tuple[TokenSegment, ...],
    *,
    max_tokens: int = 8,
    temperature: float = 1.0,
    stop_ids: tuple[int, ...] = (),
    min_version: int = 0,
    pin_version: int | None = None,
    policy_id: str = POLICY,
    seed_name: str | None = None,
) -> GenerateRequest:
    key = stream_key(7, "draws", seed_name or request_id).to_bytes(16, "little")
    return GenerateRequest(
        request_id=request_id,
        prefix=prefix,
        max_tokens=max_tokens,
        sampling=Sampling(temperature),
        stop_ids=stop_ids,
        policy_id=PolicyId(policy_id),
        min_version=min_version,
        pin_version=pin_version,
        affinity="group",
        seed_key=key,
    )
