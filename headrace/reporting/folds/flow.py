"""Flow through the run: arrival rate, trainer capacity, backlog, starvation, and effective throughput over time.

Invariant: lambda counts groups that became ready, mu groups trained per second in which the trainer was at work; both are
rates of the same thing, groups. Environment CPU is spread evenly over the life of the episode that used it.
"""

import itertools

import msgspec

from headrace.records.events import Event
from headrace.records.segment import TurnGenerated
from headrace.reporting.folds.index import RunIndex
from headrace.reporting.folds.spans import Bins, Spans
from headrace.reporting.folds.stages import Series
from headrace.reporting.quantities import ABSENT, ratio


class Flow(msgspec.Struct, frozen=True):
    """Rates and backlog of the run.

    Attributes:
        mode: of the schedule; None when the log does not hold the configuration.
        wall_s: first event to last, seconds.
        admitted_rate: groups admitted per second.
        arrival_rate: effective lambda: groups that became ready with enough rewards, per second, between the first
            version's activation and the last; over the run when nothing trained.
        trainer_capacity: mu: groups trained per busy second of the trainer; None when nothing trained.
        trainer_busy_s: selection to activation, summed over updates, seconds.
        starvation: idle share of the trainer between the first version's activation and the last; None without updates.
        backlog_start: mean ready groups waiting over the first third of that time.
        backlog_end: the same over the last third.
        generated_tokens: tokens sampled, every purpose.
        generated_rate: tokens sampled per second.
        trained_tokens: sampled tokens of trajectories that trained, each once.
        trained_rate: the same per second.
        signal_tokens: those in rows whose advantage is not 0.
        signal_rate: the same per second.
        environment_cpu_s: CPU seconds of environments; None when nothing metered them.
        environment_share: of the cores that the run may use; None when it does not say how many.
        engine_pause_s: seconds in which swaps kept the engine from generating.
        rebuilt_tokens: cache entries computed again after swaps.
        bins_s: middles of the bins, seconds since the start.
        ready: mean groups in the ready queue, by bin.
        outstanding: mean groups that hold a slot, by bin.
        throughput: generated, trained and signal tokens per second, by bin; trained ones are spread evenly over the
            time since the version before.
        environment_cores: cores that environments used, by bin.
    """

    mode: str | None
    wall_s: float
    admitted_rate: float | None
    arrival_rate: float | None
    trainer_capacity: float | None
    trainer_busy_s: float
    starvation: float | None
    backlog_start: float | None
    backlog_end: float | None
    generated_tokens: int
    generated_rate: float | None
    trained_tokens: int
    trained_rate: float | None
    signal_tokens: int
    signal_rate: float | None
    environment_cpu_s: float | None
    environment_share: float | None
    engine_pause_s: float
    rebuilt_tokens: int
    bins_s: tuple[float, ...]
    ready: Series
    outstanding: Series
    throughput: tuple[Series, ...]
    environment_cores: Series

    @property
    def verdict(self) -> str:
        """What limits the run, in words."""
        if self.arrival_rate is None or self.trainer_capacity is None:
            return "nothing trained yet"
        load = self.arrival_rate / self.trainer_capacity
        if self.mode == "sync":
            return (
                "sync: generation and training take turns, so each waits for the other; training and publishing took "
                f"{ABSENT if self.starvation is None else f'{100 * (1 - self.starvation):.0f}%'} of the time"
            )
        if load < 0.9:
            return f"the trainer starves: arrivals fill {100 * load:.0f}% of its capacity"
        if load > 1.1:
            return f"the backlog grows: arrivals are {100 * load:.0f}% of the trainer's capacity"
        return f"balanced: arrivals are {100 * load:.0f}% of the trainer's capacity"


