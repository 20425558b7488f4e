"""The seeded bugs: the lawful run with one thing wrong, and the law that must notice."""

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
from lawful_run import (
    POLICY,
    Step,
    dropped,
    edited,
    find,
    repeated,
    replaced,
    replanned,
    resealed,
    row_of,
    segment,
    swapped,
    task_of,
)

from headrace.records.action import Action, ActionCommitted, ActionIntended, EffectClass
from headrace.records.arrays import int32_bytes
from headrace.records.batch import (
    BatchPlan,
    BatchPlanned,
    BatchRefilled,
    BatchSelected,
    CapacityDecided,
    GroupAdmitted,
    GroupClosed,
    GroupRejected,
)
from headrace.records.execution import EpisodeClaimed
from headrace.records.experience import ReplayedGroup
from headrace.records.ids import ActionId, EpisodeId, GroupId, LeaseToken, PolicyRef
from headrace.records.observation import ActionObserved
from headrace.records.provenance import address_of
from headrace.records.run import RunEnded
from headrace.records.segment import Origin, TokenSegment, TurnGenerated
from headrace.records.task import SourceExhausted, TaskDrawn
from headrace.records.trajectory import EpisodeStarted, Transcript, TranscriptSealed
from headrace.records.update import (
    GenerationPaused,
    GenerationResumed,
    UpdateCompleted,
    WeightsActivated,
    WeightsCommitted,
    WeightsPrepared,
    WeightsStaged,
)
from headrace.records.verdict import Scored, Unscored, UnscoredCause, Verdict, VerdictDisputed, VerdictSealed

Steps = list[Step]
Break = Callable[[Steps], Steps]
Place = Callable[[Steps], int]

FIRST = "train.0.0.1"  # the first member's attempt that counts
SPANNING = "train.3.0.0"  # sampled by versions 0 and 1
OTHER = address_of(b"other")
NAN = float("nan")


def at(kind: type, key: str | None = None) -> Place:
    """The first step of a kind, and of a key if given."""
    return lambda steps: find(steps, kind, key)


def scored_verdict(steps: Steps) -> int:
    """The first scored verdict of a training episode."""
    transcript = steps[find(steps, TranscriptSealed, FIRST)].payload.transcript
    return find(steps, VerdictSealed, f"{transcript}#1")


def drop(place: Place) -> Break:
    return lambda steps: dropped(steps, place(steps))


def repeat(place: Place) -> Break:
    return lambda steps: repeated(steps, place(steps))


def edit(place: Place, **changes: Any) -> Break:
    """The payload with other fields; a function in place of a value gets the steps."""

    def break_it(steps: Steps) -> Steps:
        values = {name: value(steps) if callable(value) else value for name, value in changes.items()}
        return edited(steps, place(steps), **values)

    return break_it


def rename(place: Place, key: str) -> Break:
    return lambda steps: replaced(steps, place(steps), dataclasses.replace(steps[place(steps)], key=key))


def move(place: Place, *, before: Place, past: int = 0) -> Break:
    """The step, standing before the one at another place, or some steps later."""

    def break_it(steps: Steps) -> Steps:
        index, target = place(steps), before(steps) + past
        found = dropped(steps, index)
        found.insert(target - (index < target), steps[index])
        return found

    return break_it


def insert(before: Place, *new: Step) -> Break:
    return lambda steps: [*steps[: before(steps)], *new, *steps[before(steps) :]]


def both(first: Break, second: Break) -> Break:
    return lambda steps: second(first(steps))


def turn(step: int, episode: str, *segments: TokenSegment) -> Break:
    return edit(at(TurnGenerated, f"{episode}/{step}"), segments=segments)


def plan(update: int) -> Place:
    return at(BatchPlanned, str(update))


def plan_row(update: int, row: int, **changes: Any) -> Break:
    return lambda steps: replanned(steps, plan(update)(steps), row, **changes)


def plan_rows(update: int, change: Callable[[tuple], tuple]) -> Break:
    def reorder(old: BatchPlan) -> BatchPlan:
        return msgspec.structs.replace(old, rows=change(old.rows))

    return lambda steps: resealed(steps, plan(update)(steps), "plan", reorder, BatchPlan)


def transcript_of(episode: str) -> Callable[[Steps], str]:
    return lambda steps: steps[find(steps, TranscriptSealed, episode)].payload.transcript


def trained_twice(steps: Steps) -> Steps:
    """The second update trains what the first has trained."""
    data = steps[plan(1)(steps)].rows[0].data
    first = msgspec.msgpack.decode(data, type=BatchPlan).rows[0]
    return replanned(steps, plan(2)(steps), 0, transcript=first.transcript)


