"""`headrace compact`: the tokens of settled work go, and the figures stay.

Invariant: what goes is named by a durable list in the transaction in which it goes, and neither a resumed run nor a report
nor a law needs it; so a crash anywhere leaves a sound run, and a second call ends what the first one began. No writer lives
meanwhile.
"""

import dataclasses
import datetime
from collections import Counter
from pathlib import Path

import msgspec

from headrace.config import Config
from headrace.control.past import RunPast
from headrace.control.recovery import RunFold
from headrace.errors import ConfigError, IntegrityError, StoreError
from headrace.ports import Row
from headrace.records.action import ActionCommitted
from headrace.records.batch import BatchPlanned, GroupRejected
from headrace.records.checkpoint import Manifest
from headrace.records.compaction import DropList, DroppedRecord, RunCompacted, outline_of
from headrace.records.events import Event
from headrace.records.ids import Address, EpisodeId, GroupId
from headrace.records.provenance import canonical_bytes, check_address, read_record
from headrace.records.segment import TurnGenerated
from headrace.records.trajectory import Transcript, TranscriptSealed
from headrace.records.update import WeightsCommitted
from headrace.reporting.quantities import size
from headrace.runtime.folders import BLOBS, JOURNAL
from headrace.runtime.models import run_config
from headrace.store.blobs import FileBlobs
from headrace.store.compaction import Shortening, give_back, shorten, shorten_journal
from headrace.store.reader import JournalReader, open_reader
from headrace.store.references import named_by_row
from headrace.store.sqlite import WriterLock

_LISTED = 1_000
"""Records of one list: a list that is read whole stays small."""
_KINDS = ("artifact", "receipt", "transcript")
"""Kinds of rows that may go."""


