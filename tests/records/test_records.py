"""Laws of single records: round trips, addresses, refusals."""

import math

import msgspec
import numpy as np
import pytest

from headrace.documents import documents
from headrace.errors import IntegrityError
from headrace.lifecycle import STAGES
from headrace.records.action import Action, ActionIntended, EffectClass
from headrace.records.arrays import Float32Bytes, as_float32, as_int32, float32_bytes, int32_bytes
from headrace.records.events import Durability, Event, Payload, durability, is_once
from headrace.records.ids import ActionId, Address, EpisodeId, GroupId, LeaseToken, PolicyId, PolicyRef, Purpose
from headrace.records.provenance import PolicyVersion, Provenance, content_version
from headrace.records.reward import RewardRule, reward_of
from headrace.records.run import RunEnded, WorkerState, WorkerStateChanged
from headrace.records.segment import Attachment, FinishReason, Origin, Sampling, TokenSegment, are_logprobs
from headrace.records.streams import keyed_stream, stream, stream_key
from headrace.records.task import Budget
from headrace.records.terminal import Success
from headrace.records.trajectory import ForkCause, Path, PathParent, Transcript
from headrace.records.verdict import Scored, Unscored, UnscoredCause, Verdict

EPISODE = EpisodeId(GroupId.of(Purpose.TRAIN, 12), 3, 0)
HASH = Address("a" * 64)


def sampled(*ids: int, version: int = 0, logprob: float = -0.5) -> TokenSegment:
    return TokenSegment(
        origin=Origin.POLICY,
        ids=int32_bytes(ids),
        behavior_logprobs=float32_bytes([logprob] * len(ids)),
        policy=PolicyRef(PolicyId("p"), version),
        context_version_min=version,
        sampling=Sampling(),
        finish=FinishReason.STOP,
    )


def placed(*ids: int, origin: Origin = Origin.TEMPLATE) -> TokenSegment:
    return TokenSegment(origin=origin, ids=int32_bytes(ids))


def transcript(*paths: Path, versions: tuple[int, ...] = (0,)) -> Transcript:
    policies = tuple(PolicyVersion(PolicyId("p"), version, HASH) for version in versions)
    return Transcript(EPISODE, HASH, Provenance(HASH, policies, HASH, HASH), paths, (), Success())


@pytest.mark.parametrize("name", [EPISODE, ActionId(EPISODE, 2, 1), EPISODE.group])
def test_a_name_parses_back_to_itself(name: EpisodeId | ActionId | GroupId) -> None:
    assert type(name).parse(str(name)) == name


def test_arrays_survive_their_bytes_and_are_read_only() -> None:
    ids = as_int32(int32_bytes([1, -2, 2**31 - 1]))
    assert ids.tolist() == [1, -2, 2**31 - 1]
    assert not ids.flags.writeable
    assert as_float32(float32_bytes(np.array([0.5], dtype=np.float64))).dtype == np.float32
    with pytest.raises(OverflowError):
        int32_bytes([2**31])


def test_every_event_type_has_its_own_kind_and_stages_name_only_events() -> None:
    kinds = [str(event.__struct_config__.tag) for event in Payload.__args__]
    assert len(set(kinds)) == len(kinds)
    named = {event for stage in STAGES for event in stage.events}
    assert named <= set(Payload.__args__)


def intent(effect: EffectClass) -> ActionIntended:
    return ActionIntended(Action(ActionId(EPISODE, 0, 0), "calculator", "{}"), LeaseToken(1), effect)


def test_an_intent_waits_for_the_disk_unless_the_environment_is_pure() -> None:
    assert durability(intent(EffectClass.PURE)) is Durability.BATCHED
    assert durability(intent(EffectClass.EXTERNAL)) is Durability.DURABLE
    assert durability(RunEnded("completed", 1)) is Durability.DURABLE


def test_an_event_survives_its_bytes_and_telemetry_may_repeat() -> None:
    event = Event(1, 0, "life", 5, str(EPISODE), 0, intent(EffectClass.PURE))
    assert msgspec.msgpack.Decoder(Event).decode(msgspec.msgpack.encode(event)) == event
    assert event.kind == "action_intended"
    assert is_once(event.payload)
    assert not is_once(WorkerStateChanged("trainer", WorkerState.IDLE))


def test_generated_documents_are_current(request: pytest.FixtureRequest) -> None:
    docs = request.config.rootpath / "docs"
    stale = [path for path, text in documents().items() if (docs / path).read_text(encoding="utf-8") != text]
    assert not stale, f"{stale} differ from the code; run `make schema`"


def test_an_address_changes_with_every_field_that_training_reads() -> None:
    base = transcript(Path("a", (placed(1), sampled(2))))
    other = transcript(Path("a", (placed(1), sampled(2, logprob=-0.25))))
    assert base.address == transcript(Path("a", (placed(1), sampled(2)))).address
    assert base.address != other.address


def test_content_versions_do_not_collide_by_concatenation() -> None:
    assert content_version("ab", "c") != content_version("a", "bc")


@pytest.mark.parametrize("bad", [math.nan, -math.inf, 0.1])
def test_a_log_prob_that_is_none_is_refused(bad: float) -> None:
    with pytest.raises(IntegrityError, match="must be finite and <= 0"):
        sampled(1, 2, logprob=bad).check()


