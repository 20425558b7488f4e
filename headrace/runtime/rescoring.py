"""Scores a sealed transcript again with the weights that it names.

Invariant: a log-prob is that of the distribution that was sampled from, temperature included; only tokens whose cache was
wholly computed by their own version can be held to equality.

Dimensions: T tokens of a sequence, V vocabulary.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from headrace.records.ids import Address
from headrace.records.trajectory import Transcript


@dataclasses.dataclass(frozen=True)
class Rescored:
    """What came of it.

    Attributes:
        tokens: sampled tokens in all.
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


def rescore(transcript: Transcript, model_folder: Path, weights_path: Callable[[Address], Path]) -> Rescored:
    """The transcript under its own weights.

    Raises:
        ConfigError: when the folder holds no model that the weights fit.
        KeyError: when weights are not stored.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from headrace.training.weights import load_weights

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(model_folder, local_files_only=True), dtype=torch.float32
    ).eval()
    tokens, fresh, worst, worst_old, at = 0, 0, None, None, None
    weights = {(policy.policy_id, policy.version): policy.weights for policy in transcript.provenance.policies}
    for key, address in weights.items():
        load_weights(model, weights_path(address).read_bytes())
        for path in range(len(transcript.paths)):
            sequence, start = transcript.sequence(path), 0
            ids_T = np.concatenate([segment.ids_T for segment in sequence])
            with torch.inference_mode():
                logits_TV = model(input_ids=torch.from_numpy(ids_T.astype(np.int64))[None], use_cache=False).logits[0]
            for index, segment in enumerate(sequence):
                stop = start + len(segment)
                own = segment.policy is not None and (segment.policy.policy_id, segment.policy.version) == key
                if own and index >= transcript.own_start(path) and len(segment):
                    assert segment.sampling is not None and segment.behavior_logprobs_T is not None
                    scaled = logits_TV[start - 1 : stop - 1] / (segment.sampling.temperature or 1.0)
                    target = torch.from_numpy(segment.ids_T.astype(np.int64))[:, None]
                    found_T = torch.log_softmax(scaled, dim=-1).gather(1, target)[:, 0].numpy()
                    tokens += len(segment)
                    difference_T = np.abs(found_T - segment.behavior_logprobs_T)
                    place = int(difference_T.argmax())
                    if segment.context_version_min != key[1]:
                        worst_old = max(float(difference_T[place]), worst_old or 0.0)
                    else:
                        fresh += len(segment)
                        if worst is None or difference_T[place] > worst:
                            worst, at = float(difference_T[place]), (path, index, place)
                start = stop
    return Rescored(tokens, fresh, worst, at, worst_old)
