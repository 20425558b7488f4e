"""Fault rows F34 to F56: the store, batches, checkpoints, restores, and how a process ends."""

import dataclasses
from typing import Any

import msgspec
from simulation import must_episodes as episodes
from simulation import must_runs as runs
from simulation import special
from simulation.trials import BOTH, NO_FAULT, Row, World, at, cut, fault, killed, replayed, sqlite_cuts, sqlite_fails

from headrace.control.context import Ports
from headrace.records.action import EffectClass
from headrace.runtime.simulated import Simulation
from headrace.simulation.faults import Fault
from headrace.simulation.laws import LogNormal
from headrace.store.faulty import Leaves

AHEAD = World(schedule="two ahead", updates=3)


def slower(number: int, simulation: Simulation) -> Simulation:
    """Two engine slots, one tool at a time."""
    engine = msgspec.structs.replace(simulation.scenario.engine, slots=2)
    return dataclasses.replace(
        simulation, scenario=msgspec.structs.replace(simulation.scenario, engine=engine, environment_slots=1)
    )


def hour_later(number: int, simulation: Simulation) -> Simulation:
    return dataclasses.replace(simulation, start_s=7_200.0)


def hour_earlier(number: int, simulation: Simulation) -> Simulation:
    return dataclasses.replace(simulation, start_s=0.0)


def other_groups(number: int, simulation: Simulation) -> Simulation:
    schedule = msgspec.structs.replace(simulation.config.schedule, group_size=3)
    return dataclasses.replace(simulation, config=msgspec.structs.replace(simulation.config, schedule=schedule))


def other_environment(number: int, simulation: Simulation) -> Simulation:
    return dataclasses.replace(simulation, effect=EffectClass.RESETTABLE)


def other_grader(number: int, simulation: Simulation) -> Simulation:
    def adapt(ports: Ports) -> Ports:
        ports = simulation.adapt(ports)
        ports.grader.version = ports.environment.version  # type: ignore[misc]
        return ports

    return dataclasses.replace(simulation, adapt=adapt)


def everywhere(kind: str, times: int, **options: Any) -> tuple[Fault, ...]:
    """The same fault on the first calls of every port that does work; an update is not doubled, and there are but two."""
    found = [
        fault(port, method, kind, times=times, **options)
        for port, method in (("inference", "generate"), ("environment", "execute"), ("grader", "grade"))
    ]
    if kind != "duplicate":
        found.append(fault("trainer", "update", kind, times=min(times, 2), **options))
    return tuple(found)


