"""The main job live on child processes, and what its log says of the time in which it trained."""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.config import Config, load_config
from headrace.records.batch import GroupAdmitted
from headrace.records.events import Event
from headrace.reporting.report import RunReport, report_run
from headrace.runtime.local import LocalRun, run_local
from headrace.store.reader import open_reader

JOB = Path(__file__).parents[2] / "examples" / "arithmetic" / "train.toml"


def main_job(seed: int, updates: int, tools: Mapping[str, float], overrides: Sequence[str]) -> Config:
    """The main job without held-out rounds, its tools with these options."""
    options = "".join(f", {name} = {value}" for name, value in tools.items())
    return load_config(
        JOB,
        (
            f"run.seed={seed}",
            f"run.updates={updates}",
            "evaluation.every_updates=0",
            f'environment.options={{ tools = ["calculator"]{options} }}',
            *overrides,
        ),
    )


@dataclasses.dataclass(frozen=True)
class Trained:
    """A run that is over.

    Attributes:
        events: its log.
        report: its report.
        begin_s: of its first admission, in seconds of the run, so that no warm start is in what follows.
        versions_s: seconds from there to each version, 0 for the first.
    """

    events: tuple[Event, ...]
    report: RunReport
    begin_s: float
    versions_s: tuple[float, ...]

    @property
    def information_per_h(self) -> float:
        """Effective trajectories per hour of the time from the first admission to the last version."""
        return self.report.information.total / (self.versions_s[-1] / 3600.0)


def run_main_job(config: Config, folder: Path) -> Trained:
    """Runs to the end in a new folder."""
    folder.mkdir(parents=True)
    asyncio.run(run_local(LocalRun(config, folder)))
    with open_reader(folder) as reader:
        events = tuple(reader.events())
        report = report_run(events, reader.read)
    begin_s = next(event.t_ns / 1e9 for event in events if isinstance(event.payload, GroupAdmitted))
    versions_s = [0.0, *(item.t_s - begin_s for item in report.updates.updates if item.t_s is not None)]
    return Trained(events, report, begin_s, tuple(versions_s))
