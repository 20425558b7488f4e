"""B1 and B2: CPU of making one packed batch of W-B, from Python lists and from sealed transcripts.

Run: `python -m benchmarks.batch [--peers PYTHON]`. W-B: 512 trajectories, prompts of 128 to 512 tokens, responses of 384 to
3072, 1,993 tokens in the mean. Every run is compared with a padded reference that plain loops made once. B2 reads rows
that are checked against their SHA-256, decodes and packs them; the peers have no sealed store, so beside B2 they begin with
lists in memory, as they do beside B1.
"""

import dataclasses
import itertools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sitting.measure import Figure, Side, options, sit
from benchmarks.sitting.peer import peer_side
from headrace.records.arrays import float32_bytes, int32_bytes
from headrace.records.batch import BatchRow
from headrace.records.ids import Address, EpisodeId, GroupId, PolicyId, PolicyRef, Purpose
from headrace.records.provenance import PolicyVersion, Provenance, address_of, canonical_bytes, content_version
from headrace.records.segment import FinishReason, Origin, Sampling, TokenSegment
from headrace.records.streams import stream
from headrace.records.terminal import Success
from headrace.records.trajectory import Path as TokenPath
from headrace.records.trajectory import Transcript
from headrace.training.packing import PackedTokens, pack, pack_lists, read_transcripts

ROWS, MEMBERS = 512, 8
VERSION = 3
POLICY = PolicyRef(PolicyId("policy"), VERSION)
VERSIONS = tuple(content_version(name) for name in ("task", "harness", "environment", "weights"))
B1 = Figure("B1", "W-B from Python lists to one packed batch", "ms", 1e3, 60.0)
B2 = Figure("B2", "W-B from sealed transcripts, checksums verified, to one packed batch", "ms", 1e3, 20.0)


class Rows:
    """W-B as Python lists, as sealed transcripts, and as a padded reference."""

    def __init__(self) -> None:
        draws = stream(7, "workload", "batch")
        prompts_B = draws.integers(128, 513, ROWS)
        # A skewed law between the bounds whose mean makes 1,993 tokens with the prompts.
        responses_B = np.round(384 + (3072 - 384) * draws.beta(1.2, 1.28, ROWS) ** 1.02).astype(int)
        responses_B += round(1993 - float((prompts_B + responses_B).mean()))
        responses_B = np.clip(responses_B, 384, 3072)
        self.prompts = [draws.integers(0, 150_000, n).tolist() for n in prompts_B]
        self.responses = [draws.integers(0, 150_000, n).tolist() for n in responses_B]
        self.logprobs = [(-draws.exponential(0.5, n)).tolist() for n in responses_B]
        self.ids = [prompt + response for prompt, response in zip(self.prompts, self.responses, strict=True)]
        pairs = list(zip(self.prompts, self.responses, strict=True))
        self.mask = [[False] * len(prompt) + [True] * len(response) for prompt, response in pairs]
        self.all_logprobs = [[0.0] * len(p) + values for p, values in zip(self.prompts, self.logprobs, strict=True)]
        self.num_tokens = sum(map(len, self.ids))
        self.mean_tokens = self.num_tokens / ROWS
        assert abs(self.mean_tokens - 1993) < 2, self.mean_tokens
        self.stored: dict[Address, bytes] = {}
        self.rows = [self._seal(row) for row in range(ROWS)]
        self._reference()

    def _seal(self, row: int) -> BatchRow:
        """Stores the row's transcript as sealed bytes: the prompt, then the response as four turns side by side."""
        group, member = GroupId.of(Purpose.TRAIN, row // MEMBERS), row % MEMBERS
        cuts = np.linspace(0, len(self.responses[row]), 5).astype(int).tolist()
        turns = tuple(
            TokenSegment(
                Origin.POLICY,
                int32_bytes(self.responses[row][start:stop]),
                float32_bytes(self.logprobs[row][start:stop]),
                POLICY,
                VERSION,
                Sampling(1.0),
                FinishReason.STOP,
            )
            for start, stop in itertools.pairwise(cuts)
        )
        prompt = TokenSegment(Origin.TEMPLATE, int32_bytes(self.prompts[row]))
        task, harness, environment, weights = VERSIONS
        transcript = Transcript(
            episode=EpisodeId(group, member, 0),
            task=task,
            provenance=Provenance(task, (PolicyVersion(POLICY.policy_id, VERSION, weights),), harness, environment),
            paths=(TokenPath("policy", (prompt, *turns)),),
            actions=(),
            terminal=Success(),
        )
        transcript.check()
        data = canonical_bytes(transcript)
        self.stored[address_of(data)] = data
        return BatchRow(address_of(data), 0, group, member, 1, 1.0, 0.5, 1.0)

    def _reference(self) -> None:
        width = max(map(len, self.ids))
        self.ids_BT = np.zeros((ROWS, width), np.int32)
        self.mask_BT = np.zeros((ROWS, width), bool)
        self.logprobs_BT = np.full((ROWS, width), np.nan, np.float32)
        for row in range(ROWS):
            first, last = len(self.prompts[row]), len(self.ids[row])
            self.ids_BT[row, :last] = self.ids[row]
            self.mask_BT[row, first:last] = True
            self.logprobs_BT[row, first:last] = self.logprobs[row]

    def check(self, packed: PackedTokens) -> None:
        """Asserts that the packed batch, padded, is the reference."""
        lengths_B = packed.lengths_B
        assert lengths_B.tolist() == [len(ids) for ids in self.ids]
        valid_BT = np.arange(self.ids_BT.shape[1]) < lengths_B[:, None]
        assert (self.ids_BT[valid_BT] == packed.ids_N).all()
        assert (self.mask_BT[valid_BT] == packed.action_mask_N).all()
        assert np.array_equal(self.logprobs_BT[valid_BT], packed.behavior_logprobs_N, equal_nan=True)
        assert (packed.versions_N == np.where(packed.action_mask_N, VERSION, -1)).all()
        assert packed.position_ids_N.tolist()[: lengths_B[0]] == list(range(lengths_B[0]))

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps({"prompts": self.prompts, "responses": self.responses, "logprobs": self.logprobs}))
        return path


