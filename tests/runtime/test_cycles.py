"""Searching for cycles rarely costs no memory, because an episode leaves none behind."""

import gc

from headrace.config import decode_config
from headrace.records.events import Event
from headrace.records.update import UpdateCompleted
from headrace.runtime.cycles import THRESHOLDS, rarely_searched
from headrace.runtime.simulated import Simulation, simulate
from headrace.simulation.scenario import load_scenario


def found_between_updates(updates: int, is_leaking: bool = False) -> list[int]:
    """Objects that only the collector could free, at each update of a run of 128 episodes an update."""
    tree = {"run": {"updates": updates}, "evaluation": {"every_updates": 0}, "timeouts": {"generate_s": 1e9}}
    config = decode_config(tree, "cycles")
    found: list[int] = []

    def search(event: Event) -> None:
        if isinstance(event.payload, UpdateCompleted):
            found.append(gc.collect())
        elif is_leaking:
            cycle: list[object] = []
            cycle.append(cycle)

    gc.collect()
    gc.disable()
    try:
        simulate(Simulation(config, load_scenario("ten_times"), is_checked=False, keeps_log=False), [search])
    finally:
        gc.enable()
    return found[1:]


def test_episodes_and_updates_leave_no_cycles() -> None:
    assert max(found_between_updates(4)) <= 10
    assert min(found_between_updates(3, is_leaking=True)) > 100, "the search finds what is planted"


def test_a_cycle_is_still_found_and_the_interpreter_is_left_as_it_was() -> None:
    before = gc.get_threshold()
    with rarely_searched():
        assert gc.get_threshold() == THRESHOLDS
        assert gc.isenabled()
        for _ in range(THRESHOLDS[0] + 1000):
            loop: list[object] = []
            loop.append(loop)
        assert gc.get_count()[0] < THRESHOLDS[0]
        assert gc.get_count()[1] >= 1
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
