"""A workload together with the system that meets it, as one TOML file.

The files in `workloads/` hold published laws and costs; each says in `source` what kind of system they were measured on.
"""

import importlib.resources
import tomllib
from pathlib import Path
from typing import Literal

from headrace.algorithms.bounds import fluid_bound
from headrace.config import Section, decode_options
from headrace.errors import ConfigError
from headrace.simulation.costs import EngineCost, TrainerCost
from headrace.simulation.workload import Workload


class Scenario(Section, frozen=True):
    """Everything that an experiment states.

    Attributes:
        workload: laws of what the run meets.
        engine: cost of inference.
        trainer: cost of training.
        group_size: members of a group.
        batch_groups: groups of one update.
        updates: number of updates.
        environment_slots: tool calls at the same time; None has no bound.
        external_calls_per_s: tool calls per second that the external service behind them lets begin, evenly spaced; None
            has no bound.
        grader_slots: gradings at the same time; None has no bound.
        placement: `separate` gives engine and trainer devices of their own; `shared` makes them take turns on one.
        switch_s: seconds to change a shared device from generation to training, and again to change back.
    """

    workload: Workload
    engine: EngineCost = EngineCost()
    trainer: TrainerCost = TrainerCost()
    group_size: int = 8
    batch_groups: int = 16
    updates: int = 100
    environment_slots: int | None = None
    external_calls_per_s: float | None = None
    grader_slots: int | None = None
    placement: Literal["separate", "shared"] = "separate"
    switch_s: float = 0.0

    def __post_init__(self) -> None:
        if self.external_calls_per_s is not None and not self.external_calls_per_s > 0.0:
            raise ValueError(f"external_calls_per_s is {self.external_calls_per_s}; it must be positive or absent")

    @property
    def fluid_groups_per_s(self) -> float:
        """Most groups per second that engine slots, external service and trainer allow, keeping all tasks; full slots.

        On shared devices a batch takes the sum of what its generation, its training and two switches take.

        Example: 256 slots at one token per second, 8 members of 114 tokens: 256 / (8 * 114) = 0.281 groups per second.
        """
        tokens_per_s = self.engine.request_rates()[-1] * self.engine.slots
        turns = self.workload.turns.mean if self.workload.tokens_of == "turn" else 1.0
        train_s = (self.trainer.update_s.mean + self.trainer.score_s.mean) / self.batch_groups
        group_s = {"generation": self.group_size * self.workload.mean_tokens * turns / tokens_per_s}
        if self.external_calls_per_s is not None:
            group_s["external service"] = self.group_size * (self.workload.turns.mean - 1.0) / self.external_calls_per_s
        if self.placement == "shared":
            switches_s = 2.0 * self.switch_s / self.batch_groups
            group_s = {"shared devices": max(group_s.values()) + train_s + switches_s}
        else:
            group_s["training"] = train_s
        return fluid_bound({"all": 1.0}, {"all": group_s}, dict.fromkeys(group_s, 1.0))[0]


def scenario_names() -> tuple[str, ...]:
    """Names of the scenarios that ship with the package."""
    folder = importlib.resources.files("headrace.simulation") / "workloads"
    return tuple(sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml")))


def load_scenario(name: str | Path) -> Scenario:
    """The scenario of a TOML file, or of a name that ships with the package.

    Raises:
        ConfigError: when there is none, or a value is out of its bounds.
    """
    if isinstance(name, Path):
        if not name.is_file():
            raise ConfigError(f"{name}: no such file")
        text = name.read_text(encoding="utf-8")
    elif name in scenario_names():
        folder = importlib.resources.files("headrace.simulation") / "workloads"
        text = (folder / f"{name}.toml").read_text(encoding="utf-8")
    else:
        raise ConfigError(
            f"no workload is called {name!r}; there are {', '.join(scenario_names())}, and a TOML file or a run's folder "
            "may be named by its path"
        )
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: not valid TOML: {error}") from error
    return decode_options(tree, Scenario, str(name))
