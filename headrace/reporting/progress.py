"""Live progress of a run in the terminal: a function over events, called by the control plane for each one.

Invariant: it reads no clock, starts no thread and never blocks; time is the event's own. Without a terminal it writes plain
lines: one for each update, one for each held-out round, and what the run waits for at most every five seconds.
Whoever has a clock calls `silent` while no event comes; the run then also says since when it waits.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.algorithms.intervals import wilson_interval
from headrace.records.action import ActionCommitted, ActionIntended
from headrace.records.batch import BatchPlanned, BatchRefilled, BatchSelected, GroupAdmitted, GroupClosed, GroupRejected
from headrace.records.checkpoint import RunResumed
from headrace.records.evaluation import EvaluationCompleted, EvaluationStarted
from headrace.records.events import Event
from headrace.records.ids import GroupId
from headrace.records.run import BreakerChanged, RunEnded, RunStarted
from headrace.records.segment import TurnGenerated
from headrace.records.trajectory import EpisodeStarted, TranscriptSealed
from headrace.records.update import BatchScored, UpdateCompleted, WeightsActivated
from headrace.records.verdict import VerdictSealed
from headrace.reporting.plaintext import one_line
from headrace.reporting.quantities import ABSENT, duration, number, percent, ratio

HEARTBEAT_NS = 5_000_000_000
REFRESH_NS = 250_000_000
_RATE_WINDOW_NS = 10_000_000_000
_RECENT_UPDATES = 20


@dataclasses.dataclass
class _State:
    """What is known of the run at this event."""

    t_ns: int = 0
    is_silent: bool = False
    updates: int | None = None
    is_virtual: bool = False
    version: int | None = None
    update: int = 0
    stage: str = "start"
    episodes: int = 0
    sealed: int = 0
    acting: set[str] = dataclasses.field(default_factory=set[str])
    grading: set[str] = dataclasses.field(default_factory=set[str])
    outstanding: int = 0
    evaluating: int = 0
    broken: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    ready: set[str] = dataclasses.field(default_factory=set[str])
    selected: tuple[str, ...] = ()
    reward: float | None = None
    mismatch: float | None = None
    oldest_lag: int | None = None
    mean_lag: float | None = None
    held_out: dict[float, EvaluationCompleted] = dataclasses.field(default_factory=dict[float, EvaluationCompleted])

    @property
    def waits_for(self) -> str:
        """What has to happen next."""
        if self.broken:
            return "; ".join(self.broken.values())
        if self.stage != "groups":
            return {
                "start": "weights of the first version",
                "training": f"the trainer, update {self.update}",
                "publication": f"publication of update {self.update}",
                "ended": "nothing",
            }[self.stage]
        running = self.episodes - self.sealed
        return (
            f"groups to train on: {running} episodes run, {len(self.acting)} in tools, {len(self.grading)} being graded"
        )

    @property
    def groups(self) -> str:
        """Where the groups are that hold a slot."""
        return f"groups: {len(self.ready)} finished and waiting, {max(0, self.outstanding - len(self.ready))} running"


class Progress:
    """Shows a run while it goes.

    Args:
        console: where to write; a terminal gets a panel updated in place, anything else plain lines.
        updates: number of updates of the run, if known.
        mismatch_bound: bound that engine and trainer log-probs are held against, nats.
    """

    def __init__(self, console: Console, *, updates: int | None = None, mismatch_bound: float = 1e-4) -> None:
        self._console = console
        self._bound = mismatch_bound
        self._state = _State(updates=updates)
        self._tokens: deque[tuple[int, int]] = deque()
        self._window_tokens = 0
        self._bumps_ns: deque[int] = deque(maxlen=_RECENT_UPDATES + 1)
        self._last_line_ns = 0
        self._last_refresh_ns = 0
        self._live: Live | None = None
        self._handlers: dict[type, Callable[[Event, Any], None]] = {
            RunStarted: self._on_start,
            RunResumed: self._on_resumed,
            TurnGenerated: self._on_turn,
            EpisodeStarted: self._on_episode,
            TranscriptSealed: self._on_sealed,
            VerdictSealed: self._on_verdict,
            ActionIntended: self._on_intent,
            ActionCommitted: self._on_commit,
            GroupAdmitted: self._on_admitted,
            GroupClosed: self._on_closed,
            GroupRejected: self._on_rejected,
            BatchSelected: self._on_selected,
            BatchRefilled: self._on_refilled,
            BatchScored: self._on_scored,
            BatchPlanned: self._on_planned,
            UpdateCompleted: self._on_completed,
            WeightsActivated: self._on_activated,
            EvaluationStarted: self._on_evaluation,
            EvaluationCompleted: self._on_evaluated,
            RunEnded: self._on_end,
            BreakerChanged: self._on_breaker,
        }

    def __call__(self, event: Event) -> None:
        """Takes the next event, and writes if it is time to."""
        self._state.t_ns, self._state.is_silent = event.t_ns, False
        handler = self._handlers.get(type(event.payload))
        if handler is not None:
            handler(event, event.payload)
        if self._live is not None:
            if event.t_ns - self._last_refresh_ns >= REFRESH_NS:
                self._refresh()
        elif event.t_ns - self._last_line_ns >= HEARTBEAT_NS and not self._state.is_virtual:
            self._line(f"{_clock(event.t_ns)}  waits for {self._state.waits_for}")

    def silent(self, for_s: float) -> None:
        """Says what the run waits for, and since when, where no event has come for so many seconds."""
        state = self._state
        if state.is_virtual or state.stage == "ended":
            return
        state.is_silent = True
        if self._live is not None:
            self._refresh()
        elif (now_ns := state.t_ns + round(for_s * 1e9)) - self._last_line_ns >= HEARTBEAT_NS:
            self._line(f"{_clock(now_ns)}  waits for {state.waits_for}{self._since()}")
            self._last_line_ns = now_ns

    def catch_up(self, events: Iterable[Event]) -> None:
        """Takes what happened under earlier processes of the run, and writes nothing."""
        was_quiet, self._console.quiet = self._console.quiet, True
        try:
            for event in events:
                if not isinstance(event.payload, (RunStarted, RunEnded)):
                    self(event)
        finally:
            self._console.quiet = was_quiet

    def close(self) -> None:
        """Leaves the terminal as it is; safe to call twice, and needed only when the run ended without saying so."""
        if self._live is not None:
            self._refresh()
            self._live.stop()
            self._live = None

    def _on_start(self, event: Event, started: RunStarted) -> None:
        self._state.is_virtual = started.runtime == "simulated"
        used = ", ".join(f"{number(amount)} {name}" for name, amount in sorted(started.resources.items()))
        self._line(f"run {one_line(started.run_id)}  seed {started.seed}  {started.runtime}  {used}")
        for name, note in sorted(started.notes.items()):
            self._line(f"{one_line(name)}: {one_line(note)}")
        if self._console.is_terminal and not self._state.is_virtual:
            self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
            self._live.start()

    def _on_resumed(self, event: Event, resumed: RunResumed) -> None:
        self._state.version, self._state.stage = resumed.version, "groups"
        start = "version 0" if resumed.checkpoint is None else f"the checkpoint of update {resumed.checkpoint}"
        self._line(
            f"goes on at version {resumed.version}: from {start}, {resumed.replayed} plans computed again "
            f"({resumed.identical} bit for bit); {resumed.open_groups} groups open, {resumed.ready_groups} of them ready; "
            f"{resumed.resumed} attempts go on, {resumed.reissued} start again"
        )

    def _on_turn(self, event: Event, turn: TurnGenerated) -> None:
        count = turn.num_tokens
        self._tokens.append((event.t_ns, count))
        self._window_tokens += count
        while self._tokens[0][0] < event.t_ns - _RATE_WINDOW_NS:
            self._window_tokens -= self._tokens.popleft()[1]

    def _on_breaker(self, event: Event, changed: BreakerChanged) -> None:
        broken, name = self._state.broken, one_line(event.key)
        if changed.state == "closed":
            broken.pop(name, None)
            self._line(f"{_clock(event.t_ns)}  environment {name} works again")
        elif name not in broken:
            failed = f"{changed.failures} of its last {changed.attempts} attempts failed"
            broken[name] = f"environment {name} to work again: {failed}, since {_clock(event.t_ns)}"
            self._line(f"{_clock(event.t_ns)}  waits for {broken[name]}")

    def _on_episode(self, event: Event, started: EpisodeStarted) -> None:
        self._state.episodes += 1

    def _on_sealed(self, event: Event, sealed: TranscriptSealed) -> None:
        """A boundary's failure is not graded, and may leave a call without its end."""
        state = self._state
        state.sealed += 1
        if sealed.terminal.startswith("infra_error"):
            state.acting = {key for key in state.acting if not key.startswith(f"{event.key}/")}
        else:
            state.grading.add(sealed.transcript)

    def _on_verdict(self, event: Event, sealed: VerdictSealed) -> None:
        self._state.grading.discard(sealed.transcript)

    def _on_intent(self, event: Event, intended: ActionIntended) -> None:
        self._state.acting.add(event.key)

    def _on_commit(self, event: Event, committed: ActionCommitted) -> None:
        self._state.acting.discard(event.key)

    def _on_admitted(self, event: Event, admitted: GroupAdmitted) -> None:
        self._state.outstanding = admitted.outstanding

    def _on_closed(self, event: Event, closed: GroupClosed) -> None:
        self._state.ready.add(str(GroupId.parse(event.key)))

    def _on_rejected(self, event: Event, rejected: GroupRejected) -> None:
        self._state.ready.discard(event.key)
        self._state.outstanding -= 1

    def _on_selected(self, event: Event, selected: BatchSelected) -> None:
        self._state.stage, self._state.update = "training", selected.update
        self._state.selected = tuple(str(group) for group in selected.groups)
        self._state.ready.difference_update(self._state.selected)

    def _on_refilled(self, event: Event, refilled: BatchRefilled) -> None:
        came = tuple(str(group) for group in refilled.groups)
        self._state.selected += came
        self._state.ready.difference_update(came)

    def _on_scored(self, event: Event, scored: BatchScored) -> None:
        self._state.mismatch = scored.mismatch

    def _on_planned(self, event: Event, planned: BatchPlanned) -> None:
        state = self._state
        state.selected = tuple(str(group) for group in planned.groups)  # without those that the gate took out
        state.reward, state.oldest_lag, state.mean_lag = planned.mean_reward, planned.oldest_lag, planned.mean_lag

    def _on_completed(self, event: Event, completed: UpdateCompleted) -> None:
        self._state.stage = "publication"

    def _on_activated(self, event: Event, activated: WeightsActivated) -> None:
        """The first worker that serves a version makes the bump; the others change nothing."""
        state, version = self._state, activated.policy.version
        if state.version is not None and version <= state.version:
            return
        state.version, state.stage = version, "groups"
        self._bumps_ns.append(event.t_ns)
        if version == 0:
            return
        state.outstanding -= len(state.selected)
        if self._live is None:
            self._line(self._update_line())

    def _on_evaluation(self, event: Event, started: EvaluationStarted) -> None:
        self._state.evaluating += 1

    def _on_evaluated(self, event: Event, done: EvaluationCompleted) -> None:
        self._state.evaluating -= 1
        self._state.held_out[done.temperature] = done
        self._line(f"held-out  version {done.policy.version}  {_held_out(done)}")

    def _on_end(self, event: Event, ended: RunEnded) -> None:
        self._state.stage = "ended"
        self.close()
        self._line(f"run ended after {duration(event.t_ns / 1e9)}: {one_line(ended.reason)}, {ended.updates} updates")

    def _update_line(self) -> str:
        state = self._state
        return "  ".join(
            (
                f"update {state.update}/{ABSENT if state.updates is None else state.updates}",
                f"reward {number(state.reward)}",
                self._mismatch(),
                f"lag {number(state.oldest_lag)} updates (mean {number(state.mean_lag)})",
                state.groups,
                f"{number(self._token_rate())} tokens/s",
                f"episodes {state.sealed:,}",
                f"ETA {duration(self._eta_s())}",
            )
        )

    def _mismatch(self) -> str:
        value = self._state.mismatch
        mark = "  ABOVE ITS BOUND" if value is not None and value > self._bound else ""
        shown = ABSENT if value is None else f"{value:.1e}"
        return f"engine/trainer log-prob diff {shown} (bound {self._bound:.0e}){mark}"

    def _token_rate(self) -> float | None:
        """Sampled tokens per second over the last ten seconds."""
        if not self._tokens:
            return None
        span_ns = max(self._state.t_ns - self._tokens[0][0], min(self._state.t_ns, _RATE_WINDOW_NS))
        rate = ratio(self._window_tokens * 1e9, span_ns)
        return None if rate is None else round(rate)

    def _eta_s(self) -> float | None:
        """From the mean time of the last updates."""
        if self._state.updates is None or len(self._bumps_ns) < 2:
            return None
        each_ns = (self._bumps_ns[-1] - self._bumps_ns[0]) / (len(self._bumps_ns) - 1)
        return max(0, self._state.updates - self._state.update) * each_ns / 1e9

    def _line(self, text: str) -> None:
        self._last_line_ns = self._state.t_ns
        self._console.print(Text(text), soft_wrap=True)

    def _since(self) -> str:
        return f"; nothing has happened since {_clock(self._state.t_ns)}" if self._state.is_silent else ""

    def _refresh(self) -> None:
        self._last_refresh_ns = self._state.t_ns
        if self._live is not None:
            self._live.update(self._panel(), refresh=True)

    def _panel(self) -> Table:
        state = self._state
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        bar = ProgressBar(total=state.updates or 1, completed=state.update if state.version else 0, width=30)
        head = Table.grid(padding=(0, 2))
        total = ABSENT if state.updates is None else str(state.updates)
        eta = f"{state.update}/{total}   {_clock(state.t_ns)}   ETA {duration(self._eta_s())}"
        head.add_row(bar, Text(eta))
        table.add_row("update", head)
        table.add_row(
            "reward",
            Text(f"{number(state.reward)}   lag {number(state.oldest_lag)} updates (mean {number(state.mean_lag)})"),
        )
        is_high = state.mismatch is not None and state.mismatch > self._bound
        table.add_row("weights", Text(self._mismatch(), style="bold red" if is_high else ""))
        groups = f"{state.groups.removeprefix('groups: ')}   {state.sealed:,} episodes done"
        table.add_row("groups", Text(f"{groups}   {number(self._token_rate())} tokens/s"))
        for temperature in sorted(state.held_out):
            done = state.held_out[temperature]
            table.add_row("held-out", Text(f"version {done.policy.version}   {_held_out(done)}"))
        running = "" if not state.evaluating else f"   ({state.evaluating} held-out rounds run)"
        table.add_row("waits for", Text(f"{state.waits_for}{running}{self._since()}", style="dim"))
        return table


def _held_out(done: EvaluationCompleted) -> str:
    rate = ratio(done.successes, done.graded)
    text = f"temperature {done.temperature:g}: {percent(rate)} ({done.successes}/{done.graded}"
    if done.graded:
        interval = wilson_interval(done.successes, done.graded)
        text += f", 95% {percent(interval.low)} to {percent(interval.high)}"
    return text + (f", {done.unscored} without a verdict)" if done.unscored else ")")


def _clock(t_ns: int) -> str:
    minutes, seconds = divmod(t_ns // 1_000_000_000, 60)
    return f"{minutes}:{seconds:02d}"
