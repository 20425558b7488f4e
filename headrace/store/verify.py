"""Proves a run's stored bytes, or says what is wrong and where.

Checked, from the outside in: SQLite's own structure; the sequence and its hash chain; every column against the event it
repeats; every event and row against its struct, its canonical form and its address; alignment, versions and verdicts;
that whatever an event names exists; every blob against its address; and the laws of `headrace.checkers`.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.checkers import Bounds, LawChecker, Violation, bounds_of
from headrace.config import Config
from headrace.errors import HeadraceError, IntegrityError
from headrace.records.checkpoint import RecordQuarantined
from headrace.records.events import Event, kind_of
from headrace.records.ids import Address
from headrace.records.observation import ActionObserved
from headrace.records.provenance import address_of, canonical_bytes, check_address
from headrace.records.run import RunStarted
from headrace.records.trajectory import Transcript
from headrace.records.verdict import Verdict
from headrace.store.blobs import FileBlobs
from headrace.store.group_commit import GENESIS, chain
from headrace.store.kept import KeptWeights, ranges
from headrace.store.reader import JournalReader, StoredEvent, StoredRow, decode_event, open_reader
from headrace.store.references import decode_row, named_by_event, named_by_row

BLOBS_NAME = "blobs"
"""Name of the blob folder within a run's folder."""

_MAX_PROBLEMS = 1_000
_NOT_CANONICAL = (
    "its bytes are not the canonical ones of what they decode to; if every hash holds, another version of Headrace wrote "
    "them: verify with that one"
)


class Problem(msgspec.Struct, frozen=True):
    """Something is not as it must be.

    Attributes:
        where: event, row, blob or law.
        message: what is wrong.
    """

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class VerifyReport(msgspec.Struct, frozen=True):
    """What verification found.

    Attributes:
        problems: empty when the run is sound; cut after a thousand.
        counts: what was looked at: `events`, `rows`, `rows.transcript`, `blobs`, `laws`, …; `quarantined` counts addresses
            that are named and were set aside by a repair, `dropped` those that a compaction dropped.
        head: hash chain over all stored events.
        absent: committed versions whose weights are not there, by why that is no problem: `retention` or `repair`.
    """

    problems: tuple[Problem, ...]
    counts: dict[str, int]
    head: str
    absent: dict[str, tuple[int, ...]]

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_run(folder: Path) -> VerifyReport:
    """What is wrong with the run in the folder. Reads everything once, and writes nothing.

    Raises:
        StoreError: when there is no journal to verify.
    """
    with open_reader(folder) as reader:
        verification = _Verification(folder, reader)
        verification.run(reader)
        return verification.report()


