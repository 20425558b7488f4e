"""A tiny random policy, a store of sealed transcripts in memory, and trainers over both."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from headrace.config import AlgorithmSection
from headrace.records.arrays import float32_bytes, int32_bytes
from headrace.records.batch import BatchPlan, BatchRow
from headrace.records.ids import Address, EpisodeId, GroupId, PolicyId, PolicyRef
from headrace.records.provenance import PolicyVersion, Provenance, address_of, canonical_bytes
from headrace.records.segment import Origin, Sampling, TokenSegment
from headrace.records.terminal import Success
from headrace.records.trajectory import Path as TokenPath
from headrace.records.trajectory import Transcript
from headrace.training.core import TrainerCore, TrainerOptions

LLAMA = {
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
PLACE = Address("0" * 64)


def reference_model(folder: Path) -> torch.nn.Module:
    transformers_logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def full_logprobs(model: torch.nn.Module, ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probs [T] of each token given those before it, by one whole forward pass; 0 for the first."""
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1] / temperature
    picked = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return torch.cat([torch.zeros(1), picked])


class Lab:
    """Sealed rows and trainers over one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = reference_model(folder)
        self.rows: dict[Address, bytes] = {}
        self.weights: dict[Address, bytes] = {}
        self._members = itertools.count()

    def policy(
        self, ids: Sequence[int], prefix: Sequence[int] = (), *, version=0, temperature=1.0, shift=0.0, context=None
    ) -> TokenSegment:
        """A sampled segment whose behaviour log-probs are the model's own at the temperature, minus `shift`."""
        with torch.no_grad():
            whole = full_logprobs(self.model, [*prefix, *ids], temperature or 1.0)
        logprobs = whole[len(prefix) :].numpy() - np.float32(shift)
        return TokenSegment(
            Origin.POLICY,
            int32_bytes(ids),
            float32_bytes(np.minimum(logprobs, 0.0)),
            PolicyRef(PolicyId("policy"), version),
            version if context is None else context,
            Sampling(temperature),
        )

    @staticmethod
    def given(ids: Sequence[int], origin: Origin = Origin.TEMPLATE) -> TokenSegment:
        return TokenSegment(origin, int32_bytes(ids))

    def episode(
        self, prompt: Sequence[int], *turns: tuple[Sequence[int], Sequence[int]], **sampling
    ) -> list[TokenSegment]:
        """Segments of a prompt, then of (sampled, observed) turns."""
        segments, so_far = [self.given(prompt)], list(prompt)
        for sampled, observed in turns:
            segments.append(self.policy(sampled, so_far, **sampling))
            so_far += [*sampled, *observed]
            if observed:
                segments.append(self.given(observed, Origin.ENVIRONMENT))
        return segments

    def seal(self, *paths: TokenPath, purpose: str = "train") -> Transcript:
        member = next(self._members)
        versions = {s.policy.version for p in paths for s in p.segments if s.policy}
        transcript = Transcript(
            episode=EpisodeId(GroupId(purpose, 0), member, 0),
            task=PLACE,
            provenance=Provenance(
                PLACE, tuple(PolicyVersion(PolicyId("policy"), v, PLACE) for v in sorted(versions)), PLACE, PLACE
            ),
            paths=paths,
            actions=(),
            terminal=Success(),
        )
        transcript.check()
        data = canonical_bytes(transcript)
        self.rows[address_of(data)] = data
        return transcript

    def row(self, segments: Sequence[TokenSegment], advantage: float = 1.0, weight: float = 1.0) -> BatchRow:
        return self.row_of(self.seal(TokenPath("main", tuple(segments))), advantage, weight)

    @staticmethod
    def row_of(transcript: Transcript, advantage: float = 1.0, weight: float = 1.0, path: int = 0) -> BatchRow:
        episode = transcript.episode
        return BatchRow(transcript.address, path, episode.group, episode.member, 1, 0.5, advantage, weight)

    @staticmethod
    def plan(rows: Sequence[BatchRow], version: int = 0, policy_id: str = "policy") -> BatchPlan:
        return BatchPlan(version + 1, PolicyId(policy_id), version, tuple(rows), PLACE, b"key")

    def put(self, data: bytes) -> Address:
        address = address_of(data)
        self.weights[address] = data
        return address

    def regroup(self, row: BatchRow, ordinal: int) -> BatchRow:
        """The row's transcript sealed again as one of another group."""
        transcript = msgspec.msgpack.decode(self.rows[row.transcript], type=Transcript)
        episode = EpisodeId(GroupId("train", ordinal), transcript.episode.member, 0)
        moved = msgspec.structs.replace(transcript, episode=episode)
        self.rows[moved.address] = canonical_bytes(moved)
        return msgspec.structs.replace(row, transcript=moved.address, group=episode.group)

    @staticmethod
    def algorithm(**values) -> AlgorithmSection:
        """A checked learning signal."""
        section = AlgorithmSection(**values)
        section.check()
        return section

    def core(self, options: TrainerOptions | None = None, **algorithm) -> TrainerCore:
        ticks = itertools.count()
        return TrainerCore(
            options or TrainerOptions(),
            self.folder,
            self.algorithm(**algorithm),
            read_row=self.rows.__getitem__,
            put_weights=self.put,
            clock=lambda: float(next(ticks)),
        )

    def ragged(self, count: int = 9, seed: int = 0, **sampling) -> list[BatchRow]:
        """Rows of unequal length with observations in between, and advantages of both signs and zero."""
        rng = np.random.default_rng(seed)
        rows = []
        for index in range(count):
            turns = [
                (rng.integers(1, 32, rng.integers(1, 6)).tolist(), rng.integers(1, 32, rng.integers(0, 4)).tolist())
                for _ in range(rng.integers(1, 4))
            ]
            prompt = rng.integers(1, 32, rng.integers(2, 8)).tolist()
            shift = {"shift": float(rng.uniform(0.0, 0.4)), **sampling}
            rows.append(self.row(self.episode(prompt, *turns, **shift), advantage=(index % 3 - 1) * 0.7))
        return rows
