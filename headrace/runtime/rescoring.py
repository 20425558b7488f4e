"""Scores sealed transcripts again with the weights that they name.

Invariant: a log-prob is that of the distribution that was sampled from, temperature included; only tokens whose cache was
wholly computed by their own version can be held to equality, and none is held to weights that are not stored.

Dimensions: T tokens of a sequence, V vocabulary.
"""

import dataclasses
import heapq
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from headrace.errors import ConfigError, IntegrityError
from headrace.records.ids import Address
from headrace.records.provenance import address_of
from headrace.records.trajectory import Transcript
from headrace.runtime.folders import BLOBS
from headrace.runtime.models import run_config
from headrace.store.blobs import FileBlobs
from headrace.store.reader import JournalReader, open_reader


@dataclasses.dataclass(frozen=True)
class Rescored:
    """What came of it.

    Attributes:
        tokens: sampled tokens of versions whose weights are stored.
        fresh: of these, tokens whose cache was computed by their own version.
        fresh_abs_max: largest difference of a fresh token's log-prob, in nats; None when there is none.
        at: path, segment and token of that difference.
        old_cache_abs_max: the same over the other tokens, which no single version gives again; None when there is none.
    """

    tokens: int
    fresh: int
    fresh_abs_max: float | None
    at: tuple[int, int, int] | None
    old_cache_abs_max: float | None


class Rescorer:
    """A model that takes any weights of its run.

    Args:
        model_folder: with the model's configuration.
        read: bytes of a weights file, checked against the address; raises KeyError when they are not stored.

    Raises:
        ConfigError: when the folder holds no model.
    """

    def __init__(self, model_folder: Path, read: Callable[[Address], bytes]) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        if not (model_folder / "config.json").is_file():
            raise ConfigError(f"{model_folder} keeps no config.json of a model, so nothing can be scored again")
        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(model_folder, local_files_only=True), dtype=torch.float32
        ).eval()
        self._read = read
        self._loaded: Address | None = None

    def rescore(self, transcript: Transcript) -> Rescored:
        """The transcript under those of its weights that are stored.

        Raises:
            IntegrityError: when weights are damaged or do not fit the model.
        """
        import torch

        tokens, fresh, worst, worst_old, at = 0, 0, None, None, None
        for policy in transcript.provenance.policies:
            if not self._load(policy.weights):
                continue
            for path in range(len(transcript.paths)):
                sequence, start = transcript.sequence(path), 0
                ids_T = np.concatenate([segment.ids_T for segment in sequence])
                with torch.inference_mode():
                    logits_TV = self._model(torch.from_numpy(ids_T.astype(np.int64))[None], use_cache=False).logits[0]
                for index, segment in enumerate(sequence):
                    stop = start + len(segment)
                    sampled_by = segment.policy and (segment.policy.policy_id, segment.policy.version)
                    own = sampled_by == (policy.policy_id, policy.version)
                    if own and index >= transcript.own_start(path) and len(segment):
                        assert segment.sampling is not None and segment.behavior_logprobs_T is not None
                        scaled = logits_TV[start - 1 : stop - 1] / (segment.sampling.temperature or 1.0)
                        target = torch.from_numpy(segment.ids_T.astype(np.int64))[:, None]
                        found_T = torch.log_softmax(scaled, dim=-1).gather(1, target)[:, 0].numpy()
                        tokens += len(segment)
                        difference_T = np.abs(found_T - segment.behavior_logprobs_T)
                        place = int(difference_T.argmax())
                        if segment.context_version_min != policy.version:
                            worst_old = max(float(difference_T[place]), worst_old or 0.0)
                        else:
                            fresh += len(segment)
                            if worst is None or difference_T[place] > worst:
                                worst, at = float(difference_T[place]), (path, index, place)
                    start = stop
        return Rescored(tokens, fresh, worst, at, worst_old)

    def _load(self, weights: Address) -> bool:
        """Whether the model has them now; False when they are not stored."""
        from headrace.training.weights import load_weights

        if weights != self._loaded:
            try:
                data = self._read(weights)
            except KeyError:
                return False
            self._loaded = None
            load_weights(self._model, data)
            self._loaded = weights
        return True