def members(group: int, change: Callable[[list], list]) -> Break:
    place = at(GroupClosed, f"train.{group}")
    return lambda steps: edited(steps, place(steps), members=tuple(change(list(steps[place(steps)].payload.members))))


def member(position: int, **changes: Any) -> Break:
    """One member of the first group with other fields."""

    def change(found: list) -> list:
        found[position] = msgspec.structs.replace(found[position], **changes)
        return found

    return members(0, change)


def zeroed(found: list) -> list:
    """What a missing reward becomes in careless hands."""
    return [msgspec.structs.replace(item, reward=item.reward or 0.0) for item in found]


def with_disputed_verdict(steps: Steps) -> Steps:
    transcript = transcript_of(FIRST)(steps)
    second = steps[find(steps, VerdictDisputed, transcript)].payload.second
    return member(0, verdict=second)(steps)


def verdict_became(outcome: Scored | Unscored) -> Break:
    """The record has this outcome; its event stays."""

    def change(verdict: Verdict) -> Verdict:
        return Verdict(verdict.transcript, verdict.grader, outcome)

    return lambda steps: resealed(steps, scored_verdict(steps), "verdict", change, Verdict)


def transcript_became(change: Callable[[Transcript], Transcript]) -> Break:
    return lambda steps: resealed(steps, find(steps, TranscriptSealed, FIRST), "transcript", change, Transcript)


def without_harness(transcript: Transcript) -> Transcript:
    provenance = msgspec.structs.replace(transcript.provenance, harness="")
    return msgspec.structs.replace(transcript, provenance=provenance)


def of_another_episode(transcript: Transcript) -> Transcript:
    return msgspec.structs.replace(transcript, episode=EpisodeId.parse("train.9.0.0"), actions=())


def second_action_never_observed(steps: Steps) -> Steps:
    index = find(steps, ActionIntended, f"{FIRST}/0.0")
    action = Action(ActionId(EpisodeId.parse(FIRST), 0, 1), "calculator", "{}")
    return insert(lambda _: index + 1, Step(steps[index].with_payload(action=action).payload, str(action.id)))(steps)


def admit(ordinal: int, outstanding: int) -> tuple[Step, Step]:
    task = row_of("task", task_of(ordinal))
    return (
        Step(TaskDrawn(task.address, "sums", "easy"), f"train.{ordinal}", (task,)),
        Step(GroupAdmitted(2, 0, outstanding), f"train.{ordinal}"),
    )


def replayed(ordinal: int) -> ReplayedGroup:
    return ReplayedGroup(GroupId("train", ordinal), 2, 2, 2.0)


outside = edit(at(ActionIntended, "train.0.0.0/0.0"), effect=EffectClass.EXTERNAL)
outside_again = edit(at(ActionIntended, f"{FIRST}/0.0"), effect=EffectClass.EXTERNAL)
beyond_credit = insert(at(BatchSelected, "1"), *admit(4, 5))
early = move(at(GroupAdmitted, "train.4"), before=at(UpdateCompleted, "1"))

