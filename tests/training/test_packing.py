import dataclasses
import math

import msgspec
import numpy as np
import pytest

from headrace.errors import IntegrityError
from headrace.records.ids import Address, GroupId
from headrace.records.provenance import canonical_bytes
from headrace.records.segment import Attachment, Origin
from headrace.records.trajectory import ForkCause, PathParent
from headrace.records.trajectory import Path as TokenPath
from headrace.training.collate import pad
from headrace.training.packing import pack, pack_lists, read_transcripts


def packed(lab, rows):
    return pack(rows, read_transcripts((row.transcript for row in rows), lab.rows.__getitem__))


def test_tokens_mask_and_logprobs_are_those_of_the_segments(lab):
    segments = lab.episode([1, 2, 3], ([4, 5], [6, 7]), ([8], []), version=3, temperature=0.5)
    batch = packed(lab, [lab.row(segments)])
    assert batch.ids_N.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert batch.action_mask_N.tolist() == [False] * 3 + [True] * 2 + [False] * 2 + [True]
    assert batch.position_ids_N.tolist() == list(range(8))
    assert batch.versions_N.tolist() == [-1, -1, -1, 3, 3, -1, -1, 3]
    assert batch.temperature_N.tolist() == [1.0, 1.0, 1.0, 0.5, 0.5, 1.0, 1.0, 0.5]
    assert np.isnan(batch.behavior_logprobs_N).tolist() == (~batch.action_mask_N).tolist()
    assert batch.behavior_logprobs_N[3:5].tobytes() == segments[1].behavior_logprobs
    assert batch.is_fresh_context_N.tolist() == batch.action_mask_N.tolist()


def test_a_token_that_attended_to_an_older_cache_is_not_fresh(lab):
    segments = [lab.given([1]), lab.policy([2], [1], version=2, context=1)]
    assert not packed(lab, [lab.row(segments)]).is_fresh_context_N.any()


def test_observation_tokens_are_never_trained_on(lab):
    rows = lab.ragged(20)
    transcripts = read_transcripts((row.transcript for row in rows), lab.rows.__getitem__)
    batch = pack(rows, transcripts)
    for row, start, stop in zip(rows, batch.cu_seqlens, batch.cu_seqlens[1:], strict=False):
        origins = [s.origin for s in transcripts[row.transcript].paths[0].segments for _ in range(len(s))]
        assert [origin is Origin.POLICY for origin in origins] == batch.action_mask_N[start:stop].tolist()


def test_a_forked_path_trains_only_its_own_segments(lab):
    root = lab.episode([1, 2], ([3, 4], [5]), ([6], []))
    own = (lab.policy([7, 8], [1, 2, 3, 4, 5]),)
    fork = TokenPath("main", own, PathParent(0, 3, ForkCause.HISTORY_REWRITTEN))
    transcript = lab.seal(TokenPath("main", tuple(root)), fork)
    batch = packed(lab, [lab.row_of(transcript, path=0), lab.row_of(transcript, path=1)])
    start = batch.cu_seqlens[1]
    assert batch.ids_N[start:].tolist() == [1, 2, 3, 4, 5, 7, 8]
    assert batch.action_mask_N[start:].tolist() == [False] * 5 + [True] * 2
    assert np.isfinite(batch.behavior_logprobs_N[start + 2 : start + 4]).all()
    assert batch.action_tokens_B.tolist() == [3, 2]
    assert int(batch.action_mask_N.sum()) == transcript.num_sampled_tokens


def test_rows_stand_in_the_order_of_the_plan_whatever_the_order_of_the_transcripts(lab):
    rows = lab.ragged(6)
    transcripts = read_transcripts((row.transcript for row in rows), lab.rows.__getitem__)
    backwards = dict(reversed(transcripts.items()))
    assert pack(rows, backwards).transcripts == tuple(row.transcript for row in rows)
    assert pack(rows, backwards).ids_N.tobytes() == pack(rows, transcripts).ids_N.tobytes()


def test_padding_and_packing_hold_the_same_values(lab):
    rows = [*lab.ragged(8), lab.row([lab.given([1, 2])])]
    flat = packed(lab, rows)
    padded = pad(flat)
    assert padded.ids_BT.shape == (9, flat.lengths_B.max())
    for field in dataclasses.fields(flat):
        if field.name.endswith("_N"):
            side = getattr(padded, field.name.removesuffix("_N") + "_BT")
            np.testing.assert_array_equal(side[padded.valid_mask_BT], getattr(flat, field.name))
    assert not padded.action_mask_BT[~padded.valid_mask_BT].any()
    assert np.isnan(padded.behavior_logprobs_BT[~padded.valid_mask_BT]).all()


