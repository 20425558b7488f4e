"""The checkpoint's stall: how long the trainer is blocked by one, against an update, at the main job's size.

Run: `python -m benchmarks.checkpoint [--repeats N]`. The trainer of `examples/arithmetic/train.toml` (its model, optimizer
and batch of 128 rows, of 88 tokens each) scores and updates, then writes weights, optimizer, random state and manifest to a
real disk, in turns. Episodes go on during a save, but the trainer does nothing else: its next update waits at most for
what is printed as the save. Floors: the same bytes in one file, synced once, and their SHA-256. Each one is loaded back.
"""

import argparse
import hashlib
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from headrace.config import Config, decode_options, load_config
from headrace.environments.tools import CALCULATOR
from headrace.harness import open_harness
from headrace.records.arrays import float32_bytes, int32_bytes
from headrace.records.batch import BatchPlan, BatchRow
from headrace.records.ids import Address, EpisodeId, GroupId, PolicyId, PolicyRef, Purpose
from headrace.records.provenance import PolicyVersion, Provenance, address_of, canonical_bytes, content_version
from headrace.records.segment import FinishReason, Origin, Sampling, TokenSegment
from headrace.records.terminal import Success
from headrace.records.trajectory import Path as TokenPath
from headrace.records.trajectory import Transcript
from headrace.store import FileBlobs
from headrace.training.core import TrainerCore
from headrace.training.options import TrainerOptions
from headrace.training.warm_start import WarmStartSettings, warm_start

JOB = Path(__file__).parents[1] / "examples" / "arithmetic" / "train.toml"
RESULTS = Path(__file__).parent / "results"
POLICY = PolicyId("policy")
SEGMENTS = ((Origin.TEMPLATE, 40), (Origin.POLICY, 24), (Origin.ENVIRONMENT, 8), (Origin.POLICY, 16))
"""Origin and tokens of each segment of a row."""


def sealed_rows(config: Config, vocabulary: int) -> tuple[tuple[BatchRow, ...], dict[Address, bytes]]:
    """A batch of the job's size, and its transcripts."""
    rng, stored, rows = np.random.default_rng(7), dict[Address, bytes](), list[BatchRow]()
    place = content_version("benchmark")
    members = config.schedule.group_size
    for row in range(config.schedule.batch_groups * members):
        group, member = GroupId.of(Purpose.TRAIN, row // members), row % members
        segments: list[TokenSegment] = []
        for origin, tokens in SEGMENTS:
            ids = int32_bytes(rng.integers(4, vocabulary, tokens))
            if origin is Origin.POLICY:
                logprobs = float32_bytes(-rng.exponential(0.5, tokens))
                reference = PolicyRef(POLICY, 0)
                segments.append(TokenSegment(origin, ids, logprobs, reference, 0, Sampling(1.0), FinishReason.STOP))
            else:
                segments.append(TokenSegment(origin, ids))
        transcript = Transcript(
            episode=EpisodeId(group, member, 0),
            task=place,
            provenance=Provenance(place, (PolicyVersion(POLICY, 0, place),), place, place),
            paths=(TokenPath("policy", tuple(segments)),),
            actions=(),
            terminal=Success(),
        )
        transcript.check()
        data = canonical_bytes(transcript)
        stored[address_of(data)] = data
        rows.append(BatchRow(address_of(data), 0, group, member, 1, 1.0, 0.7 if member % 2 else -0.7, 1.0))
    return tuple(rows), stored


class Sides:
    """Each call does one thing and returns its seconds."""

    def __init__(self, folder: Path) -> None:
        config = load_config(JOB)
        harness = open_harness(config.harness.kind, config.harness.options, (CALCULATOR,))
        vocabulary = harness.codec.vocabulary_size
        model = {**config.policy.options["model"], "vocab_size": vocabulary}
        policy = warm_start(model, (), WarmStartSettings(steps=0), seed=7, out_dir=folder / "policy")
        self.rows, stored = sealed_rows(config, vocabulary)
        self.blobs, self._folder = FileBlobs(folder / "blobs"), folder
        self.core = TrainerCore(
            decode_options(config.trainer.options, TrainerOptions, "trainer.options"),
            policy,
            config.algorithm,
            read_row=stored.__getitem__,
            put_weights=self.blobs.put,
            clock=time.perf_counter,
            policy_id=POLICY,
            files=self.blobs,
        )
        self.parameters = self.core.copies["policy (trained)"] // 4
        self.size_bytes = 0

    def update(self) -> float:
        """Scores and updates; the new weights are stored, as every update's are."""
        version = self.core.version
        began_s = time.perf_counter()
        self.core.score(self.rows, version)
        self.core.update(BatchPlan(version + 1, POLICY, version, self.rows, content_version("plan"), b"key"))
        return time.perf_counter() - began_s

    def save(self) -> float:
        """A checkpoint, from the call to the manifest on disk."""
        before = self.core.export()
        began_s = time.perf_counter()
        manifest = self.core.save()
        took_s = time.perf_counter() - began_s
        assert manifest.weights == before and manifest.version == self.core.version
        assert sum(self.blobs.verify(item) for item in manifest.blobs - {manifest.address}) == manifest.size_bytes
        self.core.load(manifest)
        self.size_bytes = manifest.size_bytes
        return took_s

    def one_file(self) -> float:
        """Floor: the checkpoint's bytes in one file, synced once."""
        data = os.urandom(self.size_bytes)
        began_s = time.perf_counter()
        with (self._folder / "floor").open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return time.perf_counter() - began_s

    def digest(self) -> float:
        """Floor: the SHA-256 of the checkpoint's bytes."""
        data = bytes(self.size_bytes)
        began_s = time.perf_counter()
        hashlib.sha256(data).digest()
        return time.perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=RESULTS) as name:  # not in memory: /tmp may be
        sides = Sides(Path(name))
        calls = {"update": sides.update, "save": sides.save, "one file": sides.one_file, "SHA-256": sides.digest}
        seconds: dict[str, list[float]] = {side: [] for side in calls}
        for number in range(arguments.repeats + 1):
            for side, call in calls.items():
                took_s = call()
                if number:  # the first of each warms up
                    seconds[side].append(took_s)
    median = {side: statistics.median(values) for side, values in seconds.items()}
    shares = [save_s / update_s for save_s, update_s in zip(seconds["save"], seconds["update"], strict=True)]
    print(f"{sides.parameters:,} parameters, {sides.size_bytes / 1e6:.1f} MB a checkpoint, {len(sides.rows)} rows")
    for side, value in median.items():
        print(f"{side:<10}{1e3 * value:>9.1f} ms   ({1e3 * min(seconds[side]):.1f} to {1e3 * max(seconds[side]):.1f})")
    share = statistics.median(shares)
    print(f"a save blocks the trainer for {share:.1%} of an update ({min(shares):.1%} to {max(shares):.1%})")
    result = {
        "seconds": seconds,
        "share_of_an_update": share,
        "parameters": sides.parameters,
        "size_bytes": sides.size_bytes,
        "load": os.getloadavg(),
    }
    (RESULTS / "checkpoint.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
