"""An engine core over a tiny policy, and what it gave each request."""

import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np
from tiny_policy import POLICY, PolicyFolder, prompt

from headrace.inference.core import EngineCore
from headrace.inference.options import EngineOptions
from headrace.inference.turns import Failure, Output
from headrace.ports import TurnTiming
from headrace.records.arrays import FloatArray, IntArray
from headrace.records.ids import EpisodeId, GroupId, PolicyRef
from headrace.records.provenance import PolicyVersion, Provenance, address_of
from headrace.records.segment import FinishReason, GenerateRequest, TokenSegment
from headrace.records.terminal import Success
from headrace.records.trajectory import Path, Transcript
from headrace.runtime.rescoring import Rescored, Rescorer

TOLERANCE = 2e-5
"""How far a log-prob may be from that of a full forward pass."""


@dataclasses.dataclass
class Result:
    """All outputs of one request."""

    segments: list[TokenSegment] = dataclasses.field(default_factory=list)
    timing: TurnTiming | None = None
    failure: str | None = None

    @property
    def ids(self) -> list[int]:
        return [int(token) for segment in self.segments for token in segment.ids_T]

    @property
    def logprobs(self) -> FloatArray:
        return np.concatenate([segment.behavior_logprobs_T for segment in self.segments])

    @property
    def versions(self) -> list[int]:
        return [segment.policy.version for segment in self.segments if segment.policy]

    @property
    def finish(self) -> FinishReason | None:
        return self.segments[-1].finish


def make_core(
    folder: PolicyFolder,
    *,
    versions: Sequence[int] = (0,),
    clock: Callable[[], float] = time.monotonic,
    **options: object,
) -> EngineCore:
    """A core whose version v has the weights of seed v; the last of `versions` is current and all are kept.

    It does not record its passes, which takes longer than a short test and changes no bit (there is a test for that).
    """
    settings = {"slots": 4, "context": 128, "prefill_chunk": 16, "is_recorded": False, **options}
    core = EngineCore(EngineOptions(**settings), folder.path, folder.weights_path, clock)
    for version in versions:
        publish(core, folder, version, keep=versions)
    return core


def publish(core: EngineCore, folder: PolicyFolder, version: int, keep: Sequence[int] = ()) -> int:
    """Rebuilt tokens of activating the weights of seed `version` under that version."""
    core.stage(PolicyRef(POLICY, version), folder.publish(version))
    return core.activate(PolicyRef(POLICY, version), frozenset(keep)).rebuilt_tokens


def collect(results: dict[str, Result], outputs: Sequence[Output]) -> None:
    for output in outputs:
        result = results.setdefault(output.request_id, Result())
        if isinstance(output.item, TokenSegment):
            output.item.check()
            result.segments.append(output.item)
        elif isinstance(output.item, Failure):
            result.failure = output.item.message
        else:
            result.timing = output.item


def drain(core: EngineCore, at_step: dict[int, Callable[[], object]] | None = None) -> dict[str, Result]:
    """Steps until idle; `at_step[n]` is called before step n."""
    results: dict[str, Result] = {}
    step = 0
    while not core.is_idle:
        if at_step and step in at_step:
            at_step[step]()
        collect(results, core.step())
        step += 1
        assert step < 2000, "the engine does not come to an end"
    return results


def generate(core: EngineCore, *requests: GenerateRequest) -> list[Result]:
    """Results in the order of the requests."""
    for request in requests:
        core.submit(request)
    results = drain(core)
    return [results[request.request_id] for request in requests]


def rescoring_error(
    folder: PolicyFolder, prompt_ids: Sequence[int] | IntArray, result: Result, temperature: float = 1.0
) -> float:
    """Largest difference of a behaviour log-prob to a full forward under the version that its segment names."""
    ids, worst = list(prompt_ids), 0.0
    for segment in result.segments:
        start = len(ids)
        ids += [int(token) for token in segment.ids_T]
        if len(segment) and segment.policy and segment.behavior_logprobs_T is not None:
            expected = folder.logprobs(segment.policy.version, ids, temperature)[start - 1 :]
            worst = max(worst, float(np.abs(expected - segment.behavior_logprobs_T).max()))
    return worst


def rescored(
    folder: PolicyFolder, prompt_ids: Sequence[int] | IntArray, result: Result, gone: Sequence[int] = ()
) -> Rescored:
    """The result as a transcript, scored again as `verify --rescore` does, with the weights of some versions gone."""
    weights = {version: folder.publish(version) for version in result.versions}
    task = address_of(b"task")
    policies = tuple(PolicyVersion(POLICY, version, address) for version, address in weights.items())
    transcript = Transcript(
        episode=EpisodeId(GroupId("train", 0), 0, 0),
        task=task,
        provenance=Provenance(task, policies, task, task),
        paths=(Path("policy", (*prompt(*prompt_ids), *result.segments)),),
        actions=(),
        terminal=Success(),
        final_text="",
        artifact=None,
    )
    stored = {weights[version]: folder.weights_path(weights[version]) for version in weights if version not in gone}
    return Rescorer(folder.path, lambda address: stored[address].read_bytes()).rescore(transcript)


def some_ids(length: int, seed: int = 0) -> IntArray:
    return np.random.default_rng(seed).integers(0, 48, length).astype(np.int32)
