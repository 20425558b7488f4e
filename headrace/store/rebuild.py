"""A new journal from what a salvage proved, and its way into the place of the old one.

Invariant: the file under the journal's name is the old journal or the whole new one, whatever crashed when; the old one is
kept.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

import apsw

from headrace.errors import StoreError
from headrace.store.disk import Disk
from headrace.store.reader import StoredEvent, StoredLate, StoredRow
from headrace.store.schema import CREATE_LATE, FILE_NAME, close_anyway, open_writer

STAGING = "repair.part"
"""Name of the folder, within a run's folder, in which the new journal is made."""

_BATCH = 500
T = TypeVar("T")


def write_journal(
    folder: Path,
    events: Iterable[StoredEvent],
    rows: Callable[[], Iterable[StoredRow]],
    *,
    epoch: int,
    late: Sequence[StoredLate],
) -> None:
    """Makes the new journal in the staging folder; one that a crash left there is thrown away.

    Args:
        folder: of the run.
        events: proven ones, in order.
        rows: called once all events were taken.
        epoch: highest that any writer of the old journal had.
        late: counts of what was refused to writers that were taken over.

    Raises:
        StoreError: when it could not be made durable.
    """
    staging = folder / STAGING
    if staging.exists():
        shutil.rmtree(staging)
    Disk().make_folder(staging)
    connection = open_writer(staging / FILE_NAME, None)
    try:
        with connection:
            connection.execute("UPDATE writer SET epoch = ?", (epoch,))
            for batch in _batches(events):
                connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", batch)
            for batch in _batches(rows()):
                connection.executemany(
                    "INSERT INTO rows VALUES (?, ?, ?) ON CONFLICT (address) DO NOTHING",
                    ((row.address, row.kind, row.data) for row in batch),
                )
            if late:
                connection.execute(CREATE_LATE)
                connection.executemany("INSERT INTO late VALUES (?, ?, ?)", late)
    except apsw.Error as error:
        raise StoreError(f"{staging / FILE_NAME} is not durable: {error}") from error
    finally:
        close_anyway(connection)


def fold_old_log(folder: Path) -> None:
    """Everything of the old journal is in its one file, so that no log of it can be taken for one of the new journal.

    Raises:
        StoreError: when it cannot be done.
    """
    path = folder / FILE_NAME
    log = path.with_name(f"{FILE_NAME}-wal")
    if log.exists() and log.stat().st_size:
        try:
            connection = apsw.Connection(str(path))
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            connection.close()
        except apsw.Error as error:
            raise StoreError(
                f"{log} cannot be folded into the journal: {error}; keep both and copy them back"
            ) from error
    if log.exists() and log.stat().st_size:
        raise StoreError(f"{log} is not empty: another process reads the run; end it and try again")


def take_place(folder: Path, quarantine: Path) -> None:
    """The new journal gets its name; the old one goes to quarantine. Raises StoreError."""
    disk, path = Disk(), folder / FILE_NAME
    try:
        os.link(path, quarantine / FILE_NAME)
        disk.sync_folder(quarantine)
        disk.replace_durably(folder / STAGING / FILE_NAME, path)
        for name in (f"{FILE_NAME}-wal", f"{FILE_NAME}-shm"):
            disk.remove(folder / name)
        shutil.rmtree(folder / STAGING)
    except OSError as error:
        raise StoreError(f"the new journal did not take the place of {path}: {error}; run the repair again") from error


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, _BATCH)):
        yield batch