@pytest.mark.parametrize("bad", [math.nan, -math.inf, 0.1])
def test_a_log_prob_that_is_none_is_named_wherever_it_stands_in_a_transcript(bad: float) -> None:
    wrong = msgspec.structs.replace(sampled(1, 2, 3), behavior_logprobs=float32_bytes([-1.0, -0.5, bad]))
    with pytest.raises(IntegrityError, match="at token 2: it must be finite and <= 0"):
        transcript(Path("a", (placed(1), sampled(1, 2), placed(1), wrong))).check()


def test_the_bytes_of_minus_infinity_across_two_log_probs_are_two_log_probs() -> None:
    data = Float32Bytes(b"\x00\x00\x00\x00" + b"\x00\x80\xff\xc0")
    assert float32_bytes([-math.inf]) in data
    assert are_logprobs(data)


def test_a_float_of_any_sign_and_exponent_is_a_log_prob_exactly_when_it_is_finite_and_not_above_zero() -> None:
    for values in (np.arange(2**16, dtype="<u4") << 16).view("<f4"), np.array([1, 2**31 + 1], "<u4").view("<f4"):
        lawful = np.isfinite(values) & (values <= 0.0)
        found = [are_logprobs(Float32Bytes(value.tobytes())) for value in values]
        assert found == lawful.tolist()


def test_a_missing_log_prob_is_refused_and_an_extra_one_too() -> None:
    with pytest.raises(IntegrityError, match="2 ids and 1 behavior log-probs"):
        msgspec.structs.replace(sampled(1, 2), behavior_logprobs=float32_bytes([-1.0])).check()
    with pytest.raises(IntegrityError, match="behavior_logprobs is present"):
        msgspec.structs.replace(placed(1), behavior_logprobs=float32_bytes([-1.0])).check()


def test_an_attachment_must_lie_within_its_segment() -> None:
    image = Attachment("image/png", HASH, 1, 3, HASH)
    msgspec.structs.replace(placed(7, 8, 9), attachments=(image,)).check()
    with pytest.raises(IntegrityError, match="leaves the segment"):
        msgspec.structs.replace(placed(7, 8), attachments=(image,)).check()


def test_versions_may_rise_but_not_fall_along_a_path() -> None:
    transcript(Path("a", (sampled(1, version=0), sampled(2, version=1))), versions=(0, 1)).check()
    with pytest.raises(IntegrityError, match="version 0 follows 1"):
        transcript(Path("a", (sampled(1, version=1), sampled(2, version=0))), versions=(0, 1)).check()


def test_a_version_that_provenance_does_not_name_is_refused() -> None:
    with pytest.raises(IntegrityError, match="provenance does not name it"):
        transcript(Path("a", (sampled(1, version=1),)), versions=(0,)).check()


def test_sealing_without_all_versions_is_refused() -> None:
    broken = msgspec.structs.replace(transcript(Path("a", (sampled(1),))), provenance=Provenance(HASH, (), HASH, HASH))
    with pytest.raises(IntegrityError, match="p@0 sampled tokens but provenance does not name it"):
        broken.check()
    with pytest.raises(IntegrityError, match=r"provenance\.harness"):
        msgspec.structs.replace(broken, provenance=Provenance(HASH, (), Address(""), HASH)).check()


def test_a_fork_shares_its_prefix_by_reference_and_owns_only_what_follows() -> None:
    root = Path("main", (placed(1), sampled(2), placed(3), sampled(4)))
    fork = Path("main", (placed(9), sampled(5)), PathParent(0, 2, ForkCause.COMPACTION))
    forked = transcript(root, fork)
    forked.check()
    assert [segment.ids_T.tolist() for segment in forked.sequence(1)] == [[1], [2], [9], [5]]
    assert forked.own_start(1) == 2
    assert [segment.ids_T.tolist() for segment in forked.sampled()] == [[2], [4], [5]]
    with pytest.raises(IntegrityError, match="forks at segment 7"):
        transcript(root, Path("main", (), PathParent(0, 7, ForkCause.SUB_AGENT))).check()


@pytest.mark.parametrize("components", [(), (("a", 1.5),), (("a", math.nan),), (("a", 1.0), ("a", 0.0)), (("", 1.0),)])
def test_an_impossible_score_is_refused(components: tuple[tuple[str, float], ...]) -> None:
    with pytest.raises(IntegrityError):
        Verdict(HASH, HASH, Scored(components, "")).check()


def test_absent_and_zero_rewards_stay_different() -> None:
    zero = Verdict(HASH, HASH, Scored((("answer", 0.0),), ""))
    absent = Verdict(HASH, HASH, Unscored(UnscoredCause.INFRA, "node lost"))
    assert reward_of(zero, RewardRule.MEAN) == 0.0
    assert reward_of(absent, RewardRule.MEAN) is None
    assert reward_of(None, RewardRule.MEAN) is None
    assert zero.address != absent.address


def test_reward_rules_aggregate_named_components() -> None:
    verdict = Verdict(HASH, HASH, Scored((("answer", 1.0), ("format", 0.5)), ""))
    assert [reward_of(verdict, rule) for rule in (RewardRule.MEAN, RewardRule.PRODUCT, RewardRule.FIRST)] == [
        0.75,
        0.5,
        1.0,
    ]


def test_streams_depend_on_their_names_alone() -> None:
    assert stream(7, "a", 1).random() == stream(7, "a", 1).random()
    assert stream(7, "a", 1).random() != stream(7, "a", 2).random()
    assert stream(7, "a").random() == keyed_stream(stream_key(7, "a")).random()
    skipped = keyed_stream(stream_key(7, "a"), position=2)
    whole = stream(7, "a").random(12)
    assert skipped.random() == whole[8]


def test_a_budget_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"budget\.turns is 0"):
        Budget(turns=0)