def test_a_row_without_trained_tokens_is_allowed_and_counts_none(lab):
    batch = packed(lab, [lab.row([lab.given([1, 2])]), lab.row(lab.episode([1], ([2], [])))])
    assert batch.action_tokens_B.tolist() == [0, 1]


def spoil(lab, row, **changes):
    """The row with its transcript's second segment changed, sealed without a check."""
    transcript = read_transcripts([row.transcript], lab.rows.__getitem__)[row.transcript]
    first, second, *rest = transcript.paths[0].segments
    path = TokenPath("main", (first, msgspec.structs.replace(second, **changes), *rest))
    broken = msgspec.structs.replace(transcript, paths=(path,))
    lab.rows[broken.address] = canonical_bytes(broken)
    return msgspec.structs.replace(row, transcript=broken.address)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"behavior_logprobs": np.zeros(1, "<f4").tobytes()}, "must agree"),
        ({"behavior_logprobs": np.array([-1.0, np.nan], "<f4").tobytes()}, "no behavior log-prob"),
        ({"behavior_logprobs": np.array([-1.0, 0.5], "<f4").tobytes()}, "finite and <= 0"),
        ({"behavior_logprobs": np.array([-1.0, -np.inf], "<f4").tobytes()}, "finite and <= 0"),
        ({"behavior_logprobs": None}, "contradict"),
        ({"ids": b"12345"}, "bytes of ids"),
        ({"policy": None}, "no policy version"),
        ({"sampling": None}, "no sampling"),
        ({"attachments": (Attachment("image/png", Address("0" * 64), 0, 1, Address("0" * 64)),)}, "attachments"),
    ],
)
def test_a_misaligned_segment_is_refused(lab, changes, message):
    row = spoil(lab, lab.row(lab.episode([1], ([2, 3], []))), **changes)
    with pytest.raises(IntegrityError, match=message):
        packed(lab, [row])


def test_tokens_taken_greedily_cannot_be_trained_on(lab):
    with pytest.raises(IntegrityError, match="temperature 0"):
        packed(lab, [lab.row(lab.episode([1], ([2], []), temperature=0.0))])


def test_a_trained_first_token_is_refused(lab):
    with pytest.raises(IntegrityError, match="without a context"):
        packed(lab, [lab.row([lab.policy([1, 2])])])


def test_rows_that_do_not_belong_are_refused(lab):
    row = lab.row(lab.episode([1], ([2], [])))
    replace = msgspec.structs.replace
    held_out = lab.row_of(lab.seal(TokenPath("main", tuple(lab.episode([1], ([2], [])))), purpose="eval"))
    cases = [
        ([row, row], "twice as use 1"),
        ([replace(row, group=GroupId("train", 5))], "is of train"),
        ([replace(row, member=row.member + 1)], "is of train"),
        ([replace(row, path=1)], "path 1 does not exist"),
        ([replace(row, advantage=math.nan)], "advantages_B holds nan"),
        ([replace(row, reward=math.inf)], "rewards_B holds inf"),
        ([replace(row, weight=-1.0)], "weights are >= 0"),
        ([held_out], "never enters training"),
    ]
    for rows, message in cases:
        with pytest.raises(IntegrityError, match=message):
            packed(lab, rows)
    with pytest.raises(IntegrityError, match="was not read"):
        pack([row], {})
    assert packed(lab, [row, replace(row, use=2)]).action_tokens_B.tolist() == [1, 1]


def test_a_damaged_row_is_refused(lab):
    row = lab.row(lab.episode([1], ([2], [])))
    data = bytearray(lab.rows[row.transcript])
    data[len(data) // 2] ^= 1
    with pytest.raises(IntegrityError, match="damaged"):
        read_transcripts([row.transcript], lambda _: bytes(data))


def test_lists_from_outside_pack_to_the_same_tokens(lab):
    rows = lab.ragged(5, version=2, temperature=0.7)
    batch = packed(lab, rows)
    pieces = list(zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False))
    lists = [
        [values[a:b].tolist() for a, b in pieces]
        for values in (batch.ids_N, batch.action_mask_N, batch.behavior_logprobs_N)
    ]
    again = pack_lists(*lists, version=2, temperature=0.7)
    for field in dataclasses.fields(again):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(batch, field.name), err_msg=field.name)
    with pytest.raises(IntegrityError, match="row 0 has 2 ids"):
        pack_lists([[1, 2]], [[False]], [[0.0, 0.0]], version=0)
