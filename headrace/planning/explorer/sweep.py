"""Runs many seeds in processes of their own, and adds up what they found.

Invariant: the result is a function of the seeds and the kinds of faults; how many processes ran them changes nothing.
"""

import concurrent.futures
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from headrace.checkers import Violation, check_coverage
from headrace.planning.explorer.branches import BRANCHES
from headrace.planning.explorer.cases import WORLDS, Case, case_of, point_classes, point_name
from headrace.planning.explorer.judging import Found, run_case
from headrace.planning.explorer.shrinking import shrink

COVERAGE_SEEDS = 1_000
"""A sweep of so many seeds with all kinds of faults has to have been everywhere."""
_CHUNK = 25
_TWICE_EVERY = 20
"""Every so many seeds one is run a second time, which has to give the same log."""
_MOST_KEPT = 20


class Sweep(msgspec.Struct, frozen=True):
    """What a sweep found.

    Attributes:
        first_seed: the first seed.
        seeds: how many were run.
        faults: kinds of faults that were allowed.
        workers: processes.
        failures: cases that broke a law, smallest first one first; at most twenty are kept.
        failed: how many broke one.
        irreproducible: seeds that gave two different logs.
        run_twice: how many were run a second time.
        points: how often each class of kill point fired.
        branches: how often each way of recovery was taken.
        kinds: how often each kind of fault fired.
        lives: number of processes to number of runs that took so many.
        uncovered: points and ways that never fired; judged from `COVERAGE_SEEDS` on.
        cpu_s: CPU seconds of all runs.
        wall_s: seconds from begin to end.
    """

    first_seed: int
    seeds: int
    faults: tuple[str, ...]
    workers: int
    failures: tuple[Found, ...]
    failed: int
    irreproducible: tuple[int, ...]
    run_twice: int
    points: dict[str, int]
    branches: dict[str, int]
    kinds: dict[str, int]
    lives: dict[int, int]
    uncovered: tuple[Violation, ...]
    cpu_s: float
    wall_s: float

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.failed or self.irreproducible or self.uncovered)


class _Tally(msgspec.Struct):
    """What a part of a sweep found; parts add up."""

    failures: list[Found] = []
    failed: int = 0
    irreproducible: list[int] = []
    run_twice: int = 0
    points: Counter[str] = msgspec.field(default_factory=Counter[str])
    branches: Counter[str] = msgspec.field(default_factory=Counter[str])
    kinds: Counter[str] = msgspec.field(default_factory=Counter[str])
    lives: Counter[int] = msgspec.field(default_factory=Counter[int])
    cpu_s: float = 0.0

    def add(self, other: "_Tally") -> None:
        self.failures = sorted([*self.failures, *other.failures], key=lambda found: found.case.seed)[:_MOST_KEPT]
        self.irreproducible = sorted([*self.irreproducible, *other.irreproducible])
        self.failed += other.failed
        self.run_twice += other.run_twice
        self.points += other.points
        self.branches += other.branches
        self.kinds += other.kinds
        self.lives += other.lives
        self.cpu_s += other.cpu_s


def explore(
    first_seed: int,
    seeds: int,
    kinds: frozenset[str],
    *,
    workers: int,
    on_progress: Callable[[int, int], None] = lambda done, failed: None,
) -> Sweep:
    """The sweep over the seeds, with its first failure shrunk.

    Args:
        first_seed: where it begins.
        seeds: how many.
        kinds: faults that are allowed; of `fault_names`.
        workers: processes; 1 runs everything in this one.
        on_progress: called with the seeds done and those that failed, after each part.
    """
    begin_s, tally, done = time.monotonic(), _Tally(), 0
    for part, count in _parts(first_seed, seeds, kinds, workers):
        tally.add(part)
        done += count
        on_progress(done, tally.failed)
    failures = [shrink(tally.failures[0]), *tally.failures[1:]] if tally.failures else []
    return Sweep(
        first_seed=first_seed,
        seeds=seeds,
        faults=tuple(sorted(kinds)),
        workers=workers,
        failures=tuple(failures),
        failed=tally.failed,
        irreproducible=tuple(tally.irreproducible),
        run_twice=tally.run_twice,
        points=dict(sorted(tally.points.items())),
        branches={name: tally.branches[name] for name in BRANCHES},
        kinds=dict(sorted(tally.kinds.items())),
        lives=dict(sorted(tally.lives.items())),
        uncovered=tuple(_uncovered(tally, kinds) if seeds >= COVERAGE_SEEDS else ()),
        cpu_s=tally.cpu_s,
        wall_s=time.monotonic() - begin_s,
    )


def expected_points() -> set[str]:
    """Names of all classes of kill points, over all worlds."""
    return {point_name(points[0]) for world in WORLDS for points in point_classes(world)}


def _uncovered(tally: _Tally, kinds: frozenset[str]) -> list[Violation]:
    if "kill" not in kinds:
        return []
    return [
        *check_coverage(expected_points(), tally.points, what="kill point"),
        *check_coverage(BRANCHES, tally.branches, what="way of recovery"),
    ]


def _parts(first_seed: int, seeds: int, kinds: frozenset[str], workers: int) -> Iterator[tuple[_Tally, int]]:
    chunks = [
        range(begin, min(begin + _CHUNK, first_seed + seeds)) for begin in range(first_seed, first_seed + seeds, _CHUNK)
    ]
    if workers == 1 or len(chunks) == 1:
        for chunk in chunks:
            yield run_seeds(chunk, kinds), len(chunk)
        return
    # Fork would copy threads, and with them locks that nobody holds any more.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(workers, len(chunks)), mp_context=context) as pool:
        futures = {pool.submit(run_seeds, chunk, kinds): len(chunk) for chunk in chunks}
        for future in concurrent.futures.as_completed(futures):
            yield future.result(), futures[future]


def run_seeds(seeds: Sequence[int], kinds: frozenset[str]) -> _Tally:
    """What the seeds found, one after the other; each twentieth is run twice."""
    return tally_of(case_of(seed, kinds) for seed in seeds)


def tally_of(cases: Iterable[Case]) -> _Tally:
    """What the cases found."""
    tally = _Tally()
    for case in cases:
        found = run_case(case)
        tally.cpu_s += found.cpu_s
        tally.points.update(found.points)
        tally.branches.update(found.branches)
        tally.kinds.update(found.kinds)
        tally.lives[len(found.lives)] += 1
        if found.violations:
            tally.failed += 1
            tally.failures.append(found)
        if case.seed % _TWICE_EVERY == 0:
            again = run_case(case)
            tally.cpu_s += again.cpu_s
            tally.run_twice += 1
            if again.head != found.head:
                tally.irreproducible.append(case.seed)
    return tally
