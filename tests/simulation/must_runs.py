"""What fault rows assert of weights, verdicts, batches, checkpoints and processes. Each reads the log."""

import itertools

from simulation.special import SERVED
from simulation.trials import Trial

from headrace.records.arrays import as_float32
from headrace.records.batch import BatchPlanned, BatchSelected, GroupClosed, GroupRejected
from headrace.records.checkpoint import CheckpointWritten, RunResumed
from headrace.records.events import Event
from headrace.records.ids import EpisodeId
from headrace.records.run import RunEnded, RunStarted
from headrace.records.segment import TurnGenerated
from headrace.records.task import TaskDrawn
from headrace.records.trajectory import EpisodeStarted, TranscriptSealed
from headrace.records.update import WeightsActivated, WeightsCommitted, WeightsStaged
from headrace.records.verdict import Scored, Unscored, Verdict, VerdictDisputed, VerdictSealed

# --- inference and weights


def turns_are_those_of_the_undisturbed_run(trial: Trial) -> None:
    found, expected = (
        {event.key: event.payload.segments for event in events}  # type: ignore[union-attr]
        for events in (trial.at(TurnGenerated), trial.undisturbed(TurnGenerated))
    )
    assert found == expected


def every_turn_is_whole_and_counts_once(trial: Trial) -> None:
    trial.assert_once(TurnGenerated)
    for turn in trial.of(TurnGenerated):
        assert [segment.finish is None for segment in turn.segments] == [True] * (len(turn.segments) - 1) + [False]
        versions = [segment.policy.version for segment in turn.segments if segment.policy]
        assert versions == sorted(set(versions)), "a new segment begins exactly where the version changes"


def some_turn_spans_two_versions(trial: Trial) -> None:
    turns = [turn for turn in trial.of(TurnGenerated) if len(turn.segments) > 1]
    assert turns
    for segment in itertools.chain.from_iterable(turn.segments for turn in turns):
        assert segment.behavior_logprobs is not None
        assert len(as_float32(segment.behavior_logprobs)) == len(segment)


def each_version_has_one_content(trial: Trial) -> None:
    trial.assert_once(WeightsStaged, WeightsCommitted)
    staged = {item.policy: item.weights for item in trial.of(WeightsStaged)}
    assert {item.policy: item.weights for item in trial.of(WeightsCommitted)} == staged


def only_committed_weights_are_stored(trial: Trial) -> None:
    committed = {item.weights for item in trial.of(WeightsCommitted)}
    stored = trial.endured.disk.shelf.addresses()
    assert set(stored) <= committed


def the_staged_version_served_nobody_before_its_commit(trial: Trial) -> None:
    committed = len(trial.of(WeightsCommitted, 1))
    assert max(item.policy.version for item in trial.of(WeightsStaged, 1)) == committed, (
        "one is staged and not committed"
    )
    sampled = [s.policy.version for turn in trial.of(TurnGenerated, 1) for s in turn.segments if s.policy]
    assert max(sampled) < committed


def the_version_is_rolled_forward(trial: Trial) -> None:
    version = trial.of(WeightsCommitted, 1)[-1].policy
    assert version not in [item.policy for item in trial.of(WeightsActivated, 1)]
    assert version in [item.policy for item in trial.of(WeightsActivated, 2)]


def nothing_is_served_before_the_engine_has_proven_a_version(trial: Trial) -> None:
    resumed = trial.at(RunResumed, 2)[0].seq
    assert all(event.seq > resumed for event in trial.at(TurnGenerated, 2))


def something_is_served_afterwards(trial: Trial) -> None:
    assert trial.at(TurnGenerated, 2)


def only_the_second_process_publishes(trial: Trial) -> None:
    assert [item.policy.version for item in trial.of(WeightsCommitted)] == [0, 1, 2]
    assert {event.epoch for event in trial.at(WeightsCommitted)[1:]} == {2}
    assert trial.notes["first engine"] == 0, "the engine of the older process stays where it was"


def tags_are_those_of_the_worker_that_sampled(trial: Trial) -> None:
    turns = trial.of(TurnGenerated)
    assert turns
    for turn in turns:
        found = [segment.policy.version for segment in turn.segments if segment.policy]
        assert found == SERVED[f"{turn.episode}/{turn.step}"]


def some_turn_was_sampled_behind_the_trainers_belief(trial: Trial) -> None:
    newest, behind = 0, 0
    for event in trial.events:
        if isinstance(event.payload, WeightsActivated):
            newest = event.payload.policy.version
        elif isinstance(event.payload, TurnGenerated):
            first = event.payload.segments[0].policy
            behind += first is not None and first.version < newest
    assert behind


# --- grading


def each_episode_is_rolled_once_and_graded(trial: Trial) -> None:
    trial.assert_once(TranscriptSealed)
    assert all(EpisodeId.parse(key).attempt == 0 for key in trial.keys(TranscriptSealed))
    assert {item.transcript for item in trial.of(TranscriptSealed)} == {
        item.transcript for item in trial.of(VerdictSealed)
    }


