"""`headrace repair`: what is damaged is set aside, and the run can go on.

Invariant: before the new journal takes the place of the old one nothing of the run has changed, and the old one is kept, so
a crash at any point leaves the one or the other. Nothing is deleted: what is set aside lies in `quarantine/`.
"""

import asyncio
import dataclasses
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec

from headrace.control.repairing import Assessment, Loss, LossAssessor
from headrace.errors import IntegrityError, StoreError
from headrace.records.batch import BatchPlan
from headrace.records.checkpoint import Manifest
from headrace.records.compaction import DropList
from headrace.records.ids import Address
from headrace.runtime.folders import BLOBS
from headrace.store.blobs import FileBlobs
from headrace.store.disk import Disk
from headrace.store.group_commit import InlineCommit
from headrace.store.kept import KeptWeights
from headrace.store.reader import JournalReader, StoredLate, open_reader
from headrace.store.rebuild import STAGING, fold_old_log, take_place, write_journal
from headrace.store.salvage import Break, Finding, SalvagedEvents, SalvagedRows, salvaged_late
from headrace.store.sqlite import SqliteJournal, WriterLock

QUARANTINE = "quarantine"
"""Name of the folder within a run's folder that holds what was set aside."""


class RepairReport(msgspec.Struct, frozen=True):
    """What was wrong with a run and what was done.

    Attributes:
        run: its folder.
        findings: everything that was rebuilt, set aside, or cannot be helped.
        again: attempts whose members roll again.
        abandoned: groups that cannot be finished.
        cut_after: last event of a truncation, done or necessary; None when there is none.
        cut_reason: why.
        cut_events: events that it loses, by kind.
        obstacles: why the run cannot go on all the same.
        quarantine: where the old journal and damaged files lie; None when nothing was written.
    """

    run: str
    findings: tuple[Finding, ...]
    again: tuple[str, ...] = ()
    abandoned: tuple[str, ...] = ()
    cut_after: int | None = None
    cut_reason: str = ""
    cut_events: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    obstacles: tuple[str, ...] = ()
    quarantine: str | None = None

    @property
    def has_damage(self) -> bool:
        """Whether anything was found."""
        return bool(self.findings or self.obstacles) or self.cut_after is not None


@dataclasses.dataclass(frozen=True)
class _Diagnosis:
    """What a look at everything found.

    Attributes:
        findings: in order.
        assessment: what it means for the run.
        cut: last event to keep; None keeps all.
        lost_events: by kind, behind the cut.
        reason: of the cut.
        damaged_blobs: files to set aside.
        losses: by address.
        late: counts of what was refused to writers that were taken over.
        epoch: highest that any writer had.
    """

    findings: tuple[Finding, ...]
    assessment: Assessment
    cut: int | None
    lost_events: dict[str, int]
    reason: str
    damaged_blobs: dict[Address, str]
    losses: dict[Address, Loss]
    late: list[StoredLate]
    epoch: int


def repair_run(folder: Path, *, is_dry_run: bool = False, may_truncate: bool = False) -> RepairReport:
    """What was wrong with the run in the folder, which is repaired now unless it is a dry run or a cut is not allowed.

    Raises:
        StoreError: when another process writes the run, or the file is no journal at all.
    """
    lock = WriterLock(folder)
    try:
        with open_reader(folder) as reader:
            found = _diagnose(reader, folder, may_truncate=may_truncate)
            report = _report(folder, found)
            is_blocked = found.cut is not None and not may_truncate
            if is_dry_run or is_blocked or not report.has_damage:
                return report
            quarantine = _new_quarantine(folder)
            report = msgspec.structs.replace(report, quarantine=str(quarantine))
            _keep_report(quarantine, report)
            _write(reader, folder, found)
        _append(folder, found.assessment)
        fold_old_log(folder)
        for address in found.damaged_blobs:
            _set_aside(folder, quarantine, address)
        take_place(folder, quarantine)
    finally:
        lock.release()
    return report


