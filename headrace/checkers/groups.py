"""C8, groups: a closed group has the size it was admitted with, members distinct and in order, each a sealed attempt of it.

Rows of a plan are members of closed groups: none is trained before its whole group has reached its last state.
"""

from headrace.checkers.law import Bounds, Violation
from headrace.records.batch import BatchPlan, BatchPlanned, BatchRow, GroupAdmitted, GroupClosed, MemberResult
from headrace.records.checkpoint import RecordQuarantined
from headrace.records.events import Event
from headrace.records.ids import Address, EpisodeId, GroupId, Purpose
from headrace.records.provenance import Read, read_record
from headrace.records.trajectory import TranscriptSealed


class GroupShape:
    """Checks C8.

    Args:
        bounds: size of a training group.
        read: looks up batch plans.
    """

    def __init__(self, bounds: Bounds, read: Read | None = None) -> None:
        self._bounds = bounds
        self._read = read
        self._sizes: dict[GroupId, int] = {}
        self._sealed: dict[EpisodeId, Address] = {}
        self._closed: dict[GroupId, tuple[MemberResult, ...]] = {}

    def observe(self, event: Event) -> list[Violation]:
        match event.payload:
            case GroupAdmitted(size=size):
                problems = self._admit(GroupId.parse(event.key), size)
            case TranscriptSealed(transcript=transcript):
                self._sealed[EpisodeId.parse(event.key)] = transcript
                return []
            case GroupClosed(members=members):
                problems = self._close(GroupId.parse(event.key), members)
            case RecordQuarantined(episode=EpisodeId() as episode):
                self._reopen(episode.group)
                return []
            case BatchPlanned(plan=plan) if self._read is not None:
                rows = read_record(self._read, plan, BatchPlan).rows
                problems = [problem for row in rows for problem in self._row(row)]
            case _:
                return []
        return [Violation("C8", event.seq, problem) for problem in problems]

    def _admit(self, group: GroupId, size: int) -> list[str]:
        self._sizes[group] = size
        expected = self._bounds.group_size
        if expected is not None and size != expected:
            return [f"{group} is admitted with {size} members; the configured size is {expected}"]
        return []

    def _close(self, group: GroupId, members: tuple[MemberResult, ...]) -> list[str]:
        problems: list[str] = []
        if group in self._closed:
            problems.append(f"{group} is closed a second time")
        self._closed[group] = members
        size = self._sizes.get(group)
        if size is None and group.purpose == Purpose.TRAIN.value:
            problems.append(f"{group} is closed but was never admitted")
        numbers = [member.episode.member for member in members]
        if numbers != list(range(len(members) if size is None else size)):
            problems.append(f"{group} closes with members {numbers}; {size} were admitted, each counts once, in order")
        for member in members:
            if member.episode.group != group:
                problems.append(f"{group} closes with {member.episode}, a stranger")
            if member.transcript is not None and self._sealed.get(member.episode) != member.transcript:
                problems.append(
                    f"{member.episode} closes with transcript {member.transcript}, which was not sealed as its own"
                )
        for member in range(len(members)):
            for attempt in range(members[member].episode.attempt + 1):
                self._sealed.pop(EpisodeId(group, members[member].episode.member, attempt), None)
        return problems

    def _reopen(self, group: GroupId) -> None:
        """A member of the group became void: it may close again, and nothing of it is planned before it does."""
        for member in self._closed.pop(group, ()):
            if member.transcript is not None:
                self._sealed[member.episode] = member.transcript

    def _row(self, row: BatchRow) -> list[str]:
        members = self._closed.get(row.group)
        if members is None:
            return [f"{row.group}.{row.member} is planned before its group closed"]
        if not any(item.episode.member == row.member and item.transcript == row.transcript for item in members):
            return [
                f"{row.group}.{row.member} is planned with transcript {row.transcript}, which its group did not close with"
            ]
        return []
