"""Workloads that are small enough to be run many times."""

import msgspec

from headrace.simulation.scenario import Scenario, load_scenario


def small() -> Scenario:
    """The ten-times workload with groups of 4 in batches of 4 on 32 slots."""
    base = load_scenario("ten_times")
    engine = msgspec.structs.replace(base.engine, slots=32, decode=((32, 32.0),))
    return msgspec.structs.replace(base, engine=engine, group_size=4, batch_groups=4)
