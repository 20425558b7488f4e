"""Fault rows F21 to F33: weights, grading and sealing."""

import math

from simulation import must_episodes as episodes
from simulation import must_runs as runs
from simulation import special
from simulation.special import Pause, babbling, two_processes
from simulation.trials import BOTH, LONG_TURNS, NO_FAULT, Row, World, at, cut, fault, replayed

from headrace.simulation.laws import Constant

ROWS: tuple[Row, ...] = (
    # --- weights
    Row(
        "F21",
        "new weights land in the middle of turns",
        "segments are cut there; both versions and their log-probs are stored",
        NO_FAULT,
        (runs.every_turn_is_whole_and_counts_once, runs.some_turn_spans_two_versions),
        LONG_TURNS,
    ),
    replayed(
        "F22",
        "the trainer dies while its weights are being staged",
        "the version never existed; its number gets the same content, and nothing unnamed stays",
        at("inference", "stage", "kill", 2, 3, delay_s=0.05) + cut("weights_staged", 2, sides=BOTH),
        (runs.each_version_has_one_content, runs.only_committed_weights_are_stored),
    ),
    Row(
        "F23",
        "the trainer dies in weight sync after the engine is PREPARED",
        "nobody serves the version, nothing is tagged with it",
        cut("weights_prepared", 2, 3)
        + at("trainer", "canary", "crash", 2, 3)
        + cut("weights_committed", 2, sides=("kill",)),
        (runs.the_staged_version_served_nobody_before_its_commit, runs.each_version_has_one_content),
        World(schedule="async"),
    ),
    replayed(
        "F24",
        "the process dies right after COMMIT, before any ACTIVATE",
        "rolled forward everywhere",
        cut("weights_committed", 2, 3),
        (runs.the_version_is_rolled_forward, runs.each_version_has_one_content),
    ),
    Row(
        "F25",
        "one engine activates, the other does so seconds later",
        "every token is tagged with what its worker served; lag is counted by the tags",
        NO_FAULT,
        (runs.tags_are_those_of_the_worker_that_sampled, runs.some_turn_was_sampled_behind_the_trainers_belief),
        World(
            schedule="async",
            updates=3,
            adapt=special.two_engines(2.0),
            workload={"tokens": Constant(value=120.0)},
        ),
    ),
    Row(
        "F26",
        "the engine dies while it loads, and comes back",
        "it serves nothing before it has proven a committed version",
        at("inference", "stage", "crash", 2, 3, delay_s=0.05),
        (runs.nothing_is_served_before_the_engine_has_proven_a_version, runs.each_version_has_one_content),
        World(schedule="async", updates=3),
        sometimes=(runs.something_is_served_afterwards,),
        lives=("failed", "completed"),
    ),
    Row(
        "F27",
        "a trainer that stood still publishes after another process took over",
        "its COMMIT is refused and its engine stays where it was",
        NO_FAULT,
        (runs.only_the_second_process_publishes, episodes.the_older_process_was_refused_at_the_store),
        run=two_processes(5.0, Pause(4.4, 200.0)),
    ),
    # --- grading
    Row(
        "F29",
        "the grader, or the process, dies before the verdict",
        "the sealed trajectory is graded again and never rolled again",
        at("grader", "grade", "kill", 1, 3, delay_s=0.01)
        + at("grader", "grade", "crash", 2, delay_s=0.01)
        + at("grader", "grade", "lose", 1, 4, times=2)
        + cut("verdict_sealed", 2, sides=("kill",)),
        (runs.each_episode_is_rolled_once_and_graded,),
        World(workload={"grade_s": Constant(value=0.5)}),
        is_same=True,
    ),
    Row(
        "F30",
        "the grader answers twice and differently",
        "the first durable verdict counts; the second is recorded as a dispute",
        [tuple(fault("grader", "grade", "duplicate", call) for call in range(1, 8))],
        (runs.the_first_verdict_wins_and_the_second_is_counted,),
        World(workload={"verdict_flip": 0.5}),
    ),
    *(
        Row(
            "F31",
            f"the grader returns {value!r}",
            "no verdict (grader_invalid), never 0 or 1",
            NO_FAULT,
            (runs.what_is_no_score_leaves_the_reward_absent,),
            World(adapt=babbling(value), sections={"schedule": {"grade_tries": 1, "group_size": 3}}),
        )
        for value in (math.nan, math.inf, -math.inf, None, True, "1", 1.5, -0.25)
    ),
    Row(
        "F32",
        "the grader is late for all members of a group, every time",
        "the group leaves with that reason; no baseline is made of placeholders",
        at("grader", "grade", "delay", 1, times=12, delay_s=100.0),
        (runs.an_ungraded_group_leaves_with_its_reason,),
        World(sections={"timeouts": {"grade_s": 10.0}}),
    ),
    replayed(
        "F33",
        "the process dies while it seals a trajectory",
        "unsealed and gone on with, or sealed with a valid hash; sealed once",
        cut("transcript_sealed", 1, 2, 5, sides=BOTH),
        (runs.each_episode_is_sealed_once,),
    ),
)
