"""Removes files of a run that nothing names any more, by mark and sweep.

Invariant: the marks are a fold over the durable journal and its rows alone, and a file goes only when it is not marked; so a
crash anywhere leaves a run as sound as before, and a second pass removes what the first one left. No writer lives meanwhile.
"""

from pathlib import Path

import msgspec

from headrace.config import Config
from headrace.control.past import RunPast
from headrace.control.recovery import recover
from headrace.errors import StoreError
from headrace.records.ids import Address
from headrace.runtime.folders import BLOBS
from headrace.scheduling.retention import Retention
from headrace.store.blobs import FileBlobs
from headrace.store.disk import Disk
from headrace.store.reader import JournalReader, open_reader
from headrace.store.references import decode_row, named_by_event, named_by_row
from headrace.store.sqlite import WriterLock


class Pruned(msgspec.Struct, frozen=True):
    """What was removed, or would be.

    Attributes:
        files: their addresses, in order.
        size_bytes: of them together.
        temporary: files that crashes had left half written.
        kept: files that stay.
    """

    files: tuple[Address, ...]
    size_bytes: int
    temporary: int
    kept: int


def prune_run(folder: Path, *, is_dry_run: bool = False, disk: Disk | None = None) -> Pruned:
    """Removes the files that no event or row of the run names and that the retention rule does not keep.

    Args:
        folder: of the run.
        is_dry_run: removes nothing.
        disk: file operations.

    Raises:
        StoreError: when a writer lives, the journal cannot be read, or a file cannot be removed.
        IntegrityError: when the journal is damaged, so that nobody can tell what it names.
    """
    lock = WriterLock(folder)
    try:
        with open_reader(folder) as reader:
            marked = _marked(reader)
        blobs = FileBlobs(folder / BLOBS, disk)
        stored = list(blobs.addresses())
        unnamed = tuple(address for address in stored if address not in marked)
        size_bytes = sum((folder / BLOBS / item[:2] / item).lstat().st_size for item in unnamed)
        temporary = 0 if is_dry_run else blobs.sweep()
        for address in () if is_dry_run else unnamed:
            blobs.remove(address)
    finally:
        lock.release()
    return Pruned(unnamed, size_bytes, temporary, len(stored) - len(unnamed))


def _marked(reader: JournalReader) -> set[Address]:
    events = list(reader.events())
    past = recover(events)
    if past.started is None:
        raise StoreError("the journal holds no start of a run, so nobody can tell which files it needs")
    config = msgspec.msgpack.decode(reader.read(past.started.config), type=Config)
    retention = Retention(config.checkpoint.keep_last, config.checkpoint.keep_every)
    marked = {address for event in events for _, address in named_by_event(event)}
    for row in reader.stored_rows():
        marked.update(address for _, address in named_by_row(decode_row(row.kind, row.data)))
    marked.update(named_by_state(past, retention))
    return marked


def named_by_state(past: RunPast, retention: Retention) -> set[Address]:
    """Files that the retention rule keeps where the run stands, and weights that are not published yet."""
    manifests = [written.manifest for written in past.checkpoints]
    named = retention.needed(manifests, past.weights, {item.version for item in past.open_rounds})
    if past.update is not None and past.update.result is not None:
        named.add(past.update.result.weights)
    return named