def the_first_verdict_wins_and_the_second_is_counted(trial: Trial) -> None:
    disputed = trial.of(VerdictDisputed)
    assert disputed
    sealed = {item.transcript: item.verdict for item in trial.of(VerdictSealed) if item.is_scored}
    for item in disputed:
        assert item.first == sealed[item.transcript] != item.second
        first = trial.read(item.first, Verdict).outcome
        rewards = [m.reward for c in trial.of(GroupClosed) for m in c.members if m.transcript == item.transcript]
        assert isinstance(first, Scored)
        assert rewards in ([first.components[0][1]], [])


def what_is_no_score_leaves_the_reward_absent(trial: Trial) -> None:
    sealed = [trial.read(item.verdict, Verdict).outcome for item in trial.of(VerdictSealed)]
    invalid = [item for item in sealed if isinstance(item, Unscored)]
    assert {item.cause.value for item in invalid} == {"grader_invalid"}
    unscored = {item.transcript for item in trial.of(VerdictSealed) if not item.is_scored}
    unscored -= {item.transcript for item in trial.of(VerdictSealed) if item.is_scored}
    members = [member for closed in trial.of(GroupClosed) for member in closed.members]
    assert unscored
    assert all(member.reward is None for member in members if member.transcript in unscored)


def an_ungraded_group_leaves_with_its_reason(trial: Trial) -> None:
    rejected = [item for item in trial.of(GroupRejected) if item.reason.startswith("unscored")]
    assert rejected
    assert {item.state for item in rejected} == {"abandoned"}


# --- sealing, batches, checkpoints


def each_episode_is_sealed_once(trial: Trial) -> None:
    trial.assert_once(TranscriptSealed)
    assert trial.times(TranscriptSealed).keys() == trial.times(EpisodeStarted).keys()


def the_survivors_are_a_prefix_and_the_writer_goes_on_without_a_gap(trial: Trial) -> None:
    before: list[Event] = trial.notes["before the cut"]
    assert trial.events[: len(before)] == before
    assert [event.seq for event in trial.events] == list(range(1, len(trial.events) + 1))
    assert len(before) < len(trial.events)


def the_damaged_trajectory_is_quarantined_and_its_task_drawn_again(trial: Trial) -> None:
    damaged = trial.notes["damaged"]
    (rejected,) = [e for e in trial.at(GroupRejected) if e.payload.reason.startswith("quarantined")]  # type: ignore[union-attr]
    assert damaged not in {row.transcript for plan in trial.plans() for row in plan.rows}
    drawn = {event.key: event.payload.task for event in trial.at(TaskDrawn)}  # type: ignore[union-attr]
    again = [key for key, task in drawn.items() if task == drawn[rejected.key] and key != rejected.key]
    assert len(again) == 1
    assert int(again[0].rpartition(".")[2]) > int(rejected.key.rpartition(".")[2])


def the_same_batch_is_selected_once(trial: Trial) -> None:
    trial.assert_once(BatchSelected, BatchPlanned)


def the_newest_checkpoint_is_not_the_one_that_was_cut(trial: Trial) -> None:
    written = [item.update for item in trial.of(CheckpointWritten, 1)]
    resumed = trial.of(RunResumed, 2)[0]
    assert resumed.checkpoint == (written[-1] if written else None)
    assert resumed.version > (resumed.checkpoint or 0), "an update since then is computed again"
    assert resumed.identical == resumed.replayed > 0


def it_falls_back_and_replays_more(trial: Trial) -> None:
    newest = trial.of(CheckpointWritten, 1)[-1].update
    resumed = trial.of(RunResumed, 2)[0]
    assert (resumed.checkpoint or 0) < newest
    assert resumed.identical == resumed.replayed == resumed.version - (resumed.checkpoint or 0)


def the_second_restore_finds_what_the_first_found(trial: Trial) -> None:
    first, second = trial.notes["events before 2"], trial.notes["events before 3"]
    assert [event for event in second if event.epoch == 1] == first
    if trial.of(RunResumed, 2):
        old, new = trial.of(RunResumed, 2)[0], trial.of(RunResumed, 3)[0]
        assert (new.version, new.checkpoint, new.open_groups) == (old.version, old.checkpoint, old.open_groups)


# --- the process and its clock


def time_in_the_log_never_falls(trial: Trial) -> None:
    times = [event.t_ns for event in trial.events]
    assert times == sorted(times)


def nobody_ran_out_of_time(trial: Trial) -> None:
    assert not [item for item in trial.of(TranscriptSealed) if "wall" in item.terminal]


def the_failed_commit_acknowledged_nothing(trial: Trial) -> None:
    assert len(trial.notes["events before 2"]) < len(trial.events)
    assert not [event for event in trial.notes["events before 2"] if isinstance(event.payload, RunEnded)]


def each_ordinal_is_dispatched_by_one_process(trial: Trial) -> None:
    trial.assert_once(TranscriptSealed)


def it_was_refused_and_nothing_was_written(trial: Trial) -> None:
    ended = trial.endured.ended
    assert trial.row.lives[-1] in ended
    assert trial.events == trial.notes["events before 2"]


def the_stopped_process_said_so_and_claimed_nothing_more(trial: Trial) -> None:
    (ended,) = trial.at(RunEnded, 1)
    assert ended.payload.reason == "stopped"  # type: ignore[union-attr]
    assert ended == trial.notes["events before 2"][-1], "everything that was appended is in the journal"
    assert trial.at(RunStarted, 2)[0].t_ns == ended.t_ns, "the next process waits for nothing"