class _Verification:
    def __init__(self, folder: Path, reader: JournalReader) -> None:
        self._blobs = FileBlobs(folder / BLOBS_NAME)
        self._problems: list[Problem] = []
        self._counts: Counter[str] = Counter()
        self._head = GENESIS
        self._seq = 0
        self._named: dict[Address, str] = {}
        self._outputs: dict[str, Address] = {}
        self._config: Address | None = None
        self._lost: set[Address] = set()
        self._kept = KeptWeights(reader.read)
        self._absent: dict[str, tuple[int, ...]] = {}

    def run(self, reader: JournalReader) -> None:
        for line in reader.damage():
            self._object("database", line)
        self._attempt("events", lambda: self._events(reader))
        self._attempt("rows", lambda: self._rows(reader))
        self._attempt("names", lambda: self._names(reader))
        self._attempt("blobs", self._files)
        self._attempt("laws", lambda: self._laws(reader))

    def report(self) -> VerifyReport:
        counts = dict(sorted(self._counts.items()))
        return VerifyReport(tuple(self._problems), counts, self._head.hex(), self._absent)

    def _object(self, where: str, message: str) -> None:
        if len(self._problems) < _MAX_PROBLEMS:
            self._problems.append(Problem(where, message))

    def _attempt(self, where: str, stage: Callable[[], None]) -> None:
        """Runs a stage; a database too damaged to walk is a problem of its own, and the next stage still runs."""
        try:
            stage()
        except HeadraceError as error:
            self._object(where, str(error))

    def _events(self, reader: JournalReader) -> None:
        for stored in reader.stored_events():
            where = f"event {stored.seq}"
            self._counts["events"] += 1
            if stored.seq != self._seq + 1:
                self._object(where, f"follows event {self._seq}; the sequence has a gap")
            self._seq = stored.seq
            self._head = self._chain(stored, where)
            try:
                event = decode_event(stored, "the journal")
            except IntegrityError as error:
                self._object(where, str(error))
                continue
            self._columns(stored, event, where)
            self._collect(event)

    def _chain(self, stored: StoredEvent, where: str) -> bytes:
        """The stored head, so that one flipped bit is one problem and not one for every event after it."""
        if chain(self._head, stored.data) != stored.head:
            self._object(
                where, f"{stored.kind} {stored.key!r}: its bytes and the hash chain disagree; one of them is damaged"
            )
        return stored.head

    def _columns(self, stored: StoredEvent, event: Event, where: str) -> None:
        encoded = StoredEvent.of(event, stored.data, stored.head)
        for name, column, value in zip(StoredEvent._fields, stored, encoded, strict=True):
            if column != value:
                self._object(where, f"column {name} is {column!r}, the event says {value!r}")
        if canonical_bytes(event) != stored.data:
            self._object(where, _NOT_CANONICAL)

    def _collect(self, event: Event) -> None:
        """Notes what the event names, to be looked up once the rows are known."""
        payload = event.payload
        self._kept.observe(event)
        self._counts[f"events.{kind_of(payload)}"] += 1
        if isinstance(payload, RunStarted):
            self._config = payload.config
        if isinstance(payload, RecordQuarantined):
            self._lost.add(payload.address)
        if isinstance(payload, ActionObserved):
            self._outputs[str(payload.action_id)] = payload.output
        for role, address in named_by_event(event):
            self._named.setdefault(address, f"event {event.seq}, {role}")

    def _rows(self, reader: JournalReader) -> None:
        for row in reader.stored_rows():
            where = f"row {row.address} ({row.kind})"
            self._counts["rows"] += 1
            self._counts[f"rows.{row.kind}"] += 1
            try:
                check_address(Address(row.address), row.data, "stored bytes")
                self._record(row, where)
            except HeadraceError as error:
                self._object(where, str(error))

    def _record(self, row: StoredRow, where: str) -> None:
        try:
            record = decode_row(row.kind, row.data)
        except ValueError as error:
            self._object(where, str(error))
            return
        if canonical_bytes(record) != row.data:
            self._object(where, _NOT_CANONICAL)
        if isinstance(record, Transcript):
            record.check()
            self._outputs_agree(record, where)
        elif isinstance(record, Verdict):
            record.check()
        for role, address in named_by_row(record):
            self._named.setdefault(address, f"{where}, {role}")

    def _outputs_agree(self, transcript: Transcript, where: str) -> None:
        for outcome in transcript.actions:
            shown = self._outputs.get(str(outcome.action.id))
            if shown is not None and shown != address_of(outcome.output):
                self._object(where, f"action {outcome.action.id}: the output sealed is not the output observed")

    def _names(self, reader: JournalReader) -> None:
        drops = reader.drops()
        for address, namer in self._named.items():
            if reader.has_row(address) or self._has_blob(address):
                continue
            if address in drops:
                self._counts["dropped"] += 1
            elif address in self._lost:
                self._counts["quarantined"] += 1
            else:
                self._object(namer, f"names {address}, which is neither a row nor a blob")

    def _files(self) -> None:
        """Every blob against its name, and every version's weights against the retention rule."""
        damaged: set[Address] = set()
        for address in self._blobs.addresses():
            self._counts["blobs"] += 1
            try:
                self._counts["blob_bytes"] += self._blobs.verify(address)
            except (IntegrityError, OSError) as error:
                damaged.add(address)
                self._object(f"blob {address}", str(error))
        if not self._blobs.root.is_dir():
            return  # a simulated run has weights in name only
        committed, let_go = self._kept.committed, self._kept.let_go()
        absent = {version for version, weights in committed.items() if not self._has_blob(weights)}
        aside = {version for version in absent if committed[version] in self._lost}
        by_cause = {"retention": absent & let_go - aside, "repair": aside}
        self._absent = {cause: tuple(sorted(versions)) for cause, versions in by_cause.items() if versions}
        if missing := absent - let_go - aside:
            self._object(
                f"weights of versions {ranges(missing)}",
                f"not in {self._blobs.root}, although retention keeps them and the newest version is {max(committed)}; "
                "`headrace repair` records the loss, and the run goes on from what is left",
            )

    def _has_blob(self, address: Address) -> bool:
        try:
            self._blobs.path(address)
        except KeyError:
            return False
        except IntegrityError:
            return True  # named where files are looked at
        return True

    def _laws(self, reader: JournalReader) -> None:
        checker = LawChecker(self._bounds(reader), reader.read, self._lost)
        for stored in reader.stored_events():
            try:
                violations = checker.observe(decode_event(stored, "the journal"))
            except (KeyError, ValueError, IntegrityError) as error:
                self._object(f"event {stored.seq}", f"its laws cannot be checked: {error}")
                continue
            for violation in violations:
                self._object(_place(violation), violation.message)
        self._counts["laws"] = len(checker.laws)

    def _bounds(self, reader: JournalReader) -> Bounds:
        """The bounds that the run was configured with; the laws without bounds when the configuration is unreadable."""
        if self._config is None:
            return Bounds()
        try:
            config = msgspec.msgpack.decode(reader.read(self._config), type=Config)
        except (KeyError, IntegrityError, msgspec.DecodeError):
            return Bounds()  # already reported, by the stage that looked at the row
        return bounds_of(config)


def _place(violation: Violation) -> str:
    return f"law {violation.law}, event {violation.seq}"
