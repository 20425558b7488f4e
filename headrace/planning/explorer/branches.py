"""Which ways a recovery took, read off the journal: the state in which it found the run decides, not what anybody says.

One name for each line of the table in docs/recovery.md. A process that takes over a run finds the fold of the events
before its `RunStarted`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from headrace.control.past import AttemptPast, GroupPast, RunPast
from headrace.control.recovery import recover
from headrace.records.action import EffectClass
from headrace.records.checkpoint import RunResumed
from headrace.records.events import Event
from headrace.records.run import RunStarted
from headrace.records.update import CanaryChecked, WeightsActivated, WeightsStaged

BRANCHES = (
    "task drawn, group not begun",
    "attempt in flight, gone on with",
    "attempt in flight, started again",
    "external action intended, parked",
    "turn without INTENT",
    "INTENT without COMMIT",
    "COMMIT without OBSERVED",
    "all three, goes on",
    "sealed without verdict",
    "grading to be tried again",
    "group closed, not consumed",
    "batch selected, no plan",
    "plan without result",
    "result, version not committed",
    "version staged, not committed",
    "version committed, not active",
    "held-out round begun",
    "source exhausted",
    "no checkpoint, all replayed",
    "checkpoint loaded, nothing replayed",
    "checkpoint loaded, plans replayed",
    "nothing was published yet",
    "process before it was stopped in order",
)
"""Everything that a recovery may have to do."""


def branches_of(events: Sequence[Event]) -> Counter[str]:
    """How often each branch of recovery was taken in a log."""
    found: Counter[str] = Counter()
    starts = [index for index, event in enumerate(events) if isinstance(event.payload, RunStarted)]
    for index in starts[1:]:
        past = recover(events[:index])
        # A process that died before it got through did nothing of all that.
        epoch = events[index].epoch
        resumed = [e.payload for e in events[index:] if isinstance(e.payload, RunResumed) and e.epoch == epoch]
        if past.version < 0:
            found["nothing was published yet"] += 1
        elif resumed:
            found.update(set(_ways(past, events[:index], resumed[0])))
    return found


def _ways(past: RunPast, before: Sequence[Event], resumed: RunResumed) -> Iterator[str]:
    yield from _checkpoint_ways(resumed)
    if past.ended is not None and past.ended.reason == "stopped":
        yield "process before it was stopped in order"
    if past.open_rounds:
        yield "held-out round begun"
    if past.is_exhausted:
        yield "source exhausted"
    for group in past.groups.values():
        yield from _group_ways(group, resumed)
    yield from _update_ways(past, before)


def _checkpoint_ways(resumed: RunResumed) -> Iterator[str]:
    if resumed.checkpoint is None and resumed.replayed:
        yield "no checkpoint, all replayed"
    elif resumed.checkpoint is not None:
        yield "checkpoint loaded, plans replayed" if resumed.replayed else "checkpoint loaded, nothing replayed"


def _group_ways(group: GroupPast, resumed: RunResumed) -> Iterator[str]:
    if group.size == 0:
        yield "task drawn, group not begun"
    if group.closed is not None:
        yield "group closed, not consumed"
        return
    for attempts in group.attempts.values():
        last = attempts[max(attempts)]
        if last.sealed is not None:
            yield "grading to be tried again" if last.verdicts else "sealed without verdict"
        elif last.started_seq:
            yield from _attempt_ways(last, resumed)


def _attempt_ways(attempt: AttemptPast, resumed: RunResumed) -> Iterator[str]:
    if any(intent.effect is EffectClass.EXTERNAL for intent in attempt.intents.values()):
        yield "external action intended, parked"
        return
    yield "attempt in flight, gone on with" if resumed.resumed else "attempt in flight, started again"
    if attempt.turns and not any(action.step == max(attempt.turns) for action in attempt.intents):
        yield "turn without INTENT"
    if attempt.intents.keys() - attempt.commits.keys():
        yield "INTENT without COMMIT"
    if attempt.commits.keys() - attempt.observed.keys():
        yield "COMMIT without OBSERVED"
    if attempt.observed:
        yield "all three, goes on"


def _update_ways(past: RunPast, before: Sequence[Event]) -> Iterator[str]:
    update = past.update
    if update is not None and update.plan is None:
        yield "batch selected, no plan"
    elif update is not None and update.result is None:
        yield "plan without result"
    elif update is not None:
        yield "result, version not committed"
    versions = _newest(before)
    if versions[WeightsStaged] > past.version:
        yield "version staged, not committed"
    if versions[WeightsActivated] < past.version:
        yield "version committed, not active"


def _newest(events: Sequence[Event]) -> dict[type, int]:
    """Newest version that each step of publication reached."""
    newest: dict[type, int] = {WeightsStaged: -1, CanaryChecked: -1, WeightsActivated: -1}
    for event in events:
        if isinstance(event.payload, WeightsStaged | CanaryChecked | WeightsActivated):
            newest[type(event.payload)] = max(newest[type(event.payload)], event.payload.policy.version)
    return newest
