"""CPU seconds, interleaving, medians, and the table that a benchmark prints.

Invariant: a figure is the median of at least seven runs whose results were asserted; sides take turns, and the order turns
too, so that a busy minute hits all of them alike.
"""

import argparse
import dataclasses
import datetime
import gc
import json
import os
import platform
import resource
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

RESULTS = Path(__file__).parent.parent / "results"
REPEATS = 7
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")

Run = Callable[[], float]
"""Runs once, asserts its results, and gives the CPU seconds of what was measured."""


def tree_cpu_s() -> float:
    """CPU seconds of this process, its threads, its reaped children and its living descendants.

    The living ones are read in clock ticks of 10 ms each: measure long enough, or let children end before.
    """
    own = resource.getrusage(resource.RUSAGE_SELF)
    reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + reaped.ru_utime + reaped.ru_stime + _living_s(os.getpid())


def _living_s(pid: int) -> float:
    total = 0.0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (thread / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            try:
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            total += sum(map(int, fields[11:15])) * _TICK_S + _living_s(int(child))
    return total


@dataclasses.dataclass(frozen=True)
class Side:
    """One column of a sitting.

    Attributes:
        name: `product`, `floor` or a peer's name and version.
        run: runs it once; None when it is not here.
        absence: why it is not here.
        published: its published figure in the unit of the benchmark, quoted as such where it is not run.
    """

    name: str
    run: Run | None
    absence: str = ""
    published: float | None = None


@dataclasses.dataclass(frozen=True)
class Figure:
    """What is measured.

    Attributes:
        id: the benchmark's.
        what: one line.
        unit: of the figure.
        scale: figure = CPU seconds of a run times this.
        target: the figure must not exceed it; None when it is judged elsewhere.
    """

    id: str
    what: str
    unit: str
    scale: float
    target: float | None


def options(doc: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark takes."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=REPEATS, help="runs of each side; below 7 is no figure")
    parser.add_argument("--peers", type=Path, help="python of an environment that holds the peers")
    return parser


def sit(figure: Figure, sides: Sequence[Side], repeats: int) -> dict[str, float]:
    """Medians by side, printed and written to `results/`."""
    present = [side for side in sides if side.run is not None]
    values: dict[str, list[float]] = {side.name: [] for side in present}
    for turn in range(repeats):
        for side in present[turn % len(present) :] + present[: turn % len(present)]:
            assert side.run is not None
            gc.collect()
            values[side.name].append(side.run() * figure.scale)
    medians = {name: statistics.median(runs) for name, runs in values.items()}
    _print(figure, sides, values, medians, repeats=repeats)
    _write(figure, sides, values, medians)
    return medians


def _print(
    figure: Figure,
    sides: Sequence[Side],
    values: Mapping[str, list[float]],
    medians: Mapping[str, float],
    *,
    repeats: int,
) -> None:
    load = os.getloadavg()[0]
    print(f"\n{figure.id}  {figure.what}")
    print(f"    {figure.unit}, median of {repeats}, CPU of the process tree; load average {load:.1f}")
    if repeats < REPEATS:
        print(f"    NO FIGURE: {repeats} repeats, {REPEATS} are needed")
    floor = medians.get("floor")
    for side in sides:
        if side.run is None:
            quoted = f"; published: {side.published:g}, another sitting" if side.published is not None else ""
            print(f"    {side.name:24} absent: {side.absence}{quoted}")
            continue
        runs, median = values[side.name], medians[side.name]
        against_floor = f"{median / floor:6.2f} x floor" if floor else ""
        against_product = (
            f"{median / medians['product']:7.2f} x product" if side.name not in {"product", "floor"} else ""
        )
        print(
            f"    {side.name:24} {median:10.2f}  ({min(runs):.2f} to {max(runs):.2f}) {against_floor} {against_product}"
        )
    if figure.target is not None:
        is_met = medians["product"] <= figure.target
        print(f"    target <= {figure.target:g}: {'met' if is_met else 'NOT MET'}")
    sys.stdout.flush()


def _write(
    figure: Figure, sides: Sequence[Side], values: Mapping[str, list[float]], medians: Mapping[str, float]
) -> None:
    RESULTS.mkdir(exist_ok=True)
    record = {
        **dataclasses.asdict(figure),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()},
        "load": os.getloadavg(),
        "medians": dict(medians),
        "runs": dict(values),
        "absent": {side.name: side.absence for side in sides if side.run is None},
        "published": {side.name: side.published for side in sides if side.published is not None},
    }
    (RESULTS / f"{figure.id}.json").write_text(json.dumps(record, indent=1))
