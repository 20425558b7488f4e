"""Runs on given durations: one task a group, a constant number of tokens a second, so that every time is exact."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.config import decode_config
from headrace.planning.experiment import Cell, run_cell
from headrace.records.batch import BatchPlanned, GroupAdmitted, GroupRejected
from headrace.records.ids import GroupId
from headrace.records.segment import TurnGenerated
from headrace.runtime.simulated import Simulation, SimulationResult, simulate
from headrace.simulation.scenario import Scenario

ORACLES = Path(__file__).parent.parent / "oracles"
TOKENS_PER_S = 100
"""Enough for a task's first token to be of the version at which it started."""
FOREVER = dict.fromkeys(("generate_s", "tool_s", "environment_s", "grade_s", "update_s", "publish_s"), 1e9)


def oracle(name: str) -> Any:
    return json.loads((ORACLES / f"{name}.json").read_text())["cases"]


def trace_scenario(durations: Sequence[float], slots: int, batch: int, update_s: float) -> Scenario:
    """Tasks that take the given times on `slots` servers, in batches that train in `update_s`."""
    return msgspec.convert(
        {
            "workload": {
                "name": "trace",
                "tokens": {"law": "constant", "value": 1.0},
                "trace": [float(value) * TOKENS_PER_S for value in durations],
                "strata": [{"name": "all"}],
            },
            "engine": {"slots": slots, "decode": [[slots, float(slots) * TOKENS_PER_S]]},
            "trainer": {"update_s": {"law": "constant", "value": update_s}},
            "group_size": 1,
            "batch_groups": batch,
        },
        Scenario,
    )


def run_trace(
    scenario: Scenario, schedule: dict[str, Any], num_tasks: int, *, checked: bool = True
) -> SimulationResult:
    """Trains every task of the trace that a rule does not end."""
    config = decode_config(
        {
            "run": {"updates": -(-num_tasks // scenario.batch_groups)},
            "schedule": {"group_size": 1, "batch_groups": scenario.batch_groups, **schedule},
            "algorithm": {"advantage": "reinforce_pp"},
            "evaluation": {"every_updates": 0},
            "checkpoint": {"every_updates": 0},
            "timeouts": FOREVER,
        },
        "trace",
    )
    simulation = Simulation(config, scenario, is_checked=checked, num_train=num_tasks)
    return simulate(simulation)


def handed_over(result: SimulationResult, *, is_from_token: bool = False) -> list[tuple[int, int, int]]:
    """(update, ordinal, versions from its admission, or from its first token, to its update), in order of training."""
    admitted: dict[int, int] = {}
    found: list[tuple[int, int, int]] = []
    for event in result.events:
        match event.payload:
            case GroupAdmitted(version=version):
                admitted[GroupId.parse(event.key).ordinal] = version
            case TurnGenerated(episode=episode, segments=segments) if is_from_token and segments[0].policy:
                admitted[episode.group.ordinal] = segments[0].policy.version
            case BatchPlanned(update=update, groups=groups):
                found += [(update, group.ordinal, update - 1 - admitted[group.ordinal]) for group in groups]
            case _:
                pass
    return found


def dropped(result: SimulationResult) -> list[int]:
    """Ordinals that a rule ended."""
    return sorted(
        GroupId.parse(event.key).ordinal
        for event in result.events
        if isinstance(event.payload, GroupRejected) and event.payload.state == "filtered"
    )


def measure(cell: Cell, seed: int = 7) -> Any:
    """The cell's outcome with every law checked."""
    return run_cell(cell, seed, is_checked=True)
