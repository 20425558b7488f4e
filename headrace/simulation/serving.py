"""The processor-sharing core of the simulated engine: a virtual work clock, and nothing else that moves.

Each active request is served at the same rate r(n) tokens per second, n being the number of active ones. With the work clock
V, dV/dt = r(n), a request that enters at V0 with w tokens of work leaves when V = V0 + w, whatever happens in between. So
only arrivals, departures and pauses need an event, at O(log n) each, and never a token. The prefill of one that enters
stops the work of all for its seconds, and several are done one after the other.

Invariant: V changes only in `_advance`, and exactly one timer stands, at the earliest departure, unless serving is paused.
"""

import asyncio
import dataclasses
import heapq
import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.scheduling.seniority import TurnLine
from headrace.simulation.costs import EngineCost


@dataclasses.dataclass(eq=False)
class Job:
    """One request in the engine.

    Attributes:
        work: tokens to sample, a real number.
        context: tokens that it attends to when it enters.
        trajectory: names the sequence that it goes on with; its age decides who gets a slot.
        prefill_s: seconds of the engine before its first token; set when it enters.
        start: the work clock when it entered; None while it waits.
        start_s: the time when it entered.
        end: the work clock when it left; None before.
        decode_s: seconds of decoding that it took, each shared out among all that were served; set when it leaves.
    """

    work: float
    context: int
    trajectory: str
    prefill_s: float = 0.0
    start: float | None = None
    start_s: float = 0.0
    end: float | None = None
    decode_s: float = 0.0

    def sampled_at(self, work_clock: float) -> float:
        """Tokens of it that are sampled, as a real number, when the work clock stands there."""
        if self.start is None:
            return 0.0
        sampled = work_clock - self.start
        if sampled <= 0.0:
            return 0.0
        return sampled if sampled < self.work else self.work


J = TypeVar("J", bound=Job)


class SharedServer(Generic[J]):
    """Slots with a line before them in the order of the embedded engine.

    Attributes:
        slot_seconds: integral of the number of active jobs over time.
        computed_tokens: tokens sampled and prefilled for all jobs so far, a real number.
    """

    def __init__(self, cost: EngineCost, *, on_enter: Callable[[J], None], on_leave: Callable[[J], None]) -> None:
        """An empty server.

        Args:
            cost: rates and slots.
            on_enter: called when a job gets a slot; sets its `prefill_s`.
            on_leave: called when its work is done.
        """
        self.slot_seconds = 0.0
        self.computed_tokens = 0.0
        self._rates = cost.request_rates()
        self._half = cost.context_half_tokens
        self._slots = cost.slots
        self._on_enter = on_enter
        self._on_leave = on_leave
        self._births = itertools.count()
        self._waiting: TurnLine[J] = TurnLine()
        self._active: dict[J, float] = {}
        self._departures: list[tuple[float, int, J]] = []
        self._context = 0.0
        self._clock = 0.0
        self._clock_s = 0.0
        self._rate = 0.0
        self._fair_s = 0.0
        self._prefill_tokens_per_s = cost.prefill_tokens_per_s or 0.0
        self._prefill_s = 0.0
        self._prefill_share = 0.0
        self._holds = 0
        self._share = 1.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def active(self) -> tuple[J, ...]:
        """Jobs with a slot, in order of entry."""
        return tuple(self._active)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def clock(self) -> float:
        """The work clock now."""
        self._advance()
        return self._clock

    def submit(self, job: J) -> None:
        """Takes a job in: into a slot, or to its place in the line."""
        self._waiting.append(job)
        # Who only waits changes nothing for those that are served, unless the rate has to follow their grown context.
        if len(self._active) < self._slots or self._half is not None:
            self._advance()
            self._settle()

    def withdraw(self, job: J) -> None:
        """Takes a job out, wherever it is; its `end` is now."""
        self._advance()
        if job in self._active:
            self._leave(job, self._clock)
        elif self._waiting.remove(job):
            job.end = self._clock
        self._settle()

    def hold(self) -> None:
        """Stops serving until a `release` for each hold."""
        self._advance()
        self._holds += 1
        self._settle()

    def release(self) -> None:
        """Undoes one hold."""
        self._advance()
        self._holds -= 1
        self._settle()

    def slow(self, share: float) -> None:
        """Serves at this share of the rate from now on; 0 stands still."""
        self._advance()
        self._share = share
        self._settle()

    def _advance(self) -> None:
        now_s = asyncio.get_running_loop().time()
        elapsed_s = now_s - self._clock_s
        if elapsed_s > 0.0:
            gained = elapsed_s * self._rate
            self._clock += gained
            self._context += gained * len(self._active)
            self.computed_tokens += gained * len(self._active)
            self.slot_seconds += elapsed_s * len(self._active)
            if gained > 0.0:
                self._fair_s += elapsed_s / len(self._active)
            elif self._prefill_share > 0.0:
                prefilled_s = min(self._prefill_s, elapsed_s * self._prefill_share)
                self._prefill_s -= prefilled_s
                self.computed_tokens += prefilled_s * self._prefill_tokens_per_s
        self._clock_s = now_s

    def _settle(self) -> None:
        """Fills free slots, then sets the rate and the timer to the next departure."""
        while self._waiting and len(self._active) < self._slots:
            job = self._waiting.popleft()
            job.start, job.start_s = self._clock, self._clock_s
            self._active[job] = self._fair_s
            self._on_enter(job)
            self._context += job.context
            self._prefill_s += job.prefill_s
            heapq.heappush(self._departures, (self._clock + job.work, next(self._births), job))
        while self._departures and self._departures[0][2].end is not None:
            heapq.heappop(self._departures)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._rate = self._prefill_share = 0.0
        if not self._active or self._share == 0.0 or self._holds:
            return
        loop = asyncio.get_running_loop()
        if self._prefill_s > 0.0:
            self._prefill_share = self._share
            self._timer = loop.call_at(self._clock_s + self._prefill_s / self._share, self._go_on)
        else:
            slow_down = 1.0 if self._half is None else 1.0 + self._context / self._half
            self._rate = self._share * self._rates[len(self._active)] / slow_down
            due_s = self._clock_s + max(0.0, self._departures[0][0] - self._clock) / self._rate
            self._timer = loop.call_at(due_s, self._depart)

    def _go_on(self) -> None:
        """All that entered is prefilled."""
        self._advance()
        self._prefill_s = 0.0
        self._settle()

    def _depart(self) -> None:
        """The earliest job is done, and all others within a nanosecond of it."""
        self._advance()
        self._timer = None
        # Exactly the finishing work of the job that the timer was set for: rounding does not add up.
        self._clock = max(self._clock, self._departures[0][0])
        bound = self._clock + self._rate * 1e-9
        while self._departures and self._departures[0][0] <= bound:
            finish, _, job = heapq.heappop(self._departures)
            if job.end is None:
                self._leave(job, finish)
                self._on_leave(job)
        self._settle()

    def _leave(self, job: J, work_clock: float) -> None:
        assert job.start is not None
        job.end = work_clock
        job.decode_s = self._fair_s - self._active.pop(job)
        self._context = self._context - job.context - (work_clock - job.start) if self._active else 0.0
