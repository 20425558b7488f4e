"""Fault rows F01 to F20: tasks, owners, environments and actions."""

from simulation import must_episodes as episodes
from simulation import must_runs as runs
from simulation.special import Pause, two_processes
from simulation.trials import (
    BOTH,
    LONG_TURNS,
    NO_FAULT,
    Row,
    World,
    at,
    cut,
    fault,
    killed,
    replayed,
    sqlite_cuts,
    survived,
)

from headrace.records.action import EffectClass
from headrace.simulation.laws import Constant
from headrace.store.faulty import Leaves

EXTERNAL = World(effect=EffectClass.EXTERNAL)
RESETTABLE = World(effect=EffectClass.RESETTABLE)
_LONG_TOOLS = {"tool_s": Constant(value=1.0), "turns": Constant(value=3.0)}
LONG, LONG_EXTERNAL, LONG_RESETTABLE, LONG_SNAPSHOT = (
    World(effect=effect, workload=_LONG_TOOLS)
    for effect in (EffectClass.PURE, EffectClass.EXTERNAL, EffectClass.RESETTABLE, EffectClass.SNAPSHOT)
)
"""Tools that take a second, three turns in each episode."""


ROWS: tuple[Row, ...] = (
    # --- tasks and dispatch
    replayed(
        "F01",
        "the process dies after it took a task, before OPEN is on disk",
        "the task is still issued, once",
        at("tasks", "next", "kill_after", 1, 3, 4) + cut("task_drawn", 1, 3, sides=("kill",)),
        (episodes.draws_what_the_undisturbed_run_draws, episodes.every_group_is_admitted_once),
    ),
    replayed(
        "F02",
        "the process dies after OPEN, before dispatch",
        "dispatched by the next one under the same group, task and seeds",
        cut("group_admitted", 1, 3, 4),
        (
            episodes.the_cut_group_starts_in_the_second_process,
            episodes.every_group_is_admitted_once,
            episodes.draws_what_the_undisturbed_run_draws,
        ),
    ),
    replayed(
        "F03",
        "the process dies after dispatch, before or just after a claim is on disk",
        "claimed again under a higher token, one episode only",
        cut("episode_claimed", 1, 4, sides=BOTH),
        (episodes.a_second_claim_has_a_higher_token, episodes.each_episode_starts_once),
        sometimes=(episodes.some_episode_was_claimed_twice,),
    ),
    killed(
        "F04",
        "the worker dies right after the claim, and what it held is gone",
        "the member starts again as another attempt; late writes of the first are refused",
        cut("episode_started", 1, 4),
        (episodes.interrupted_members_start_again_as_another_attempt, episodes.the_dead_process_can_write_nothing),
        RESETTABLE,
    ),
    Row(
        "F05",
        "the worker stands still past its lease, another takes over, then it goes on",
        "its next event is refused by the store, its next action by the executor",
        NO_FAULT,
        (
            episodes.nothing_of_the_first_process_follows_the_second,
            episodes.the_paused_worker_was_refused_at_store_and_executor,
        ),
        LONG,
        run=two_processes(3.0, Pause(2.0, 12.0)),
    ),
    Row(
        "F06",
        "two processes run at the same time",
        "nothing of the lower epoch is accepted, and nothing that both dispatched survives twice",
        NO_FAULT,
        (
            episodes.nothing_of_the_first_process_follows_the_second,
            episodes.the_older_process_was_refused_at_the_store,
            runs.each_ordinal_is_dispatched_by_one_process,
        ),
        LONG,
        run=two_processes(3.0, None),
    ),
    # --- environments and actions
    Row(
        "F07",
        "a sandbox cannot be created, several times in a row",
        "no verdict, bounded attempts, no reward of 0",
        at("environment", "open", "reject", 1, 4, times=7),
        (episodes.failed_attempts_are_bounded_and_have_no_reward,),
    ),
    killed(
        "F07",
        "no sandbox can be created for an attempt that was to go on",
        "sealed with the turns that it had, without a reward; the member starts again",
        [
            (
                fault("journal", "action_observed", "kill_after", 2),
                fault("environment", "open", "reject", 5, times=2),
            )
        ],
        (episodes.failed_attempts_are_bounded_and_have_no_reward,),
        LONG,
    ),
    Row(
        "F08",
        "a sandbox is created and its handle is lost",
        "it is ended by the episode's name; none is left",
        at("environment", "open", "lose", 1, 3, times=2),
        (episodes.no_sandbox_is_left, episodes.failed_attempts_are_bounded_and_have_no_reward),
    ),
    Row(
        "F09",
        "the engine dies while it generates, before any token is out",
        "the turn is generated again: same seed, same version, same tokens",
        at("inference", "generate", "crash", 2, 6, delay_s=0.05) + at("inference", "generate", "kill", 3, delay_s=0.05),
        (runs.turns_are_those_of_the_undisturbed_run,),
        is_same=True,
    ),
    Row(
        "F10",
        "the engine dies after some tokens are out",
        "the whole turn is dropped and generated again; segments begin where the version changes, and nowhere else",
        at("inference", "generate", "lose", 1, 5, 9, times=3) + at("inference", "generate", "crash", 7, 9, delay_s=0.2),
        (runs.every_turn_is_whole_and_counts_once,),
        LONG_TURNS,
        sometimes=(runs.some_turn_spans_two_versions,),
    ),
    Row(
        "F11",
        "a response is delivered twice",
        "one turn in the trajectory, its tokens counted once",
        at("inference", "generate", "duplicate", 1, 4, times=4),
        (runs.turns_are_those_of_the_undisturbed_run, runs.every_turn_is_whole_and_counts_once),
        is_same=True,
    ),
    killed(
        "F12",
        "the process dies after the turn is parsed, before INTENT",
        "nothing was done in the environment; the action may be planned again",
        cut("turn_generated", 1, 2, 3, 4),
        (episodes.nothing_was_done_of_the_last_turn, episodes.every_action_took_effect_once),
        LONG_EXTERNAL,
        sometimes=(episodes.the_last_turn_asked_for_a_tool,),
    ),
    survived(
        "F13",
        "after INTENT the action does not reach the executor",
        "no receipt is found, and it runs once under its id",
        at("environment", "execute", "reject", 1, 3, times=2),
        (episodes.every_action_took_effect_once, episodes.each_intended_action_is_committed_and_observed),
        LONG,
        is_same=True,
    ),
    replayed(
        "F13",
        "the process dies as it hands the action over",
        "intended once, and run under its id by the next process",
        at("environment", "execute", "kill", 1, 2) + cut("action_intended", 1, 3),
        (
            episodes.each_intended_action_is_committed_and_observed,
            episodes.observations_are_those_of_the_undisturbed_run,
        ),
        LONG,
    ),
    *(
        Row(
            "F14",
            f"the executor dies during the effect, in an environment that is {world.effect.value}",
            holds,
            at("environment", "execute", "crash", 1, 3, delay_s=0.5),
            musts,
            world,
        )
        for world, holds, musts in (
            (
                LONG_EXTERNAL,
                "of unknown effect: no verdict, at most one effect outside",
                (episodes.an_interrupted_external_action_is_parked,),
            ),
            (
                LONG_SNAPSHOT,
                "the state of the step's start comes back, or the attempt ends without a verdict",
                (
                    episodes.a_lost_executor_costs_an_attempt_and_no_verdict_is_made_up,
                    episodes.every_trajectory_is_one_unbroken_chain_of_revisions,
                ),
            ),
            (
                LONG_RESETTABLE,
                "the attempt ends without a verdict and the member starts again",
                (episodes.a_lost_executor_costs_an_attempt_and_no_verdict_is_made_up,),
            ),
            (
                LONG,
                "the executor took the environment with it: the attempt ends without a verdict",
                (episodes.a_lost_executor_costs_an_attempt_and_no_verdict_is_made_up,),
            ),
        )
    ),
    survived(
        "F15",
        "the effect is done, its receipt is lost before COMMIT",
        "the executor is asked by action id and has it; nothing runs again",
        at("environment", "execute", "lose", 1, 3, times=3),
        (episodes.every_action_took_effect_once, episodes.each_intended_action_is_committed_and_observed),
        EXTERNAL,
    ),
    killed(
        "F15",
        "the effect is done outside, and the process dies before COMMIT",
        "nobody can be asked: of unknown effect, parked, never run again",
        at("environment", "execute", "kill_after", 1, 2),
        (episodes.every_action_took_effect_once, episodes.an_interrupted_external_action_is_parked),
        EXTERNAL,
    ),
    replayed(
        "F16",
        "COMMIT is on disk, the process dies before OBSERVED",
        "the stored result is used; the observation is the same in every byte",
        cut("action_committed", 1, 2, 4),
        (episodes.committed_actions_never_run_again, episodes.observations_are_those_of_the_undisturbed_run),
        LONG,
    ),
    *(
        Row(
            "F17",
            f"the power fails and tears what was being written, {number + 1} eighths through the run",
            "the torn record is discarded by its checksum; then as if it had not been written",
            NO_FAULT,
            (
                runs.the_survivors_are_a_prefix_and_the_writer_goes_on_without_a_gap,
                episodes.observations_are_those_of_the_undisturbed_run,
            ),
            is_same=True,
            run=sqlite_cuts(Leaves.TORN, number),
        )
        for number in (1, 3, 5, 6)
    ),
    survived(
        "F18",
        "a tool is given up at its deadline and finishes later",
        "its receipt counts, not the timeout; one observation",
        at("environment", "execute", "delay", 1, 3, delay_s=30.0),
        (episodes.the_receipt_counts_and_not_the_timeout, episodes.every_action_took_effect_once),
        EXTERNAL,
    ),
    killed(
        "F19",
        "the state changed, and the process dies before its revision is on record",
        "the earlier revision is the one that counts; no trajectory continues from a state that it did not see",
        cut("action_observed", 1, 3, sides=BOTH) + cut("action_committed", 2, sides=BOTH),
        (episodes.every_trajectory_is_one_unbroken_chain_of_revisions, episodes.a_second_claim_has_a_higher_token),
        LONG_SNAPSHOT,
    ),
    *(
        Row(
            "F20",
            f"executor and harness are cut off from each other during an action, and {what}",
            f"no second run: {holds}",
            [(fault("environment", "execute", "lose", call), probe) for call in (1, 3)],
            (episodes.every_action_took_effect_once, must),
            EXTERNAL,
        )
        for what, holds, probe, must in (
            (
                "stay so",
                "outcome unknown, parked",
                fault("environment", "probe", "reject"),
                episodes.an_interrupted_external_action_is_parked,
            ),
            (
                "find together again",
                "the receipt is there when the partition heals",
                fault("environment", "probe", "delay", delay_s=5.0),
                episodes.each_intended_action_is_committed_and_observed,
            ),
        )
    ),
)