def timed(work: Callable[[], Any], check: Callable[[Any], None]) -> Callable[[], float]:
    """Runs the work once, then asserts its result outside of the measured time."""

    def run() -> float:
        began_s = time.process_time()
        result = work()
        used_s = time.process_time() - began_s
        check(result)
        return used_s

    return run


def floor_of_lists(rows: Rows) -> Any:
    """Ids and log-probs by one numpy call each, the mask by lengths: no checks, no versions, no temperatures."""
    total = sum(map(len, rows.ids))
    ids_N = np.fromiter(itertools.chain.from_iterable(rows.ids), np.int32, total)
    logprobs_N = np.fromiter(itertools.chain.from_iterable(rows.all_logprobs), np.float32, total)
    mask_N = np.fromiter(itertools.chain.from_iterable(rows.mask), np.bool_, total)
    return ids_N, mask_N, logprobs_N


def floor_of_rows(rows: Rows) -> int:
    """SHA-256 of every row and one copy of its bytes: what reading with checksums costs anybody."""
    for address, data in rows.stored.items():
        assert address_of(data) == address
    return len(b"".join(rows.stored.values()))


def check_peer(rows: Rows, result: dict[str, Any]) -> None:
    """The peer's padded tensors hold the same ids, trained tokens and log-probs."""
    assert result["rows"] == ROWS
    assert result["id_sum"] == sum(map(sum, rows.ids)), result
    assert result["trained_tokens"] == sum(map(len, rows.responses)), result
    assert abs(result["logprob_sum"] / sum(map(sum, rows.logprobs)) - 1) < 1e-4, result


def main() -> None:
    arguments = options(__doc__).parse_args()
    rows = Rows()
    print(f"W-B: {ROWS} rows, {rows.mean_tokens:.0f} tokens in the mean")

    def check_floor(arrays: tuple[Any, ...]) -> None:
        assert all(len(values_N) == rows.num_tokens for values_N in arrays)

    def check_read(size_bytes: int) -> None:
        assert size_bytes > 8 * rows.num_tokens // 2

    def product_lists() -> PackedTokens:
        return pack_lists(rows.ids, rows.mask, rows.all_logprobs, version=VERSION)

    def product_rows() -> PackedTokens:
        addresses = [row.transcript for row in rows.rows]
        return pack(rows.rows, read_transcripts(addresses, rows.stored.__getitem__))

    with tempfile.TemporaryDirectory() as folder:
        data = rows.write(Path(folder) / "rows.json")

        def peer(name: str, script: str, published: float) -> Side:
            return peer_side(
                name, script, arguments.peers, data, check=lambda result: check_peer(rows, result), published=published
            )

        peers = [peer("SkyRL", "batch_skyrl.py", 63.0), peer("TRL", "batch_trl.py", 263.0)]
        sides = [
            Side("product", timed(product_lists, rows.check)),
            Side("floor", timed(lambda: floor_of_lists(rows), check_floor)),
        ]
        sit(B1, [*sides, *peers], arguments.repeats)
    sides = [
        Side("product", timed(product_rows, rows.check)),
        Side("floor", timed(lambda: floor_of_rows(rows), check_read)),
    ]
    from_lists = [dataclasses.replace(side, name=f"{side.name}, from lists") for side in peers]
    sit(B2, [*sides, *from_lists], arguments.repeats)


if __name__ == "__main__":
    main()