ROWS: tuple[Row, ...] = (
    # --- the store
    *(
        Row(
            "F34",
            f"the power fails {number + 1} eighths through the run, and unsynced bytes: {leaves.value}",
            "readers see a clean prefix, the writer goes on without gap or double",
            NO_FAULT,
            (runs.the_survivors_are_a_prefix_and_the_writer_goes_on_without_a_gap,),
            is_same=True,
            run=sqlite_cuts(leaves, number),
        )
        for leaves, number in ((Leaves.NOTHING, 2), (Leaves.NOTHING, 6), (Leaves.ANY_ORDER, 4), (Leaves.EVERYTHING, 3))
    ),
    *(
        killed(
            "F35",
            what,
            "quarantined, its task drawn again, never trained on",
            plans,
            (runs.the_damaged_trajectory_is_quarantined_and_its_task_drawn_again,),
            between=harm,
            unharm=special.mend_the_transcript,
        )
        for what, plans, harm in (
            (
                "a bit flips in a stored trajectory of a finished group",
                cut("group_closed", 1, 3),
                special.flip_a_transcript,
            ),
            (
                "a bit flips in a stored trajectory of a group that still runs",
                cut("transcript_sealed", 1, 5),
                special.flip_a_running_groups_transcript,
            ),
            ("a stored trajectory of a finished group is gone", cut("group_closed", 2), special.drop_a_transcript),
        )
    ),
    # --- batches and updates
    replayed(
        "F36",
        "the process dies after a group is complete, before it is enqueued",
        "it is enqueued once and never run again",
        cut("group_closed", 1, 2, 3),
        (episodes.closed_groups_are_not_run_again, runs.the_same_batch_is_selected_once),
    ),
    replayed(
        "F37",
        "the process dies between enqueueing and the batch plan",
        "its groups are there; the gate counts what a recount counts",
        cut("batch_selected", 1, 2, sides=BOTH) + cut("batch_planned", 1, 2, sides=("kill",)),
        (episodes.closed_groups_are_not_run_again, runs.the_same_batch_is_selected_once, episodes.no_slot_is_forgotten),
    ),
    replayed(
        "F38",
        "the process dies after the plan is on disk, before it is computed",
        "the same batch, the same result",
        cut("batch_planned", 1, 2),
        (runs.the_same_batch_is_selected_once,),
    ),
    replayed(
        "F39",
        "the process dies in the middle of the optimizer step",
        "no half step: weights from the last checkpoint and the plans since",
        at("trainer", "update", "kill", 1, 2, delay_s=0.5),
        (runs.each_version_has_one_content,),
    ),
    *(
        Row(
            "F39",
            f"the trainer {what}",
            "the run stops; the next process computes the same plan, from a whole state, to the same weights",
            plans,
            (runs.the_same_batch_is_selected_once, runs.each_version_has_one_content),
            is_same=True,
            lives=("failed: TrainerError", "completed"),
        )
        for what, plans in (
            ("dies in the middle of the optimizer step", at("trainer", "update", "crash", 1, 2, delay_s=0.5)),
            ("made the step, and nobody knows", at("trainer", "update", "lose", 1, 2)),
            ("refuses the step and has changed nothing", at("trainer", "update", "reject", 2)),
        )
    ),
    replayed(
        "F40",
        "the process dies after the step, before its checkpoint",
        "the step is replayed from its plan; every trajectory counts once",
        cut("update_completed", 1, 2) + cut("weights_activated", 2),
        (runs.the_same_batch_is_selected_once, runs.each_version_has_one_content),
    ),
    # --- checkpoints
    replayed(
        "F41",
        "the process dies while checkpoint files are written",
        "the newest checkpoint is the one before",
        at("trainer", "save", "kill", 1, 2, delay_s=0.2),
        (runs.the_newest_checkpoint_is_not_the_one_that_was_cut,),
        World(updates=3),
    ),
    replayed(
        "F42",
        "the process dies after the manifest is on disk, before it counts",
        "the checkpoint before is loaded; files that nothing names are collected",
        at("trainer", "save", "kill_after", 1, 2) + cut("checkpoint_written", 1, 2, sides=("kill",)),
        (runs.the_newest_checkpoint_is_not_the_one_that_was_cut,),
        World(updates=3),
    ),
    replayed(
        "F43",
        "the newest checkpoint is corrupt",
        "the one before is loaded and more is replayed; nothing unverified is loaded",
        cut("checkpoint_written", 1, 2),
        (runs.it_falls_back_and_replays_more,),
        World(updates=3, sections={"checkpoint": {"every_updates": 1, "keep_last": 3}}),
        between=special.damage_the_newest_checkpoint,
    ),
    Row(
        "F44",
        "the process that restores dies at once as well",
        "the same state as after one restore",
        [
            (fault("journal", first, "kill_after"), second)
            for first in ("group_closed", "update_completed")
            for second in (
                fault("journal", "run_resumed", "kill"),
                fault("journal", "run_resumed", "kill_after"),
                fault("journal", "run_started", "kill_after", 2),
            )
        ],
        (runs.the_second_restore_finds_what_the_first_found,),
        is_same=True,
        lives=("killed", "killed", "completed"),
    ),
    killed(
        "F45",
        "a run with finished groups in its queue is restored",
        "none lost, none doubled, none generated again; stale ones are judged by their own tags",
        cut("group_closed", 3, 4, 5) + cut("batch_selected", 1),
        (episodes.closed_groups_are_not_run_again, episodes.every_group_is_admitted_once),
        AHEAD,
        sometimes=(episodes.several_groups_were_waiting,),
    ),
    killed(
        "F46",
        "a run is restored: the gate",
        "capacity is what credit allows less what is open",
        cut("group_admitted", 3, 5) + cut("group_closed", 2, 4) + cut("weights_committed", 2),
        (episodes.no_slot_is_forgotten,),
        AHEAD,
    ),
    killed(
        "F47",
        "a run is restored: the warm-up",
        "open tasks that are issued again count; none is drawn beyond",
        cut("group_admitted", 2, 6) + cut("episode_started", 3),
        (episodes.draws_what_the_undisturbed_run_draws, episodes.every_group_is_admitted_once),
        AHEAD,
    ),
    Row(
        "F48",
        "the data ends exactly at a checkpoint, and the process dies there",
        "it stays at its end: nothing is drawn a second time",
        cut("source_exhausted", 1) + cut("checkpoint_written", 2),
        (episodes.the_source_stays_exhausted,),
        World(schedule="async", updates=4, options={"num_train": 4}),
        lives=("killed", "exhausted"),
    ),
    replayed(
        "F49",
        "the run goes on with another number of workers",
        "the same batch plans, the same weights",
        cut("group_closed", 1, 3) + cut("batch_planned", 2),
        (episodes.draws_what_the_undisturbed_run_draws, runs.the_same_batch_is_selected_once),
        later=slower,
    ),
    *(
        replayed(
            "F50",
            f"the clock of the next process stands {name}",
            "no lease twice, nobody is out of time, times in the log do not fall",
            cut("episode_started", 3) + cut("action_committed", 1) + cut("batch_planned", 1),
            (runs.time_in_the_log_never_falls, runs.nobody_ran_out_of_time, episodes.a_second_claim_has_a_higher_token),
            World(options={"start_s": 3_600.0}, sections={"run": {"deterministic": False}, "budget": {"wall_s": 60.0}}),
            later=later,
        )
        for name, later in (("an hour ahead", hour_later), ("an hour back", hour_earlier))
    ),
    # --- disks, messages, ends
    Row(
        "F51",
        "the disk is full, or reports an error, at a commit",
        "nothing unsynced is acknowledged and nothing more accepted; afterwards every law holds",
        at("journal", "commit", "reject", 1, 5, 12, 20, 30) + at("journal", "commit", "lose", 2, 9, 25),
        (runs.the_failed_commit_acknowledged_nothing,),
        is_same=True,
        lives=("failed: StoreError", "completed"),
    ),
    *(
        Row(
            "F52",
            f"the {call}-th call of a real SQLite journal to its disk fails",
            "before- or after-state; every law holds",
            NO_FAULT,
            (episodes.draws_what_the_undisturbed_run_draws,),
            is_same=True,
            run=sqlite_fails(call),
        )
        for call in (40, 95, 160, 215, 280, 340)
    ),
    Row(
        "F53",
        "messages are doubled, and delayed by up to ten times a tool's time",
        "only latency changes",
        [everywhere("duplicate", 6), everywhere("delay", 6, delay_s=8.0), everywhere("delay", 2, delay_s=0.5)],
        (runs.every_turn_is_whole_and_counts_once, episodes.draws_what_the_undisturbed_run_draws),
        is_same=True,
    ),
    *(
        Row(
            "F53",
            f"messages arrive in another order (shuffle {seed})",
            "only latency changes",
            NO_FAULT,
            (runs.turns_are_those_of_the_undisturbed_run,),
            World(options={"shuffle_seed": seed}),
            is_same=True,
        )
        for seed in (1, 2, 3)
    ),
    *(
        Row(
            "F54",
            f"a stale group is ended while its last member finishes (shuffle {seed})",
            "it is ended or completed, never both; its slot comes back once",
            NO_FAULT,
            (
                episodes.each_group_leaves_once,
                episodes.a_running_group_was_cancelled,
                episodes.a_group_was_cancelled_with_a_member_already_judged,
            ),
            World(
                schedule="two ahead",
                updates=5,
                workload={"tokens": LogNormal(median=100.0, sigma=1.0)},
                sections={"schedule": {"staleness": "cancel", "max_lag": 0}},
                options={"shuffle_seed": seed},
            ),
        )
        for seed in (1, 2, 3, 4)
    ),
    *(
        Row(
            "F55",
            f"the process that resumes has {what}",
            "refused, with the difference named; nothing is written",
            cut("group_closed", 1),
            (runs.it_was_refused_and_nothing_was_written,),
            lives=("killed", f"failed: ConfigError: small_mixed-7 cannot go on, it would be another run:\n  {named}"),
            later=later,
        )
        for what, named, later in (
            ("another group size", "schedule.group_size: 2 when it started, 3 now", other_groups),
            ("another environment", "environment code or options", other_environment),
            ("another grader", "grader code or options", other_grader),
        )
    ),
    Row(
        "F56",
        "the process is told to end (SIGTERM)",
        "nothing is claimed any more, the journal is whole, the next process waits for nothing",
        at("journal", "commit", "stop", 5, 12, 20)
        + at("inference", "generate", "stop", 4)
        + at("trainer", "update", "stop", 2),
        (runs.the_stopped_process_said_so_and_claimed_nothing_more,),
        is_same=True,
        lives=("stopped", "completed"),
    ),
)
