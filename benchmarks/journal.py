"""The journal: durable events a second, recovery against the length of the log, and what `kill -9` takes back.

Run: `python -m benchmarks.journal [--repeats N] [--kills N]`. 256 asyncio producers append an event each and wait until it
is on disk, again and again, through the real journal; beside it one transaction per event, and plain SQLite in batches of
256 and nothing else as the floor. The sides take turns in one sitting. Recovery opens the log of a simulated run
and folds it. The killed writer is a process of its own.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

import apsw
import numpy as np

from headrace.config import decode_config
from headrace.control.past import RunPast
from headrace.control.recovery import recover
from headrace.records.events import is_once, kind_of
from headrace.records.run import WorkerState, WorkerStateChanged
from headrace.runtime.simulated import SimulatedDisk, Simulation, simulate
from headrace.simulation.scenario import load_scenario
from headrace.store import CommitPolicy, MemoryJournal, SqliteJournal
from headrace.store.faulty import DiskLog, FaultyVFS
from headrace.store.schema import CREATE
from headrace.store.sqlite import SqliteStorage

PRODUCERS, ROUNDS, SINGLE = 256, 8, 60
LENGTHS = (5, 10, 20, 40)
GOAL = 20.0
RESULTS = Path(__file__).parent / "results"


def group_commit(folder: Path) -> float:
    """Durable events a second with 256 producers that each wait for their own event."""

    async def work() -> float:
        journal = SqliteJournal(folder, incarnation="bench", policy=CommitPolicy(max_delay_s=1.0))

        async def produce(name: str) -> None:
            for _ in range(ROUNDS):
                await journal.durable(journal.append(WorkerStateChanged(name, WorkerState.BUSY), key=name))

        began_s = time.perf_counter()
        await asyncio.gather(*(produce(f"w{number}") for number in range(PRODUCERS)))
        took_s = time.perf_counter() - began_s
        assert journal.durable_seq == PRODUCERS * ROUNDS
        await journal.close()
        return PRODUCERS * ROUNDS / took_s

    return asyncio.run(work())


def one_by_one(folder: Path) -> float:
    """Durable events a second with one producer, so one transaction and one sync for each event."""

    async def work() -> float:
        journal = SqliteJournal(folder, incarnation="bench")
        began_s = time.perf_counter()
        for _ in range(SINGLE):
            await journal.durable(journal.append(WorkerStateChanged("w", WorkerState.BUSY), key="w"))
        took_s = time.perf_counter() - began_s
        await journal.close()
        return SINGLE / took_s

    return asyncio.run(work())


def plain_sqlite(folder: Path) -> float:
    """The same lines, encoded beforehand, in transactions of 256: no event loop, chain, envelope or waiting."""

    async def lines() -> list[tuple[object, ...]]:
        journal = MemoryJournal()
        for number in range(PRODUCERS * ROUNDS):
            journal.append(WorkerStateChanged(f"w{number % PRODUCERS}", WorkerState.BUSY), key=f"w{number % PRODUCERS}")
        await journal.close()
        return [
            (e.seq, e.epoch, kind_of(e.payload), e.key, e.t_ns, e.cause_seq, is_once(e.payload), b"x" * 64, b"h" * 32)
            for e in journal.events()
        ]

    prepared = asyncio.run(lines())
    folder.mkdir()
    connection = apsw.Connection(str(folder / "plain.db"))
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(CREATE)
    began_s = time.perf_counter()
    for begin in range(0, len(prepared), PRODUCERS):
        with connection:
            connection.executemany(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", prepared[begin : begin + PRODUCERS]
            )
    took_s = time.perf_counter() - began_s
    connection.close()
    return len(prepared) / took_s


def recovery(root: Path) -> dict[str, object]:
    """CPU microseconds per event to open a journal and fold it, over runs of four lengths."""
    lengths: list[int] = []
    seconds: list[float] = []
    for updates in LENGTHS:
        tree = {"run": {"seed": 7, "updates": updates}, "schedule": {"batch_groups": 8, "group_size": 4}}
        folder, unsynced = root / f"recover-{updates}", FaultyVFS("unsynced", DiskLog())
        disk = SimulatedDisk(SqliteStorage(folder, "unsynced"))
        simulate(
            Simulation(decode_config(tree, "benchmark"), load_scenario("small_mixed"), is_checked=False), disk=disk
        )
        unsynced.unregister()
        past = RunPast()
        took: list[float] = []
        for _ in range(3):
            began_s = time.process_time()
            storage = SqliteStorage(folder)
            past = recover(storage.events(0))
            took.append(time.process_time() - began_s)
            storage.close()
        lengths.append(past.last_seq)
        seconds.append(statistics.median(took))
    slope, offset = np.polyfit(lengths, seconds, 1)
    residual = max(abs(s - slope * n - offset) / s for n, s in zip(lengths, seconds, strict=True))
    return {
        "events": lengths,
        "cpu_s": seconds,
        "us_per_event": 1e6 * float(slope),
        "offset_ms": 1e3 * float(offset),
        "largest_residual": float(residual),
    }


def write_until_killed(folder: Path, told: int) -> None:
    """A writer's life: eight producers, each acknowledgement told in eight bytes."""

    async def work() -> None:
        journal = SqliteJournal(folder, incarnation=f"life-{os.getpid()}")

        async def produce(name: str) -> None:
            while True:
                seq = journal.append(WorkerStateChanged(name, WorkerState.BUSY), key=name)
                await journal.durable(seq)
                os.write(told, seq.to_bytes(8, "little"))

        await asyncio.gather(*(produce(f"w{number}") for number in range(8)))

    asyncio.run(work())