class FlowRates:
    """Counts sampled tokens over time; the rest comes from the index."""

    def __init__(self, index: RunIndex) -> None:
        self._index = index
        self._sampled: list[tuple[int, float]] = []

    def observe(self, event: Event) -> None:
        """Takes the next event."""
        if isinstance(event.payload, TurnGenerated):
            self._sampled.append((event.t_ns, event.payload.num_tokens))

    def result(self) -> Flow:
        """The figures so far."""
        index = self._index
        bins = Bins(index.start_ns or 0, index.now_ns)
        wall_s = index.wall_ns / 1e9
        trained, signal = self._trained_tokens()
        cpu = [
            (
                life.started_ns if life.started_ns is not None else life.sealed_ns,
                life.sealed_ns,
                life.side.metering.cpu_s,
            )
            for life in index.transcripts.values()
        ]
        ready, outstanding = self._queues()
        working, cpu_s = self._working_ns(), index.environment_cpu_s
        groups = [group for group in index.groups.values() if group.admitted_ns is not None]
        num_trained = len(index.trained_groups())
        tokens = {
            "generated": self._sampled,
            "trained": trained,
            "trained with a signal": signal,
        }
        totals = {name: int(sum(value for _, value in points)) for name, points in tokens.items()}
        thirds = self._thirds(ready)
        cores = index.started.resources.get("cores") if index.started else None
        return Flow(
            mode=index.config.schedule.mode if index.config else None,
            wall_s=wall_s,
            admitted_rate=ratio(len(groups), wall_s),
            arrival_rate=self._arrival_rate(),
            trainer_capacity=ratio(num_trained, working / 1e9) if num_trained else None,
            trainer_busy_s=working / 1e9,
            starvation=self._starvation(),
            backlog_start=thirds[0],
            backlog_end=thirds[1],
            generated_tokens=totals["generated"],
            generated_rate=ratio(totals["generated"], wall_s),
            trained_tokens=totals["trained"],
            trained_rate=ratio(totals["trained"], wall_s),
            signal_tokens=totals["trained with a signal"],
            signal_rate=ratio(totals["trained with a signal"], wall_s),
            environment_cpu_s=cpu_s,
            environment_share=ratio(cpu_s, wall_s * cores) if cores and cpu_s is not None else None,
            engine_pause_s=sum(life.pause_s or 0.0 for life in index.versions.values()),
            rebuilt_tokens=sum(life.rebuilt_tokens or 0 for life in index.versions.values()),
            bins_s=bins.middles_s,
            ready=Series("finished, waiting for the trainer", ready.mean_count(bins, index.now_ns)),
            outstanding=Series("all that hold a slot", outstanding.mean_count(bins, index.now_ns)),
            throughput=(
                Series("generated", bins.per_second(self._sampled)),
                *(
                    Series(name, bins.spread_per_second(self._between_commits(tokens[name])))
                    for name in ("trained", "trained with a signal")
                ),
            ),
            environment_cores=Series("environment CPU", bins.spread_per_second(cpu if cpu_s is not None else ())),
        )

    def _queues(self) -> tuple[Spans, Spans]:
        """Ready groups, and groups that hold a slot: from admission to the version bump or the rejection."""
        ready, outstanding = Spans(), Spans()
        for group in self._index.groups.values():
            if group.was_ready and group.closed_ns is not None:
                ready.enter(group.id, group.closed_ns)
                leave_ns = group.selected_ns if group.selected_ns is not None else group.rejected_ns
                if leave_ns is not None:
                    ready.leave(group.id, leave_ns)
            if group.admitted_ns is not None:
                outstanding.enter(group.id, group.admitted_ns)
                leave_ns = group.trained_ns if group.trained_ns is not None else group.rejected_ns
                if leave_ns is not None:
                    outstanding.leave(group.id, leave_ns)
        return ready, outstanding

    def _trained_tokens(self) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
        """(time of commit, sampled tokens) of each trajectory that trained, and of those with a signal."""
        index, seen = self._index, set[str]()
        trained: list[tuple[int, float]] = []
        signal: list[tuple[int, float]] = []
        for update in index.updates.values():
            for row in update.rows:
                t_ns, life = index.groups[row.group].trained_ns, index.transcripts.get(row.transcript)
                if t_ns is None or life is None or row.transcript in seen:
                    continue
                seen.add(row.transcript)
                trained.append((t_ns, life.sealed.sampled_tokens))
                if row.advantage != 0:
                    signal.append((t_ns, life.sealed.sampled_tokens))
        return trained, signal

    def _between_commits(self, points: list[tuple[int, float]]) -> list[tuple[int, int, float]]:
        """The amounts of each commit with the time since the version before."""
        amounts: dict[int, float] = {life.committed_ns: 0.0 for life in self._index.versions.values()}
        for t_ns, amount in points:
            amounts[t_ns] += amount
        times = list(amounts)
        return [(begin, stop, amounts[stop]) for begin, stop in itertools.pairwise(times)]

    def _work(self) -> list[tuple[int, int]]:
        """Selection to activation of each update whose version exists."""
        selected = {life.update: life.selected_ns for life in self._index.updates.values()}
        found: list[tuple[int, int]] = []
        for version in self._index.versions.values():
            begin_ns = None if version.update is None else selected.get(version.update)
            if begin_ns is not None:
                found.append((begin_ns, version.activated_ns or version.committed_ns))
        return found

    def _working_ns(self) -> int:
        return sum(stop - begin for begin, stop in self._work())

    def _training_window(self) -> tuple[int, int] | None:
        """From version 0 being served to the last update's version being served."""
        work = self._work()
        first = next((v.activated_ns for v in self._index.versions.values() if v.activated_ns is not None), None)
        if not work or first is None or work[-1][1] <= first:
            return None
        return first, work[-1][1]

    def _arrival_rate(self) -> float | None:
        window = self._training_window() or (self._index.start_ns or 0, self._index.now_ns)
        ready = [group.closed_ns for group in self._index.groups.values() if group.was_ready]
        inside = sum(closed_ns is not None and window[0] <= closed_ns <= window[1] for closed_ns in ready)
        return ratio(inside, (window[1] - window[0]) / 1e9)

    def _starvation(self) -> float | None:
        window = self._training_window()
        return None if window is None else max(0.0, 1 - self._working_ns() / (window[1] - window[0]))

    def _thirds(self, ready: Spans) -> tuple[float | None, float | None]:
        window = self._training_window()
        if window is None:
            return None, None
        counts = ready.mean_count(Bins(*window, num=3), self._index.now_ns)
        return counts[0], counts[2]