def _diagnose(reader: JournalReader, folder: Path, *, may_truncate: bool) -> _Diagnosis:
    """Looks at everything, and again at less of it for each truncation that is necessary."""
    blobs = _BlobState(folder)
    until, reason = None, ""
    while True:
        events = SalvagedEvents(reader, until)
        assessor, kept = LossAssessor(), KeptWeights(reader.read)
        epoch = 0
        for event, _ in events:
            assessor.observe(event)
            kept.observe(event)
            epoch = max(epoch, event.epoch)
        rows = SalvagedRows(reader, events.named)
        plans: dict[Address, BatchPlan] = {}
        dropped: set[Address] = set()
        for row, _ in rows:
            if row.kind == "plan":
                plans[Address(row.address)] = msgspec.msgpack.decode(row.data, type=BatchPlan)
            elif row.kind == "compaction":
                dropped.update(item.address for item in msgspec.msgpack.decode(row.data, type=DropList).records)
        losses = {
            address: loss for address, loss in _losses(assessor, rows, blobs, kept).items() if address not in dropped
        }
        assessment = assessor.assess(losses, plans.__getitem__, blobs.is_loadable, dropped)
        cut = _earlier(events.break_, assessment)
        if cut is None or not may_truncate:
            break
        until, why = cut
        reason = reason or why
    if cut is not None:
        until, reason = cut
    late, unread = salvaged_late(reader)
    found = (*events.findings, *rows.findings, *_missing(losses, rows), *blobs.findings(), *unread, *_index(reader))
    lost = {} if until is None else reader.count_kinds(until)
    epoch = max(epoch, reader.writer_epoch())
    return _Diagnosis(found, assessment, until, lost, reason, blobs.damaged, losses, late, epoch)


def _earlier(broken: Break | None, assessment: Assessment) -> tuple[int, str] | None:
    """The last event to keep and why; a broken chain first, since what follows it was not looked at."""
    if broken is not None:
        return broken.good_seq, broken.wrong
    return None if assessment.cut_seq is None else (assessment.cut_seq, assessment.cut_reason)


class _BlobState:
    """Files by address: which are there, and which are damaged."""

    def __init__(self, folder: Path) -> None:
        self._blobs = FileBlobs(folder / BLOBS)
        self._is_stored = (folder / BLOBS).is_dir()
        self.damaged: dict[Address, str] = {}
        self._intact: set[Address] = set()
        for address in self._blobs.addresses():
            try:
                self._blobs.verify(address)
                self._intact.add(address)
            except (IntegrityError, OSError) as error:
                self.damaged[address] = str(error)

    def has(self, address: Address) -> bool:
        return address in self._intact

    def is_lost(self, address: Address) -> bool:
        """Whether it is not there although the run keeps files; a simulated one has weights in name only."""
        return self._is_stored and address not in self._intact

    def is_loadable(self, manifest: Manifest) -> bool:
        return not any(self.is_lost(address) for address in manifest.blobs)

    def findings(self) -> list[Finding]:
        return [Finding(f"blob {address}", wrong, "quarantined") for address, wrong in self.damaged.items()]


def _losses(assessor: LossAssessor, rows: SalvagedRows, blobs: _BlobState, kept: KeptWeights) -> dict[Address, Loss]:
    past = assessor.past
    losses = {
        address: Loss(kind, rows.broken.get(address, "is missing"), rows.parents.get(address))
        for address, kind in rows.named.items()
        if address not in rows.found and not blobs.has(address) and address not in past.lost
    }
    for address, wrong in blobs.damaged.items():
        losses[address] = Loss("blob", wrong, rows.parents.get(address))
    let_go = kept.let_go()
    for version, weights in kept.committed.items():
        if version not in let_go and blobs.is_lost(weights) and weights not in past.lost:
            losses.setdefault(weights, Loss("blob", "is missing"))
    return losses


def _missing(losses: Mapping[Address, Loss], rows: SalvagedRows) -> list[Finding]:
    return [
        Finding(f"{loss.record} {address}", "is missing", "quarantined")
        for address, loss in losses.items()
        if loss.reason == "is missing" and address not in rows.broken
    ]


def _index(reader: JournalReader) -> list[Finding]:
    """What SQLite itself objects to, which a new database does not have."""
    return [Finding("database", line, "rebuilt") for line in reader.damage()[:20]]


def _report(folder: Path, found: _Diagnosis) -> RepairReport:
    assessment = found.assessment
    again = sorted({str(item.episode) for item in assessment.quarantined if item.episode is not None})
    return RepairReport(
        run=str(folder),
        findings=found.findings,
        again=tuple(again),
        abandoned=tuple(str(group) for group, _ in assessment.rejected),
        cut_after=found.cut,
        cut_reason=found.reason,
        cut_events=found.lost_events,
        obstacles=assessment.obstacles,
    )


