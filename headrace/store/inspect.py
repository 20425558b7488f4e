"""Everything known of one episode, read from the journal alone; rendering it to text or a page is the reader's business.

Invariant: nothing is inferred. What the journal does not hold is None or empty, and every record was checked against its
address on the way.
"""

from typing import TypeVar

import msgspec

from headrace.records.action import Action, ActionCommitted, ActionIntended
from headrace.records.batch import BatchPlan, BatchPlanned, BatchRow, GroupClosed, GroupRejected, MemberResult
from headrace.records.execution import EpisodeClaimed
from headrace.records.ids import ActionId, Address, EpisodeId, LeaseToken
from headrace.records.observation import ActionObserved
from headrace.records.provenance import read_record
from headrace.records.segment import TurnGenerated
from headrace.records.task import Task
from headrace.records.trajectory import EpisodeStarted, SideRecord, Transcript, TranscriptSealed
from headrace.records.verdict import Verdict, VerdictDisputed, VerdictSealed
from headrace.store.reader import JournalReader

T = TypeVar("T")


class CallView(msgspec.Struct, frozen=True):
    """One tool call as the journal saw it.

    Attributes:
        action: the validated call.
        token: lease under which it ran.
        intended_seq: its INTENT.
        committed_seq: its COMMIT; None when the outcome is unknown.
        receipt: digest of the receipt, if committed.
        observed_seq: its OBSERVED; None when the policy never saw the result.
        observation: what was shown, if observed.
    """

    action: Action
    token: LeaseToken
    intended_seq: int
    committed_seq: int | None
    receipt: Address | None
    observed_seq: int | None
    observation: ActionObserved | None


class TurnView(msgspec.Struct, frozen=True):
    """One policy turn with the calls that it led to.

    Attributes:
        seq: its event.
        t_ns: when it was complete.
        turn: what was sampled, by which versions, and how long it took.
        calls: in the order written.
    """

    seq: int
    t_ns: int
    turn: TurnGenerated
    calls: tuple[CallView, ...]


class VerdictView(msgspec.Struct, frozen=True):
    """One verdict with its evidence or cause.

    Attributes:
        seq: its event.
        address: of the verdict.
        try_number: how many gradings there were before.
        verdict: the record.
    """

    seq: int
    address: Address
    try_number: int
    verdict: Verdict


class TrainingUse(msgspec.Struct, frozen=True):
    """One row of a durable batch plan that trains on the episode.

    Attributes:
        seq: the plan's event.
        update: number of the update.
        base_version: version that the gradient is taken at.
        row: reward, advantage, weight and use.
    """

    seq: int
    update: int
    base_version: int
    row: BatchRow


class EpisodeView(msgspec.Struct, frozen=True):
    """One episode attempt, as far as it went.

    Attributes:
        episode: who.
        task: what was asked.
        pin_version: the version it had to use throughout, if any.
        started_ns: when it began.
        claims: fencing tokens of its owners, in order.
        turns: policy turns with their calls.
        sealed_seq: the sealing event; None while the episode is open.
        sealed_ns: when it was sealed.
        terminal: label of the terminal state.
        transcript_address: of the sealed transcript.
        transcript: the sealed sequence: what each token's origin is, and hence what is masked.
        side: times and metering.
        verdicts: in order; the first scored one counts.
        disputes: different verdicts that came later and do not count.
        member: its place in the closed group with its reward, if it is the attempt that counts.
        rejection: why the group left without training, if it did.
        uses: rows of batch plans.
    """

    episode: EpisodeId
    task: Task | None
    pin_version: int | None
    started_ns: int | None
    claims: tuple[LeaseToken, ...]
    turns: tuple[TurnView, ...]
    sealed_seq: int | None
    sealed_ns: int | None
    terminal: str | None
    transcript_address: Address | None
    transcript: Transcript | None
    side: SideRecord | None
    verdicts: tuple[VerdictView, ...]
    disputes: tuple[VerdictDisputed, ...]
    member: MemberResult | None
    rejection: GroupRejected | None
    uses: tuple[TrainingUse, ...]


