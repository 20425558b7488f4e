"""One episode as text: turns, calls, observations, what is trained and what is masked, versions, verdict with evidence.

Invariant: policy and tool text is inert: no control character of it reaches the terminal. What the log does not hold is
said to be absent. The mask comes from each token's origin; sampled tokens are called trained only where a batch plan took
them.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from headrace.records.action import Action
from headrace.records.arrays import IntArray
from headrace.records.batch import BatchRow, GroupRejected, MemberResult
from headrace.records.ids import Address, EpisodeId, Purpose
from headrace.records.segment import Origin, TokenSegment
from headrace.records.task import Task
from headrace.records.trajectory import SideRecord, Transcript
from headrace.records.verdict import Scored, Verdict
from headrace.reporting.plaintext import inert, one_line
from headrace.reporting.quantities import ABSENT, duration, number, size

Decode = Callable[[IntArray], str]
"""Text of token ids, control tokens written out."""

_TOKENS_PER_LINE = 4


class CallLike(Protocol):
    """One tool call as the journal saw it."""

    @property
    def action(self) -> Action: ...
    @property
    def committed_seq(self) -> int | None: ...
    @property
    def observed_seq(self) -> int | None: ...


class TurnLike(Protocol):
    """One policy turn with its calls."""

    @property
    def calls(self) -> Sequence[CallLike]: ...


class VerdictLike(Protocol):
    """One verdict with its place in the order of tries."""

    @property
    def address(self) -> Address: ...
    @property
    def try_number(self) -> int: ...
    @property
    def verdict(self) -> Verdict: ...


class UseLike(Protocol):
    """One row of a batch plan."""

    @property
    def update(self) -> int: ...
    @property
    def base_version(self) -> int: ...
    @property
    def row(self) -> BatchRow: ...


class EpisodeLike(Protocol):
    """All that the log holds of one episode; what it does not is None or empty."""

    @property
    def episode(self) -> EpisodeId: ...
    @property
    def task(self) -> Task | None: ...
    @property
    def pin_version(self) -> int | None: ...
    @property
    def claims(self) -> Sequence[int]: ...
    @property
    def turns(self) -> Sequence[TurnLike]: ...
    @property
    def terminal(self) -> str | None: ...
    @property
    def transcript_address(self) -> Address | None: ...
    @property
    def transcript(self) -> Transcript | None: ...
    @property
    def side(self) -> SideRecord | None: ...
    @property
    def verdicts(self) -> Sequence[VerdictLike]: ...
    @property
    def disputes(self) -> Sequence[object]: ...
    @property
    def member(self) -> MemberResult | None: ...
    @property
    def rejection(self) -> GroupRejected | None: ...
    @property
    def uses(self) -> Sequence[UseLike]: ...


def show_episode(view: EpisodeLike, decode: Decode, *, has_logprobs: bool = False) -> str:
    """The episode as text.

    Args:
        view: what the log holds of it.
        decode: text of token ids.
        has_logprobs: whether each sampled token is listed with its log-probability.
    """
    lines = [f"episode {view.episode}  ({view.episode.purpose.value})", *_head(view), ""]
    if view.transcript is None:
        lines += ["not sealed: the episode is open or was given up", *_open_calls(view), ""]
    else:
        lines += [*_sequence(view, view.transcript, decode, has_logprobs=has_logprobs), ""]
    return "\n".join([*lines, *_ending(view), *_verdicts(view), *_training(view)]) + "\n"


def _head(view: EpisodeLike) -> Iterable[str]:
    task = view.task
    if task is not None:
        yield f"task       {one_line(task.family)}, difficulty {one_line(task.difficulty)}, {_short(task.address)}"
        yield from _block("question", task.question)
    if view.pin_version is not None:
        yield f"pinned     to version {view.pin_version}"
    if view.claims:
        tokens = ", ".join(str(token) for token in view.claims)
        yield f"claimed    {_times(len(view.claims))} by a worker, under lease token {tokens}"
    if view.transcript is None:
        return
    origin = view.transcript.provenance
    policies = ", ".join(f"{p.policy_id}@{p.version} {_short(p.weights)}" for p in origin.policies) or ABSENT
    graders = sorted({_short(item.verdict.grader) for item in view.verdicts})
    yield "versions"
    yield f"  task         {_short(origin.task)}"
    yield f"  policy       {one_line(policies)}"
    yield f"  harness      {_short(origin.harness)}"
    yield f"  environment  {_short(origin.environment)}"
    yield f"  grader       {', '.join(graders) or ABSENT}"


def _sequence(view: EpisodeLike, transcript: Transcript, decode: Decode, *, has_logprobs: bool) -> Iterable[str]:
    sampled = "trained" if view.uses else "sampled"
    outcomes, turn = {(outcome.path, outcome.segment): outcome for outcome in transcript.actions}, 0
    for index, path in enumerate(transcript.paths):
        if index or path.parent is not None:
            parent = path.parent
            origin = f", from path {parent.path} segment {parent.segment}: {parent.cause.value}" if parent else ""
            yield f"path {index}  agent {one_line(path.agent)}{origin}"
        for position, segment in enumerate(path.segments):
            label = segment.origin.value
            if segment.origin is Origin.POLICY:
                label = f"policy turn {turn}"
                turn += segment.finish is not None
            outcome = outcomes.get((index, position))
            if outcome is not None:
                label = f"observation of {one_line(outcome.action.tool)} ({outcome.status.value})"
                yield f"  call {outcome.action.id}  {one_line(outcome.action.tool)} {one_line(outcome.action.arguments)}"
            mark = sampled if segment.policy else "masked"
            yield from _segment(f"[{label}]  {len(segment)} tokens, {mark}", segment, decode, has_logprobs=has_logprobs)
    count = transcript.num_sampled_tokens
    yield f"  {count} tokens {sampled}, {transcript.num_tokens - count} masked"


def _segment(head: str, segment: TokenSegment, decode: Decode, *, has_logprobs: bool) -> Iterable[str]:
    facts = [f"  {head}"]
    if segment.policy is not None:
        facts.append(f"{segment.policy}")
        if segment.context_version_min is not None and segment.context_version_min < segment.policy.version:
            facts.append(f"context from version {segment.context_version_min}")
    if segment.sampling is not None:
        facts.append(f"temperature {segment.sampling.temperature:g}")
    logprobs_T = segment.behavior_logprobs_T
    if logprobs_T is not None and len(logprobs_T):
        facts.append(f"log-prob mean {float(logprobs_T.mean()):.4f}, min {float(logprobs_T.min()):.4f}")
    if segment.finish is not None:
        facts.append(f"finish {segment.finish.value}")
    yield ", ".join(facts)
    yield from _quoted(decode(segment.ids_T), "+" if segment.origin is Origin.POLICY else "|")
    if has_logprobs and logprobs_T is not None:
        cells = [
            f"{one_line(repr(decode(segment.ids_T[t : t + 1])), 24)} {float(logprobs_T[t]):.4f}"
            for t in range(len(segment))
        ]
        for start in range(0, len(cells), _TOKENS_PER_LINE):
            yield "      " + "   ".join(f"{cell:<26}" for cell in cells[start : start + _TOKENS_PER_LINE]).rstrip()


def _open_calls(view: EpisodeLike) -> Iterable[str]:
    for turn in view.turns:
        for call in turn.calls:
            state = "observed" if call.observed_seq else "committed" if call.committed_seq else "outcome unknown"
            name = one_line(call.action.tool)
            yield f"  call {call.action.id}  {name} {one_line(call.action.arguments)}  {state}"


def _ending(view: EpisodeLike) -> Iterable[str]:
    yield f"terminal   {one_line(view.terminal or ABSENT)}  (the environment's claim)"
    if view.transcript is not None:
        detail = getattr(view.transcript.terminal, "reason", "") or getattr(view.transcript.terminal, "detail", "")
        if detail:
            yield f"  because    {one_line(detail)}"
        limits = ", ".join(limit.value for limit in view.transcript.limits_hit)
        yield f"limits     {limits or 'none'}"
        yield from _block("answer", view.transcript.final_text)
    side = view.side
    if side is not None:
        used = side.metering
        service = f", {duration(side.service_s)} for a turn at the service" if side.service_s else ""
        yield (
            f"time       {duration(side.wall_s)}: {duration(side.wait_s)} for a slot, {duration(side.generate_s)} "
            f"generating, {duration(side.tool_s)} in tools{service}"
        )
        memory = size(used.memory_peak_bytes) if used.memory_peak_bytes else ABSENT
        yield f"used       {duration(used.cpu_s)} of CPU, peak memory {memory}"
        if side.neutralized:
            yield f"control    tokens spelt out in tool or user text, kept as plain text: {side.neutralized}"


def _verdicts(view: EpisodeLike) -> Iterable[str]:
    if not view.verdicts:
        yield "verdict    absent"
    for item in view.verdicts:
        outcome = item.verdict.outcome
        if isinstance(outcome, Scored):
            scores = ", ".join(f"{one_line(name)} {number(value)}" for name, value in outcome.components)
            yield f"verdict    {scores}  (grading {item.try_number + 1}, record {_short(item.address)})"
            yield from _block("evidence", outcome.evidence)
        else:
            yield f"verdict    absent: {outcome.cause.value}  (grading {item.try_number + 1}, record {_short(item.address)})"
            yield from _block("detail", outcome.detail)
    if view.disputes:
        yield f"disputed   {len(view.disputes)} later, different verdicts, not used"


def _training(view: EpisodeLike) -> Iterable[str]:
    reward = view.member.reward if view.member is not None else None
    note = "" if view.episode.purpose is Purpose.TRAIN else f"  ({view.episode.purpose.value}: only the verdict counts)"
    yield f"reward     {ABSENT if reward is None else number(reward)}{note}"
    if view.rejection is not None:
        yield f"group      {one_line(view.rejection.state)}: {one_line(view.rejection.reason)}"
    if not view.uses:
        yield "trained    no"
    has_forked = view.transcript is not None and len(view.transcript.paths) > 1
    for use in view.uses:
        row = use.row
        where = f"path {row.path} in" if has_forked else "in"
        yield (
            f"trained    {where} update {use.update} on version {use.base_version}, the {_nth(row.use)} time: advantage "
            f"{number(row.advantage)}, loss weight {number(row.weight)}"
        )


def _block(name: str, text: str) -> Iterable[str]:
    if not text:
        yield f"{name:<10} {ABSENT}"
        return
    first, *rest = inert(text).split("\n")
    yield f"{name:<10} {first}"
    for line in rest:
        yield f"{'':<10} {line}"


def _quoted(text: str, mark: str) -> Iterable[str]:
    for line in inert(text).split("\n"):
        yield f"    {mark} {line}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _nth(count: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(count, f"{count}th")


def _short(address: str) -> str:
    return address[:12]