def _write(reader: JournalReader, folder: Path, found: _Diagnosis) -> None:
    """The new journal beside the old one: what is proven, in order."""
    events = SalvagedEvents(reader, found.cut)
    lost = found.losses.keys()
    write_journal(
        folder,
        (stored for _, stored in events),
        # A row that nothing names goes as well when it names what is lost: nobody could look there.
        lambda: (
            row
            for row, names in SalvagedRows(reader, events.named)
            if Address(row.address) in events.named or not any(address in lost for _, address in names)
        ),
        epoch=found.epoch,
        late=found.late,
    )


def _append(folder: Path, assessment: Assessment) -> None:
    """Says in the new journal what was quarantined and what follows from it."""

    async def work() -> None:
        journal = SqliteJournal(
            folder / STAGING, incarnation=f"repair-{os.getpid()}", runner=InlineCommit(), clock_s=lambda: 0.0
        )
        seq = 0
        for item in assessment.quarantined:
            seq = journal.append(item, key=f"{item.address}#{journal.epoch}")
        for group, rejection in assessment.rejected:
            seq = journal.append(rejection, key=str(group))
        await journal.durable(seq)
        await journal.close()

    if assessment.quarantined or assessment.rejected:
        asyncio.run(work())


def _new_quarantine(folder: Path) -> Path:
    """A new numbered folder, durable."""
    taken = {path.name for path in (folder / QUARANTINE).glob("[0-9]*")}
    place = next(folder / QUARANTINE / f"{n:03d}" for n in range(1, 1_000_000) if f"{n:03d}" not in taken)
    Disk().make_folder(place)
    return place


def _keep_report(quarantine: Path, report: RepairReport) -> None:
    data = msgspec.json.format(msgspec.json.encode(report), indent=2)
    disk = Disk()
    disk.write(quarantine / "report.json", data)
    disk.sync_folder(quarantine)


def _set_aside(folder: Path, quarantine: Path, address: Address) -> None:
    disk, place = Disk(), folder / BLOBS / address[:2] / address
    disk.make_folder(quarantine / BLOBS)
    try:
        disk.replace_durably(place, quarantine / BLOBS / address)
        disk.sync_folder(place.parent)
    except OSError as error:
        raise StoreError(f"{place} cannot be moved to {quarantine}: {error}") from error


def describe(report: RepairReport, *, is_dry_run: bool) -> tuple[str, int]:
    """(text, exit status): 0 when the run is sound or can go on, 1 when something stands in the way."""
    words = {"rebuilt": "REBUILT ", "quarantined": "ASIDE   "}
    lines = [f"run {report.run}"]
    lines += [f"{words.get(item.remedy, 'LEFT    ')} {item.where}: {item.wrong}" for item in report.findings]
    lines += [f"AGAIN    {episode} rolls again at the next resumption" for episode in report.again]
    lines += [f"GIVEN UP {group}: an effect outside must not happen twice" for group in report.abandoned]
    is_cut_open = report.cut_after is not None and report.quarantine is None
    if report.cut_after is not None:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.cut_events.items()) or "nothing that can be read"
        verb = "would keep" if is_cut_open else "kept"
        lines.append(f"{'CANNOT  ' if is_cut_open else 'CUT     '} {report.cut_reason}")
        lines.append(f"         truncation {verb} events 1 to {report.cut_after} and lose: {kinds}")
        if is_cut_open and not is_dry_run:
            lines.append("         nothing was written; --truncate does it and keeps the cut tail in quarantine")
    lines += [f"CANNOT   {obstacle}" for obstacle in report.obstacles]
    counts = Counter(item.remedy for item in report.findings)
    if not report.has_damage:
        lines.append("sound: nothing to repair")
    elif report.quarantine is None:
        lines.append(f"nothing was written: {counts['rebuilt']} to rebuild, {counts['quarantined']} to set aside")
    else:
        lines.append(f"repaired: {counts['rebuilt']} rebuilt, {counts['quarantined']} set aside in {report.quarantine}")
    return "\n".join(lines), int(bool(report.obstacles) or is_cut_open)