def rescore_run(run: Path, count: int) -> tuple[list[str], str]:
    """(problems, what was compared and what could not be) of a sample of the run's transcripts.

    A version that was stamped at the end of a turn instead of by the engine that sampled shows here and nowhere else: its
    weights give other log-probs than those on record, by more than engine and trainer may differ on the canary.

    Args:
        run: its folder.
        count: how many transcripts, of those that have tokens of a version whose weights are stored; by address, so that
            the choice is arbitrary and the same each time.

    Raises:
        ConfigError: when there is no count, or the run keeps no model.
    """
    if count < 1:
        raise ConfigError(f"--rescore is {count}; give at least 1 transcript, or leave it out")
    blobs = FileBlobs(run / BLOBS)

    def read(weights: Address) -> bytes:
        try:
            return blobs.read(weights)
        except IntegrityError as error:  # reported where files are checked
            raise KeyError(weights) from error

    with open_reader(run) as reader:
        stored = set(blobs.addresses())
        tolerance = run_config(reader, run).policy.canary_tolerance
        chosen, unchecked = choose(transcripts_of(reader), count, stored)
        rescorer = Rescorer(run, read)
        compared = [(address, rescorer.rescore(_transcript(reader.read(address)))) for address in chosen]
    fresh = sum(item.fresh for _, item in compared)
    worst = max((item.fresh_abs_max for _, item in compared if item.fresh_abs_max is not None), default=None)
    largest = "" if worst is None else f", largest difference {worst:.2g} nats, {tolerance:g} is allowed"
    problems = [told for address, item in compared if (told := difference(address, item, tolerance))]
    return problems, f"{len(chosen)} transcripts, {fresh} tokens compared{largest}; {unchecked}"


def transcripts_of(reader: JournalReader) -> Iterator[tuple[Address, Transcript]]:
    """Every transcript that is as it was written; others are reported where rows are checked."""
    for row in reader.stored_rows():
        if row.kind == "transcript" and address_of(row.data) == row.address:
            yield Address(row.address), _transcript(row.data)


def choose(
    transcripts: Iterable[tuple[Address, Transcript]], count: int, stored: set[Address]
) -> tuple[list[Address], str]:
    """(the first `count` by address that have a segment whose weights are stored, how many segments in all have none)."""
    eligible: list[Address] = []
    num_segments = num_gone = 0
    for address, transcript in transcripts:
        weights = {(item.policy_id, item.version): item.weights for item in transcript.provenance.policies}
        named = [
            weights.get((segment.policy.policy_id, segment.policy.version))
            for segment in transcript.sampled()
            if segment.policy is not None and len(segment)
        ]
        present = [item in stored for item in named]
        num_segments += len(named)
        num_gone += present.count(False)
        if any(present):
            eligible.append(address)
    return heapq.nsmallest(count, eligible), (
        f"{num_gone} of {num_segments} stored segments cannot be checked, their weights are gone"
    )


def difference(transcript: Address, found: Rescored, tolerance: float) -> str | None:
    """What is wrong with a transcript whose tokens come out otherwise; None when nothing is."""
    if found.fresh_abs_max is None or found.fresh_abs_max <= tolerance:
        return None
    return (
        f"transcript {transcript}: the weights of the version that its tokens name give log-probs that differ by up to "
        f"{found.fresh_abs_max:.3g} nats, at (path, segment, token) {found.at}, {tolerance:g} is allowed; another version "
        "sampled them, or the engine's numbers are not the trainer's"
    )


def _transcript(data: bytes) -> Transcript:
    return msgspec.msgpack.decode(data, type=Transcript)
