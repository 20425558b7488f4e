"""Flow of groups and tokens through the run as a grid, with the verdict on what held it up."""

from collections.abc import Iterator

from headrace.reporting.grids import Grid, with_unit
from headrace.reporting.quantities import duration, number, percent, ratio
from headrace.reporting.report import RunReport


def flow(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    """Rates, shares and pauses, then the verdict, standstills and turns on shared devices."""
    found, stages = report.flow, report.stages
    yield Grid(
        ("flow", "", ""),
        (
            ("λ, groups ready to train", with_unit(found.arrival_rate, "groups/s"), ""),
            ("μ, what the trainer could take", with_unit(found.trainer_capacity, "groups/s"), "while it works"),
            (
                "trainer at work",
                duration(found.trainer_busy_s),
                f"without work {percent(found.starvation)} of the time",
            ),
            (
                "groups waiting to train",
                with_unit(found.backlog_end, "groups"),
                f"last third of the run; first third {number(found.backlog_start)}",
            ),
            (
                "their wait",
                f"{duration(stages.queue_age_p50_s)}",
                f"median; 95% quantile {duration(stages.queue_age_p95_s)}",
            ),
            ("sampled", with_unit(found.generated_rate, "tokens/s"), "every purpose"),
            (
                "trained",
                with_unit(found.trained_rate, "tokens/s"),
                f"{number(found.signal_rate)} of them with an advantage other than 0",
            ),
            (
                "CPU of environments",
                duration(found.environment_cpu_s),
                f"{percent(found.environment_share)} of the cores",
            ),
            (
                "engine paused for new weights",
                duration(found.engine_pause_s),
                f"{found.rebuilt_tokens:,} cache entries computed again",
            ),
        ),
        left=3,
    )
    yield found.verdict
    yield (
        f"each publication kept generation from going on for {percent(report.updates.standstill_share)} of its update "
        "(loading, canary, switch; computing caches again comes on top)"
    )
    turns = report.turns
    if turns.number:
        yield (
            f"shared devices: {turns.number} turns of the trainer, {duration(turns.held_s)} in all "
            f"({percent(ratio(turns.held_s, found.wall_s))} of the run), {duration(turns.switch_s)} of switching; "
            f"{number(turns.running / turns.number)} sequences stood still in mid-generation each time, and the engine "
            f"computed {turns.computed_tokens:,} tokens meanwhile"
        )