C1: dict[str, Break] = {
    "a task is drawn twice": repeat(at(TaskDrawn)),
    "a drawn task is lost": drop(at(TaskDrawn, "train.2")),
    "evaluation takes an ordinal": rename(at(TaskDrawn), "eval.0"),
    "evaluation has a group that trains": edit(at(BatchSelected), groups=(GroupId("eval", 0),)),
    "a group leaves twice": repeat(at(GroupRejected)),
    "a rejected group claims to be trained": edit(at(GroupRejected), state="trained"),
    "a filtered group is trained all the same": edit(plan(2), groups=(GroupId("train", 2), GroupId("train", 3))),
    "a trained group is selected again": edit(at(BatchSelected, "2"), groups=(GroupId("train", 0),)),
    "a task is drawn again that was not requeued": edit(at(TaskDrawn, "train.4"), requeued_from=GroupId("train", 2)),
    "a group that never trained is replayed": edit(at(BatchSelected, "2"), replayed=(replayed(2),)),
    "the source miscounts what it gave out": insert(len, Step(SourceExhausted(4), "source")),
}
C2: dict[str, Break] = {
    "a transcript is trained in two updates": trained_twice,
    "a row stands twice in a plan": plan_rows(1, lambda rows: (*rows, rows[-1])),
    "a plan follows arrival": plan_rows(1, lambda rows: rows[::-1]),
    "a transcript is used more often than allowed": plan_row(1, 0, use=2),
    "a plan holds a group that was not selected": edit(at(BatchSelected, "2"), groups=(GroupId("train", 3),)),
    "a batch selects a group twice": edit(at(BatchSelected, "2"), groups=(GroupId("train", 3),) * 2),
    "a plan replays what was not selected for it": edit(plan(2), replayed=(replayed(0),)),
    "a refill brings a group a second time": insert(plan(2), Step(BatchRefilled(2, 2, (GroupId("train", 3),)), "2")),
    "a plan was never selected": drop(at(BatchSelected, "1")),
    "an update is planned twice": repeat(plan(1)),
    "an event miscounts the rows of its plan": edit(plan(1), rows=9),
    "a row belongs to a group that the event leaves out": edit(plan(2), groups=(GroupId("train", 3),)),
}
C3: dict[str, Break] = {
    "a token is granted twice": edit(at(EpisodeClaimed, "train.0.1.0#4"), token=LeaseToken(3)),
    "a claim falls behind its predecessor": insert(
        at(EpisodeStarted, FIRST), Step(EpisodeClaimed(LeaseToken(0), 9.0), f"{FIRST}#0")
    ),
    "a fenced owner acts": edit(at(ActionIntended, f"{FIRST}/0.0"), token=LeaseToken(2)),
    "nobody owns the episode that acts": drop(at(EpisodeClaimed, f"{FIRST}#3")),
}
C4: dict[str, Break] = {
    "an action is intended twice": repeat(at(ActionIntended)),
    "an action is committed twice": repeat(at(ActionCommitted)),
    "an action is observed twice": repeat(at(ActionObserved)),
    "a new attempt starts after an external action": outside,
    "a member acts outside twice": both(outside, outside_again),
}
C5: dict[str, Break] = {
    "an action runs without INTENT": drop(at(ActionIntended)),
    "an observation comes without COMMIT": drop(at(ActionCommitted)),
    "COMMIT and OBSERVED change places": lambda s: swapped(s, find(s, ActionCommitted), find(s, ActionObserved)),
    "the next turn does not wait for the observation": drop(at(ActionObserved)),
    "the next turn does not wait for the second action": second_action_never_observed,
    "a turn is delivered twice": repeat(at(TurnGenerated)),
    "a turn is left out": edit(at(TurnGenerated, f"{FIRST}/1"), step=2),
    "an action belongs to a turn that is over": move(
        at(ActionIntended, f"{FIRST}/0.0"), before=at(TranscriptSealed, FIRST)
    ),
}
C6: dict[str, Break] = {
    "a version serves before it is committed": turn(0, FIRST, segment(1, [5, 6, 0])),
    "versions fall along a trajectory": turn(1, SPANNING, segment(1, [7, 8], None), segment(0, [9])),
    "a pinned episode follows a swap": edit(at(EpisodeStarted, SPANNING), pin_version=0),
    "a seal names a version twice": edit(at(TranscriptSealed, SPANNING), versions=(0, 0, 1)),
    "a turn holds a token that nobody sampled": turn(0, FIRST, TokenSegment(Origin.TEMPLATE, int32_bytes([5, 6, 0]))),
    "a version is skipped": edit(at(WeightsCommitted, "policy@1"), policy=PolicyRef(POLICY, 2)),
    "a version is committed twice": repeat(at(WeightsCommitted, "policy@1")),
    "a version has two contents": edit(at(WeightsCommitted, "policy@1"), weights=OTHER),
    "other weights are staged than the update made": edit(at(WeightsStaged, "policy@1"), weights=OTHER),
    "a version is committed without being staged": drop(at(WeightsStaged, "policy@1")),
    "a worker prepares what was never staged": move(at(WeightsPrepared), before=at(WeightsStaged)),
    "a worker serves a version that is not committed": move(
        at(WeightsActivated, "policy@1/engine"), before=at(WeightsCommitted, "policy@1")
    ),
}
C7: dict[str, Break] = {
    "an absent reward becomes 0": members(1, zeroed),
    "a scored member loses its reward": member(0, reward=None),
    "a reward is not what its verdict gives": member(1, reward=0.25),
    "a reward is not a number": member(1, reward=NAN),
    "a group closes with the verdict that does not count": with_disputed_verdict,
    "an unscored verdict calls itself scored": verdict_became(Unscored(UnscoredCause.GRADER_TIMEOUT, "late")),
    "a score is not finite": verdict_became(Scored((("answer", NAN),), "")),
    "a scored verdict is replaced": repeat(scored_verdict),
    "a verdict is of another transcript than its event says": edit(
        scored_verdict, transcript=transcript_of("train.0.0.0")
    ),
    "a dispute names a verdict that does not count": edit(at(VerdictDisputed), first=OTHER),
    "a plan trains a reward that its group did not close with": plan_row(1, 0, reward=1.0),
    "a plan holds a member without reward": plan_row(1, 2, member=1),
    "an advantage is not a number": plan_row(1, 0, advantage=float("inf")),
    "an infrastructure failure has a reward": edit(at(TranscriptSealed, FIRST), terminal="infra_error:engine"),
    "a mean reward runs over absent ones": edit(plan(1), mean_reward=NAN),
}
C8: dict[str, Break] = {
    "a member is missing": members(0, lambda found: found[:1]),
    "a member counts twice": members(0, lambda found: [found[0], found[0]]),
    "a stranger is a member": member(0, episode=EpisodeId.parse("train.1.0.0")),
    "a group closes with a transcript that another attempt sealed": member(0, episode=EpisodeId.parse("train.0.0.0")),
    "a group closes twice": repeat(at(GroupClosed)),
    "a group closes that was never admitted": drop(at(GroupAdmitted)),
    "a group is smaller than configured": edit(at(GroupAdmitted), size=1),
    "a group trains before it is complete": move(at(GroupClosed, "train.1"), before=at(WeightsCommitted, "policy@1")),
    "a plan takes a transcript that is no member's": plan_row(1, 0, transcript=OTHER),
}
C10: dict[str, Break] = {
    "an episode is sealed twice": repeat(at(TranscriptSealed)),
    "two episodes share a transcript": edit(at(TranscriptSealed, "train.0.1.0"), transcript=transcript_of(FIRST)),
    "a turn follows the seal": move(at(TurnGenerated, f"{FIRST}/1"), before=at(TranscriptSealed, FIRST), past=1),
    "a claim follows the seal": insert(at(GroupClosed), Step(EpisodeClaimed(LeaseToken(99), 1.0), f"{FIRST}#99")),
    "an event miscounts the tokens of its transcript": edit(at(TranscriptSealed), sampled_tokens=7),
    "a transcript names no harness version": transcript_became(without_harness),
    "a transcript is of another episode": transcript_became(of_another_episode),
    "an episode is sealed on another task than it started on": edit(at(EpisodeStarted, FIRST), task=task_of(9).address),
    "a verdict judges what was never sealed": drop(at(TranscriptSealed, FIRST)),
}
C12: dict[str, Break] = {
    "a group is admitted beyond the credit": beyond_credit,
    "a credit beyond its bound": insert(len, Step(CapacityDecided(3, 1.5, 5, 0.0, 0.0, ""), "3")),
    "a group is admitted beyond the credit found": insert(
        at(GroupAdmitted, "train.1"), Step(CapacityDecided(0, 0.0, 1, 0.0, 0.0, ""), "0")
    ),
    "evaluation takes a slot": rename(at(GroupAdmitted), "eval.0"),
    "a group takes a second slot": repeat(at(GroupAdmitted)),
    "the gate counts a slot too few": edit(at(GroupAdmitted, "train.3"), outstanding=3),
    "a slot comes back at hand-over": both(early, edit(at(GroupAdmitted, "train.4"), outstanding=3)),
    "a group beyond the largest lag trains": edit(plan(2), oldest_lag=2),
    "a plan understates its lag": edit(plan(2), oldest_lag=0),
    "a token is newer than the base of its update": edit(at(TranscriptSealed, "train.0.1.0"), versions=(1,)),
}
C14: dict[str, Break] = {
    "a turn's tokens count twice": turn(0, FIRST, segment(0, [5, 6, 0]), segment(0, [5, 6, 0])),
    "a turn never reaches the transcript": drop(at(TurnGenerated, f"{FIRST}/1")),
}
C16: dict[str, Break] = {
    "the trainer computes without its turn": drop(at(GenerationPaused)),
    "the trainer computes after its turn": move(at(UpdateCompleted, "2"), before=at(RunEnded)),
    "a turn never ends": drop(at(GenerationResumed)),
    "another turn ends than began": edit(at(GenerationResumed), update=2),
    "the engine computes in the trainer's turn": edit(at(GenerationResumed), computed_tokens=101),
}

BROKEN: dict[str, dict[str, Break]] = {
    "C1": C1,
    "C2": C2,
    "C3": C3,
    "C4": C4,
    "C5": C5,
    "C6": C6,
    "C7": C7,
    "C8": C8,
    "C10": C10,
    "C12": C12,
    "C14": C14,
    "C16": C16,
}
