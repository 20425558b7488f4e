"""Which resource limits a run: seconds of each that one update needs, and what the simulated run did with its time."""

import msgspec

from headrace.planning.outcome import Outcome
from headrace.simulation.scenario import Scenario

BUSY = 0.9
"""A resource that works this share of an update's time is full."""


class Demands(msgspec.Struct, frozen=True):
    """Seconds of each resource that one update needs when nothing else is in the way.

    Attributes:
        decode: sampling a batch on a full engine.
        prefill: starting its turns and computing their prompts; 0 where a fit has it in decode.
        environment_cpu: CPU of its tool calls over the cores; 0 where nothing metered it.
        external_wait: waiting of its tool calls and openings over the calls that may run at the same time; 0 without
            bound: then it delays episodes and limits nothing.
        external_service: its tool calls over the calls per second that the service lets begin; 0 without bound.
        grader: grading over the gradings that may run at the same time; 0 without bound.
        trainer: scoring and update.
        sync: staging, canary and the engine's pause.
        switch: changing shared devices; 0 where there are none.
    """

    decode: float
    prefill: float
    environment_cpu: float
    external_wait: float
    external_service: float
    grader: float
    trainer: float
    sync: float
    switch: float

    def table(self) -> dict[str, float]:
        """By name, the largest first."""
        found = {name.replace("_", " "): getattr(self, name) for name in self.__struct_fields__}
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def demands_of(scenario: Scenario, cpu_s_per_episode: float | None, cores: float | None) -> Demands:
    """Demands of a scenario.

    Args:
        scenario: workload and costs.
        cpu_s_per_episode: metered CPU of an episode's tools; None where nothing metered it.
        cores: that they share; None where nobody says.
    """
    workload, engine, trainer = scenario.workload, scenario.engine, scenario.trainer
    episodes = scenario.group_size * scenario.batch_groups
    turns = workload.turns.mean
    tokens = workload.mean_tokens * (1.0 if workload.tokens_of == "episode" else turns)
    rate = engine.request_rates()[-1] * engine.slots
    waits = (turns - 1.0) * workload.tool_s.mean
    prefill = episodes * turns * engine.turn_start_s
    if engine.prefill_tokens_per_s:
        prompts = workload.prompt_tokens.mean / scenario.group_size + (turns - 1.0) * workload.observation_tokens.mean
        prefill += episodes * prompts / engine.prefill_tokens_per_s
    return Demands(
        decode=episodes * tokens / rate,
        prefill=prefill,
        environment_cpu=episodes * cpu_s_per_episode / cores if cpu_s_per_episode and cores else 0.0,
        external_wait=episodes * waits / scenario.environment_slots if scenario.environment_slots else 0.0,
        external_service=episodes * (turns - 1.0) / scenario.external_calls_per_s
        if scenario.external_calls_per_s
        else 0.0,
        grader=episodes * workload.grade_s.mean / scenario.grader_slots if scenario.grader_slots else 0.0,
        trainer=trainer.update_s.mean + trainer.score_s.mean,
        sync=engine.stage_s.mean + trainer.canary_s + engine.swap_pause_s,
        switch=2.0 * scenario.switch_s if scenario.placement == "shared" else 0.0,
    )


def bottleneck_of(demands: Demands, outcome: Outcome, scenario: Scenario) -> str:
    """The name of what limits the run, with its share of an update's time.

    Where no resource is full, the time goes into waiting for one another: for the slowest episodes of a batch when the
    engine runs dry, else for admission.
    """
    cycle_s = 1e3 * scenario.batch_groups / outcome.steady_groups_per_ks
    name, seconds = next(iter(demands.table().items()))
    share = seconds / cycle_s
    if share >= BUSY:
        return f"{name}: {share:.0%} of an update's time"
    if 1.0 - outcome.steady_trainer_idle >= BUSY:
        return f"trainer: never idle ({share:.0%} of an update's time it computes, the rest it publishes)"
    rest = 1.0 - share
    if demands.trainer + demands.sync + demands.decode >= BUSY * cycle_s:
        return f"{name} ({share:.0%} of an update's time), taking turns with the rest: overlap would help"
    delays = scenario.workload.open_s.mean + (scenario.workload.turns.mean - 1.0) * scenario.workload.tool_s.mean
    cause = "tool and opening latency" if delays > demands.decode else "the slowest episodes of a batch"
    return f"no resource is full ({name} {share:.0%}); {rest:.0%} goes into waiting, mostly for {cause}"