def inspect_episode(reader: JournalReader, episode: EpisodeId) -> EpisodeView:
    """All that the journal holds of the episode.

    Raises:
        RecordDropped: when a compaction dropped its transcript.
        KeyError: when the journal has no event of it.
        IntegrityError: when a record is damaged.
    """
    key = str(episode)
    starts = reader.events_about(_tag(EpisodeStarted), key)
    claims = reader.events_about(_tag(EpisodeClaimed), key)
    sealings = reader.events_about(_tag(TranscriptSealed), key)
    if not (starts or claims or sealings):
        raise KeyError(f"no event of episode {episode}; an episode is named like train.12.3.0")
    start = starts[0].payload if starts else None
    sealed = sealings[0].payload if sealings else None
    started = start if isinstance(start, EpisodeStarted) else None
    sealing = sealed if isinstance(sealed, TranscriptSealed) else None
    member, rejection = _fate_of_group(reader, episode)
    task = started.task if started else sealing.task if sealing else None
    return EpisodeView(
        episode=episode,
        task=None if task is None else read_record(reader.read, task, Task),
        pin_version=started.pin_version if started else None,
        started_ns=starts[0].t_ns if starts else None,
        claims=tuple(event.payload.token for event in claims if isinstance(event.payload, EpisodeClaimed)),
        turns=_turns(reader, key),
        sealed_seq=sealings[0].seq if sealing else None,
        sealed_ns=sealings[0].t_ns if sealing else None,
        terminal=sealing.terminal if sealing else None,
        transcript_address=sealing.transcript if sealing else None,
        transcript=read_record(reader.read, sealing.transcript, Transcript) if sealing else None,
        side=read_record(reader.read, sealing.side, SideRecord) if sealing else None,
        verdicts=_verdicts(reader, sealing.transcript) if sealing else (),
        disputes=_disputes(reader, sealing.transcript, sealings[0].seq) if sealing else (),
        member=member,
        rejection=rejection,
        uses=_uses(reader, episode, sealing.transcript) if sealing else (),
    )


def _turns(reader: JournalReader, key: str) -> tuple[TurnView, ...]:
    calls = _calls(reader, key)
    turns: list[TurnView] = []
    for event in reader.events_about(_tag(TurnGenerated), key):
        if isinstance(event.payload, TurnGenerated):
            of_step = sorted(
                (call for call in calls if call.action.id.step == event.payload.step), key=lambda call: call.action.id
            )
            turns.append(TurnView(event.seq, event.t_ns, event.payload, tuple(of_step)))
    return tuple(turns)


def _calls(reader: JournalReader, key: str) -> list[CallView]:
    commits: dict[ActionId, tuple[int, Address]] = {}
    observations: dict[ActionId, tuple[int, ActionObserved]] = {}
    for event in reader.events_about(_tag(ActionCommitted), key):
        if isinstance(event.payload, ActionCommitted):
            commits[event.payload.action_id] = (event.seq, event.payload.receipt)
    for event in reader.events_about(_tag(ActionObserved), key):
        if isinstance(event.payload, ActionObserved):
            observations[event.payload.action_id] = (event.seq, event.payload)
    calls: list[CallView] = []
    for event in reader.events_about(_tag(ActionIntended), key):
        if isinstance(event.payload, ActionIntended):
            action = event.payload.action
            commit_seq, receipt = commits.get(action.id, (None, None))
            observed_seq, observed = observations.get(action.id, (None, None))
            calls.append(CallView(action, event.payload.token, event.seq, commit_seq, receipt, observed_seq, observed))
    return calls


def _verdicts(reader: JournalReader, transcript: Address) -> tuple[VerdictView, ...]:
    found: list[VerdictView] = []
    for event in reader.events_of_kind(_tag(VerdictSealed)):
        sealed = event.payload
        if isinstance(sealed, VerdictSealed) and sealed.transcript == transcript:
            verdict = read_record(reader.read, sealed.verdict, Verdict)
            found.append(VerdictView(event.seq, sealed.verdict, sealed.try_number, verdict))
    return tuple(found)


def _disputes(reader: JournalReader, transcript: Address, after: int) -> tuple[VerdictDisputed, ...]:
    found = (event.payload for event in reader.events_of_kind(_tag(VerdictDisputed), after, is_once=False))
    return tuple(item for item in found if isinstance(item, VerdictDisputed) and item.transcript == transcript)


def _fate_of_group(reader: JournalReader, episode: EpisodeId) -> tuple[MemberResult | None, GroupRejected | None]:
    key = str(episode.group)
    member: MemberResult | None = None
    rejection: GroupRejected | None = None
    for event in reader.events_about(_tag(GroupClosed), key):
        if isinstance(event.payload, GroupClosed):
            member = next((result for result in event.payload.members if result.episode == episode), None)
    for event in reader.events_about(_tag(GroupRejected), key):
        if isinstance(event.payload, GroupRejected):
            rejection = event.payload
    return member, rejection


def _uses(reader: JournalReader, episode: EpisodeId, transcript: Address) -> tuple[TrainingUse, ...]:
    uses: list[TrainingUse] = []
    for event in reader.events_of_kind(_tag(BatchPlanned)):
        planned = event.payload
        if not isinstance(planned, BatchPlanned) or episode.group not in planned.groups:
            continue
        plan = read_record(reader.read, planned.plan, BatchPlan)
        uses += [
            TrainingUse(event.seq, plan.update, plan.base_version, row)
            for row in plan.rows
            if row.transcript == transcript
        ]
    return tuple(uses)


def _tag(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)