def kill_writers(root: Path, kills: int) -> tuple[int, int]:
    """(events acknowledged, of those not there after reopening) over writers that were killed at random instants."""
    rng, folder = np.random.default_rng(11), root / "killed"
    acknowledged = lost = 0
    for _ in range(kills):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            with contextlib.suppress(BaseException):
                write_until_killed(folder, writer)
            os._exit(1)
        os.close(writer)
        first = os.read(reader, 8)
        time.sleep(float(rng.uniform(0.0, 0.08)))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        told = first
        while piece := os.read(reader, 1 << 16):
            told += piece
        os.close(reader)
        numbers = np.frombuffer(told[: len(told) // 8 * 8], dtype="<i8")
        storage = SqliteStorage(folder)
        stored = storage.claim().seq
        storage.close()
        acknowledged += len(numbers)
        lost += int((numbers > stored).sum())
    return acknowledged, lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kills", type=int, default=200)
    arguments = parser.parse_args()
    sides = {"group commit": group_commit, "one by one": one_by_one, "plain SQLite": plain_sqlite}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        acknowledged, lost = kill_writers(root, arguments.kills)  # before any thread was started here
        for number in range(arguments.repeats):
            for side, run in sides.items():
                rates[side].append(run(root / f"{side}-{number}"))
        recovered = recovery(root)
    median = {side: statistics.median(values) for side, values in rates.items()}
    ratio = median["group commit"] / median["one by one"]
    for side, value in median.items():
        print(f"{side:<14}{value:>10.0f} durable events/s   ({min(rates[side]):.0f} to {max(rates[side]):.0f})")
    print(f"group commit is {ratio:.1f} x one by one (goal {GOAL:.0f}): {'met' if ratio >= GOAL else 'not met'}")
    print(
        f"recovery      {recovered['us_per_event']:>10.1f} CPU us per event, offset {recovered['offset_ms']:.1f} ms, "
        f"largest residual {recovered['largest_residual']:.1%} over {recovered['events']} events"
    )
    print(f"kill -9       {lost:>10} of {acknowledged} acknowledged events lost in {arguments.kills} kills")
    RESULTS.mkdir(exist_ok=True)
    result = {
        "rates": rates,
        "ratio": ratio,
        "recovery": recovered,
        "kills": {"kills": arguments.kills, "acknowledged": acknowledged, "lost": lost},
        "load": os.getloadavg(),
    }
    (RESULTS / "journal.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    assert lost == 0


if __name__ == "__main__":
    main()
