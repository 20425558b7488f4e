"""Bytes and numbers from elsewhere: nothing is unpickled, and a log-prob that is none never reaches a batch."""

import ast
import dataclasses
import io
import pickle
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from control.simulated_runs import MODES, faultless, payloads, run

import headrace
from headrace.control.context import Ports
from headrace.environments.sandbox.artifact import ArtifactRefused, checked_artifact
from headrace.ports import Inference, TurnTiming
from headrace.processes.frames import FrameError, FrameReader
from headrace.records.arrays import float32_bytes
from headrace.records.batch import BatchPlanned, GroupClosed
from headrace.records.segment import GenerateRequest, TokenSegment
from headrace.records.trajectory import Transcript, TranscriptSealed
from headrace.records.verdict import Submission, Verdict

PACKAGE = Path(headrace.__file__).parent
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
UNSAFE_CALLS = {"torch.load", "np.load", "numpy.load", "pandas.read_pickle", "yaml.load", "yaml.unsafe_load"}


def unsafe_names(source: str) -> set[str]:
    """What a module uses that may run code from the bytes that it reads."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Attribute):
            found.add(ast.unparse(node))
    return {name for name in found if name.partition(".")[0] in UNSAFE_MODULES or name in UNSAFE_CALLS}


def test_no_module_of_ours_reads_a_format_that_can_run_code() -> None:
    assert {path: names for path in PACKAGE.rglob("*.py") if (names := unsafe_names(path.read_text()))} == {}
    assert unsafe_names("import torch\ntorch.load(path, weights_only=False)\nfrom pickle import loads") == {
        "torch.load",
        "pickle",
    }


class Exploit:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self._path), "w")


def test_pickled_bytes_are_refused_or_stay_bytes_wherever_bytes_come_in(tmp_path: Path) -> None:
    trap = tmp_path / "unpickled"
    array = io.BytesIO()
    np.save(array, np.array([Exploit(trap)], dtype=object), allow_pickle=True)
    for payload in (pickle.dumps(Exploit(trap)), array.getvalue()):
        for kind in (Transcript, Submission, Verdict):
            with pytest.raises((msgspec.DecodeError, ValueError)):
                msgspec.msgpack.decode(payload, type=kind)
        with pytest.raises((FrameError, msgspec.DecodeError)):
            list(FrameReader().feed(len(payload).to_bytes(4, "little") + payload))
        with pytest.raises(ArtifactRefused):
            checked_artifact(payload, 1 << 20)
        named = b"\x05\0\0\0a.pkl" + len(payload).to_bytes(4, "little") + payload
        assert msgspec.msgpack.decode(checked_artifact(named, 1 << 20)) == {"a.pkl": payload}
    assert not trap.exists()


class _LyingInference:
    """Spoils the log-probs of one turn."""

    def __init__(self, inner: Inference, request_id: str, logprob: float | None) -> None:
        self._inner = inner
        self._request_id = request_id
        self._logprob = logprob

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def generate(self, request: GenerateRequest, timeout_s: float) -> AsyncIterator[TokenSegment | TurnTiming]:
        async for item in self._inner.generate(request, timeout_s):
            if isinstance(item, TokenSegment) and request.request_id == self._request_id:
                count = len(item) if self._logprob is not None else len(item) - 1
                yield msgspec.structs.replace(item, behavior_logprobs=float32_bytes([self._logprob or 0.0] * count))
            else:
                yield item


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf"), 0.25, None], ids=["nan", "-inf", "> 0", "one short"])
def test_a_log_prob_that_is_none_is_the_engines_failure_and_in_no_batch(logprob: float | None) -> None:
    def adapt(ports: Ports) -> Ports:
        return dataclasses.replace(ports, inference=_LyingInference(ports.inference, "train.1.2.0/0", logprob))

    result = run(MODES["sync"], of=faultless(), adapt=adapt, updates=1)
    sealed = {e.key: e.payload for e in result.events if isinstance(e.payload, TranscriptSealed)}
    assert sealed["train.1.2.0"].terminal == "infra_error:inference"
    assert sealed["train.1.2.0"].sampled_tokens == 0
    assert not sealed["train.1.2.1"].terminal.startswith("infra")
    members = [member for group in payloads(result, GroupClosed) for member in group.members]
    assert sealed["train.1.2.0"].transcript not in {member.transcript for member in members}
    assert [plan.rows for plan in payloads(result, BatchPlanned)] == [16]
