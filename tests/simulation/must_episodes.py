"""What fault rows assert of tasks, owners and actions. Each reads the log, or what the world outside counted."""

from collections import Counter

from simulation.trials import Trial

from headrace.errors import StoreError
from headrace.records.action import ActionCommitted, ActionIntended
from headrace.records.batch import BatchPlanned, GroupAdmitted, GroupClosed, GroupRejected
from headrace.records.events import Event
from headrace.records.execution import EpisodeClaimed, ExecutionStatus
from headrace.records.ids import ActionId, EpisodeId, LeaseToken
from headrace.records.observation import ActionObserved
from headrace.records.provenance import content_version
from headrace.records.segment import TurnGenerated
from headrace.records.task import SourceExhausted, TaskDrawn
from headrace.records.terminal import InfraError
from headrace.records.trajectory import EpisodeStarted, TranscriptSealed
from headrace.records.verdict import Unscored, Verdict, VerdictSealed
from headrace.simulation.environment import SimulatedEnvironment
from headrace.store.group_commit import Entry

# --- tasks and groups


def draws_what_the_undisturbed_run_draws(trial: Trial) -> None:
    expected = [(event.key, event.payload) for event in trial.undisturbed(TaskDrawn)]
    assert [(event.key, event.payload) for event in trial.at(TaskDrawn)] == expected


def every_group_is_admitted_once(trial: Trial) -> None:
    trial.assert_once(GroupAdmitted)
    assert trial.times(GroupAdmitted).keys() == trial.times(TaskDrawn).keys()


def the_cut_group_starts_in_the_second_process(trial: Trial) -> None:
    group = trial.keys(GroupAdmitted, 1)[-1]
    assert [key for key in trial.keys(EpisodeStarted, 1) if key.startswith(f"{group}.")] == []
    assert [key for key in trial.keys(EpisodeStarted, 2) if key.startswith(f"{group}.")] == [
        f"{group}.0.0",
        f"{group}.1.0",
    ]


def closed_groups_are_not_run_again(trial: Trial) -> None:
    closed = set(trial.keys(GroupClosed, 1))
    assert closed
    again = {key.rsplit(".", 2)[0] for key in trial.keys(EpisodeStarted, 2)}
    assert not closed & again


def several_groups_were_waiting(trial: Trial) -> None:
    planned = {group for plan in trial.of(BatchPlanned, 1) for group in plan.groups}
    assert len([key for key in trial.keys(GroupClosed, 1) if key not in map(str, planned)]) >= 2


def no_slot_is_forgotten(trial: Trial) -> None:
    limit = trial.row.world.simulation().config.schedule.max_outstanding
    admitted = trial.of(GroupAdmitted, 2)
    open_before = {e.key for e in trial.at(GroupAdmitted, 1)} - {e.key for e in trial.at(GroupRejected, 1)}
    consumed = {str(group) for plan in trial.of(BatchPlanned) for group in plan.groups}
    held = len(open_before - consumed)
    assert all(held < item.outstanding <= limit for item in admitted)


def each_group_leaves_once(trial: Trial) -> None:
    consumed = Counter(str(group) for plan in trial.of(BatchPlanned) for group in plan.groups)
    rejected = trial.times(GroupRejected)
    assert not consumed.keys() & rejected.keys()
    assert set((consumed + rejected).values()) == {1}


def a_running_group_was_cancelled(trial: Trial) -> None:
    assert any(item.reason.startswith("cancelled") for item in trial.of(GroupRejected))


def a_group_was_cancelled_with_a_member_already_judged(trial: Trial) -> None:
    ended = {e.key for e in trial.at(GroupRejected) if e.payload.reason.startswith("cancelled")}  # type: ignore[union-attr]
    assert ended & {key.rsplit(".", 2)[0] for key in trial.keys(TranscriptSealed)}


def the_source_stays_exhausted(trial: Trial) -> None:
    drawn = trial.keys(TaskDrawn)
    assert drawn == list(dict.fromkeys(drawn))
    assert len(drawn) == trial.row.world.options["num_train"]
    assert {item.drawn for item in trial.of(SourceExhausted)} == {len(drawn)}


# --- leases and late writers


def a_second_claim_has_a_higher_token(trial: Trial) -> None:
    claims: dict[str, list[int]] = {}
    for event in trial.at(EpisodeClaimed):
        claims.setdefault(event.key.partition("#")[0], []).append(event.payload.token)  # type: ignore[union-attr]
    assert all(tokens == sorted(set(tokens)) for tokens in claims.values())


def some_episode_was_claimed_twice(trial: Trial) -> None:
    assert max(Counter(key.partition("#")[0] for key in trial.keys(EpisodeClaimed)).values()) >= 2


def each_episode_starts_once(trial: Trial) -> None:
    trial.assert_once(EpisodeStarted)


def the_dead_process_can_write_nothing(trial: Trial) -> None:
    storage = trial.endured.disk.storage
    before = len(list(storage.events(0)))
    late = Event(before + 1, 1, "late", 0, "late#1", 0, EpisodeClaimed(LeaseToken(1), 1.0))
    try:
        storage.commit(1, [Entry(late, b"", b"", ())])
    except StoreError as refused:
        assert "fenced" in str(refused)
    else:
        raise AssertionError("a commit under epoch 1 was taken after epoch 2 had begun")
    assert len(list(storage.events(0))) == before