@dataclasses.dataclass(frozen=True)
class Compacted:
    """What was dropped, or would be.

    Attributes:
        newest: newest committed version.
        update: groups up to this update were dropped; those that were dropped before are not counted again.
        held_by: why that is less than was asked for; empty when it is not.
        records: number and bytes by kind.
        turns: turns that lose their tokens.
        turn_bytes: bytes of their events that go.
        size_bytes: of the journal before.
        left_bytes: of the journal now; as before in a dry run.
    """

    newest: int
    update: int
    held_by: str
    records: dict[str, tuple[int, int]]
    turns: int
    turn_bytes: int
    size_bytes: int
    left_bytes: int


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What goes.

    Attributes:
        newest: newest committed version.
        update: last update whose groups go.
        held_by: why it is not later.
        records: rows that go, in order of address.
        turns: events that are shortened, with what each loses.
    """

    newest: int
    update: int
    held_by: str
    records: tuple[DroppedRecord, ...]
    turns: dict[int, int]


def compact_run(
    folder: Path,
    *,
    keep_updates: int,
    is_dry_run: bool = False,
    vfs: str | None = None,
) -> Compacted:
    """Drops tokens, log-probs, outputs and artifacts that neither the newest updates nor a resumed run need.

    Args:
        folder: of the run.
        keep_updates: newest updates whose trajectories stay whole.
        is_dry_run: drops nothing.
        vfs: name of a registered SQLite file system; the default one by default.

    Raises:
        ConfigError: when `keep_updates` is negative.
        StoreError: when a writer lives, or something could not be made durable.
        IntegrityError: when something that would go, or the hash chain, is damaged; nothing has changed.
    """
    if keep_updates < 0:
        raise ConfigError(f"--keep-updates is {keep_updates}; it must be at least 0")
    lock = WriterLock(folder)
    try:
        before = _journal_bytes(folder)
        with open_reader(folder) as reader:
            plan = _plan(reader, folder, keep_updates)
        if not is_dry_run:
            has_work = bool(plan.records or plan.turns)
            if has_work:
                shortening, compacted = _shortening(plan, keep_updates)
                shorten_journal(folder, shortening, compacted, vfs)
            give_back(folder, vfs, is_sparse=has_work)
        left_bytes = _journal_bytes(folder)
    finally:
        lock.release()
    counts, sizes = Counter(item.kind for item in plan.records), Counter[str]()
    for item in plan.records:
        sizes[item.kind] += item.size_bytes
    records = {kind: (counts[kind], sizes[kind]) for kind in sorted(counts)}
    return Compacted(
        plan.newest, plan.update, plan.held_by, records, len(plan.turns), sum(plan.turns.values()), before, left_bytes
    )


def describe(found: Compacted, *, is_dry_run: bool) -> str:
    """What was dropped, in lines."""
    parts = [f"{count} {kind}s of {size(size_bytes)}" for kind, (count, size_bytes) in found.records.items()]
    parts += [f"the tokens of {found.turns} turns, {size(found.turn_bytes)}"] if found.turns else []
    verb = "would be dropped" if is_dry_run else "dropped"
    lines = [f"{found.newest} updates; groups up to update {found.update}: {', '.join(parts) or 'nothing'} {verb}"]
    lines += [f"groups of later updates stay: {found.held_by}"] if found.held_by else []
    if not is_dry_run:
        lines.append(f"journal: {size(found.size_bytes)} before, {size(found.left_bytes)} now")
    return "\n".join(lines)


class _Groups:
    """When groups of training were done with."""

    def __init__(self) -> None:
        self._planned: dict[GroupId, int] = {}
        self._rejected: dict[GroupId, int] = {}
        self._commits: dict[int, int] = {}

    def observe(self, event: Event) -> None:
        match event.payload:
            case BatchPlanned(update=update, groups=groups, replayed=replayed):
                self._planned.update(dict.fromkeys((*groups, *(item.group for item in replayed)), update))
            case GroupRejected():
                self._rejected[GroupId.parse(event.key)] = event.seq
            case WeightsCommitted(policy=policy):
                self._commits[policy.version] = event.seq
            case _:
                pass

    def settled(self, past: RunPast, update: int) -> set[GroupId]:
        """Those that trained last in the update or before, or were rejected before its version, and cannot train again."""
        end_seq = self._commits.get(update, 0) if update else 0
        found = {group for group, last in self._planned.items() if last <= update}
        found |= {group for group, seq in self._rejected.items() if seq < end_seq}
        return found - {group.id for group in (*past.groups.values(), *past.trained.values())}


class _Settled:
    """Everything that settled groups have, and what others have in common with it.

    Args:
        groups: the settled ones.

    Attributes:
        turns: events of their turns, with the bytes that each loses.
        rows: of their rows, those that nothing else names.
    """

    def __init__(self, groups: set[GroupId]) -> None:
        self._groups = groups
        self._going: set[Address] = set()
        self._staying: set[Address] = set()
        self.turns: dict[int, int] = {}
        self.rows: dict[Address, DroppedRecord] = {}

    def observe(self, event: Event) -> None:
        """The next event."""
        match event.payload:
            case TurnGenerated(episode=episode, segments=segments) if segments and self._is_settled(episode):
                self.turns[event.seq] = len(canonical_bytes(event)) - len(canonical_bytes(shorten(event)))
            case TranscriptSealed(transcript=address) if self._is_settled(EpisodeId.parse(event.key)):
                self._going.add(address)
            case ActionCommitted(action_id=action_id, receipt=address):
                (self._going if self._is_settled(action_id.episode) else self._staying).add(address)
            case _:
                pass

    def look(self, reader: JournalReader) -> None:
        """Looks at every row that may go, once all events were observed. Raises IntegrityError when one is damaged."""
        sizes: dict[Address, tuple[str, int]] = {}
        for stored in reader.stored_rows():
            address = Address(stored.address)
            if stored.kind in _KINDS:
                check_address(address, stored.data, f"{stored.kind} (nothing was dropped; see `headrace repair`)")
            if stored.kind == "transcript":
                self._transcript(address, stored.data)
            elif stored.kind in _KINDS:
                sizes[address] = stored.kind, len(stored.data)
        going = self._going - self._staying
        self.rows |= {address: DroppedRecord(address, *sizes[address]) for address in going & sizes.keys()}

    def _transcript(self, address: Address, data: bytes) -> None:
        transcript = msgspec.msgpack.decode(data, type=Transcript)
        names = {named for role, named in named_by_row(transcript) if role != "task"}
        if address in self._going:
            self.rows[address] = DroppedRecord(address, "transcript", len(data), outline_of(transcript))
            self._going |= names
        else:
            self._staying |= names

    def _is_settled(self, episode: EpisodeId) -> bool:
        return episode.group in self._groups


def _plan(reader: JournalReader, folder: Path, keep_updates: int) -> _Plan:
    fold, groups = RunFold(run_config(reader, folder).algorithm.replay.kind != "none"), _Groups()
    for event in reader.events():
        fold.observe(event)
        groups.observe(event)
    past = fold.past
    if past.started is None:
        raise StoreError("the journal holds no start of a run, so nobody can tell what it needs")
    keep_last = read_record(reader.read, past.started.config, Config).checkpoint.keep_last
    update, held_by = _last_update(past, keep_last, FileBlobs(folder / BLOBS), keep_updates)
    found = _Settled(groups.settled(past, update))
    for event in reader.events():
        found.observe(event)
    found.look(reader)
    records = tuple(sorted(found.rows.values(), key=lambda item: item.address))
    return _Plan(past.version, update, held_by, records, found.turns)


def _last_update(past: RunPast, keep_last: int, blobs: FileBlobs, keep_updates: int) -> tuple[int, str]:
    """The last update whose groups may go, and what holds back later ones.

    A resumed run loads one of the newest checkpoints and computes the plans after it, so what these train on stays.
    """
    asked = max(0, past.version - keep_updates)
    newest = [item.manifest for item in past.checkpoints][-keep_last:]
    sound = [manifest.version for manifest in newest if _is_loadable(blobs, manifest)]
    if not sound:
        return 0, "" if not asked else "no checkpoint verifies, so a resumed run would compute every plan again"
    held_by = f"a resumed run may load the checkpoint of update {sound[0]} and compute the plans after it again"
    return min(asked, sound[0]), held_by if sound[0] < asked else ""


def _is_loadable(blobs: FileBlobs, manifest: Manifest) -> bool:
    """Whether every file verifies; a simulated run has checkpoints in name only."""
    if not blobs.root.is_dir():
        return True
    try:
        for address in manifest.blobs:
            blobs.verify(address)
    except (KeyError, IntegrityError, OSError):
        return False
    return True


def _shortening(plan: _Plan, keep_updates: int) -> tuple[Shortening, RunCompacted]:
    parts = [plan.records[start : start + _LISTED] for start in range(0, len(plan.records), _LISTED)]
    lists = tuple(Row("compaction", canonical_bytes(DropList(part))) for part in parts)
    compacted = RunCompacted(
        wall_clock=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        update=plan.update,
        keep_updates=keep_updates,
        lists=tuple(row.address for row in lists),
        records=dict(sorted(Counter(item.kind for item in plan.records).items())),
        record_bytes=sum(item.size_bytes for item in plan.records),
        turns=len(plan.turns),
        turn_bytes=sum(plan.turns.values()),
        head="",
    )
    return Shortening([item.address for item in plan.records], lists, plan.turns.keys()), compacted


def _journal_bytes(folder: Path) -> int:
    files = (folder / f"{JOURNAL}{suffix}" for suffix in ("", "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())