def interrupted_members_start_again_as_another_attempt(trial: Trial) -> None:
    sealed = {event.key: event.payload.terminal for event in trial.at(TranscriptSealed)}  # type: ignore[union-attr]
    interrupted = [key for key, terminal in sealed.items() if terminal == "infra_error:run"]
    assert interrupted
    for key in interrupted:
        episode = EpisodeId.parse(key)
        assert str(EpisodeId(episode.group, episode.member, episode.attempt + 1)) in sealed


def nothing_of_the_first_process_follows_the_second(trial: Trial) -> None:
    epochs = [event.epoch for event in trial.events]
    assert epochs == sorted(epochs)
    assert set(epochs) == {1, 2}


def the_paused_worker_was_refused_at_store_and_executor(trial: Trial) -> None:
    assert "fenced" in trial.notes["first"]
    assert trial.notes["refused tokens"], "the old owner acted, and the executor refused it"


def the_older_process_was_refused_at_the_store(trial: Trial) -> None:
    assert "fenced" in trial.notes["first"]


# --- the environment


def failed_attempts_are_bounded_and_have_no_reward(trial: Trial) -> None:
    bound = trial.row.world.simulation().config.schedule.infra_attempts
    failed = [e for e in trial.at(TranscriptSealed) if e.payload.terminal == "infra_error:environment"]  # type: ignore[union-attr]
    assert failed
    assert max(EpisodeId.parse(event.key).attempt for event in failed) < bound
    addresses = {event.payload.transcript for event in failed}  # type: ignore[union-attr]
    members = [member for closed in trial.of(GroupClosed) for member in closed.members]
    assert all(member.reward is None for member in members if member.transcript in addresses)
    assert not addresses & {row.transcript for plan in trial.plans() for row in plan.rows}


def no_sandbox_is_left(trial: Trial) -> None:
    for environment in trial.environments:
        assert isinstance(environment, SimulatedEnvironment)
    assert trial.environments[-1].num_open == 0  # type: ignore[attr-defined]


def every_action_took_effect_once(trial: Trial) -> None:
    assert set(trial.endured.effects.values()) == {1}


def each_intended_action_is_committed_and_observed(trial: Trial) -> None:
    assert trial.times(ActionIntended) == trial.times(ActionCommitted) == trial.times(ActionObserved)
    trial.assert_once(ActionIntended)


def nothing_was_done_of_the_last_turn(trial: Trial) -> None:
    turn = trial.of(TurnGenerated, 1)[-1]
    done = trial.notes["effects before 2"]
    assert not [action for action in done if (action.episode, action.step) == (turn.episode, turn.step)]


def the_last_turn_asked_for_a_tool(trial: Trial) -> None:
    turn = trial.of(TurnGenerated, 1)[-1]
    planned = {event.payload.action.id for event in trial.undisturbed(ActionIntended)}  # type: ignore[union-attr]
    assert ActionId(turn.episode, turn.step, 0) in planned


def an_interrupted_external_action_is_parked(trial: Trial) -> None:
    parked = [
        item
        for item in trial.transcripts()
        if isinstance(item.terminal, InfraError) and item.terminal.is_effect_unknown
    ]
    assert parked
    starts = trial.keys(EpisodeStarted)
    for item in parked:
        again = EpisodeId(item.episode.group, item.episode.member, item.episode.attempt + 1)
        assert str(again) not in starts
    verdicts = [trial.read(sealed.verdict, Verdict) for sealed in trial.of(VerdictSealed)]
    addresses = {item.address for item in parked}
    assert all(isinstance(item.outcome, Unscored) for item in verdicts if item.transcript in addresses)


def a_lost_executor_costs_an_attempt_and_no_verdict_is_made_up(trial: Trial) -> None:
    failed = [item for item in trial.transcripts() if isinstance(item.terminal, InfraError)]
    for item in failed:
        verdicts = [v for v in trial.of(VerdictSealed) if v.transcript == item.address]
        assert not any(verdict.is_scored for verdict in verdicts)
    trial.assert_once(ActionObserved)


def committed_actions_never_run_again(trial: Trial) -> None:
    before: Counter[ActionId] = trial.notes["effects before 2"]
    committed = {ActionId.parse(key) for key in trial.keys(ActionCommitted, 1)}
    assert committed
    assert all(trial.endured.effects[action] == before[action] for action in committed)


def observations_are_those_of_the_undisturbed_run(trial: Trial) -> None:
    expected = {event.key: event.payload for event in trial.undisturbed(ActionObserved)}
    assert {event.key: event.payload for event in trial.at(ActionObserved)} == expected


def the_receipt_counts_and_not_the_timeout(trial: Trial) -> None:
    outcomes = [outcome for item in trial.transcripts() for outcome in item.actions]
    assert {outcome.status for outcome in outcomes} == {ExecutionStatus.OK}
    each_intended_action_is_committed_and_observed(trial)


def every_trajectory_is_one_unbroken_chain_of_revisions(trial: Trial) -> None:
    chains = 0
    for item in trial.transcripts():
        revision = content_version("start", item.task)
        for outcome in item.actions:
            revision = content_version("action", revision, outcome.action.arguments_hash, outcome.status.value)
            assert outcome.revision == revision, (
                f"{outcome.action.id} stands on another state than the turn before it left"
            )
        chains += bool(item.actions)
    assert chains
