"""The report as titled lines and grids of text, for a terminal and for a page alike.

Invariant: every figure has its unit and an absent one is "–"; all text from tasks, policies and tools is inert.
"""

from collections.abc import Callable, Iterator

from headrace.reporting.folds.heldout import Round
from headrace.reporting.folds.strata import StratumFate
from headrace.reporting.grids import Grid, Section, interval, per_resource, signed, thinned, with_unit
from headrace.reporting.guards import guards
from headrace.reporting.learning import learning
from headrace.reporting.plaintext import one_line
from headrace.reporting.quantities import ABSENT, duration, number, percent, ratio, size
from headrace.reporting.recovery import recoveries
from headrace.reporting.report import RunReport
from headrace.reporting.slowdown import slowdown

_FEW = 12


def sections(report: RunReport, *, is_full: bool) -> tuple[Section, ...]:
    """All sections; without `is_full` long grids are thinned out to what fits a screen."""
    builders: tuple[tuple[str, str, Callable[[RunReport, bool], Iterator[str | Grid]]], ...] = (
        ("held-out", "Held-out success: tasks that never train, 95% Wilson intervals", _held_out),
        ("information", "Effective training information, in effective trajectories", _information),
        ("funnel", "Stage funnel", _funnel),
        ("strata", "Training groups by difficulty, family, length and duration", _strata),
        ("stages", "Waiting per stage, and Little's law", _stages),
        ("slowdown", "Slowdown by length of the trajectory, from waiting for a slot", slowdown),
        ("flow", "Flow", _flow),
        ("updates", "Updates", _updates),
        ("signal", "Learning signal", learning),
        ("recovery", "Checkpoints and resumes", recoveries),
        ("workers", "Where the workers' time went, and copies of weights", _workers),
        ("limits", "Timeouts and other limits", _limits),
        ("guards", "Alarms, shut environments and refusals", guards),
        ("claims", "The environment's claim against the grader's verdict, in episodes", _claims),
    )
    return tuple(Section(name, title, tuple(build(report, is_full))) for name, title, build in builders)


def headline(report: RunReport) -> list[str]:
    """What the run was, in a few lines."""
    facts = report.facts
    used = ", ".join(f"{number(amount)} {one_line(name)}" for name, amount in facts.resources.items()) or ABSENT
    planned = ABSENT if facts.updates_planned is None else str(facts.updates_planned)
    seed = ABSENT if facts.seed is None else str(facts.seed)
    lines = [
        f"{one_line(facts.ending or 'no end recorded')}: {facts.updates_done}/{planned} updates in "
        f"{duration(facts.wall_s)} on {used}",
        f"runtime {one_line(facts.runtime)}  seed {seed}  {one_line(facts.wall_clock)}".rstrip(),
    ]
    lines += [f"{one_line(name)}: {one_line(note)}" for name, note in facts.notes.items()]
    if facts.runtime == "simulated":
        lines.append("Simulated: these figures show scheduling behaviour, not hardware.")
    if facts.starts > 1:
        lines.append(f"{facts.starts} processes worked on this run, one after the other.")
    return lines


def _held_out(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    held_out = report.held_out
    if not held_out.rounds:
        yield f"{ABSENT} no held-out round was completed"
        return
    shown = [
        item
        for temperature in held_out.temperatures
        for item in thinned(held_out.at(temperature), None if is_full else 3)
    ]
    yield Grid(
        ("temperature", "version", "success", "95% interval", "episodes", "unscored", "round took"),
        tuple(_round(item) for item in shown),
    )
    last = [held_out.at(temperature)[-1] for temperature in held_out.temperatures]
    names = sorted({("difficulty", s.name) for r in last for s in r.difficulties}) + sorted(
        {("family", s.name) for r in last for s in r.families}
    )
    yield Grid(
        ("last round by", "", *(f"temperature {item.temperature:g}" for item in last)),
        tuple((kind, one_line(name, 40), *(_stratum_rate(item, kind, name) for item in last)) for kind, name in names),
        left=2,
    )


def _round(item: Round) -> tuple[str, ...]:
    rate = item.overall
    return (
        f"{item.temperature:g}",
        str(item.version),
        percent(rate.rate),
        interval(rate),
        f"{rate.successes}/{rate.graded}",
        str(item.unscored),
        duration(item.wall_s),
    )


def _stratum_rate(item: Round, kind: str, name: str) -> str:
    found = {s.name: s.rate for s in (item.difficulties if kind == "difficulty" else item.families)}.get(name)
    if found is None:
        return ABSENT
    return f"{percent(found.rate)} ({found.successes}/{found.graded}), {interval(found)}"


def _information(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    info = report.information
    yield f"{number(info.total)} in {duration(info.hours * 3600)}: {number(info.per_hour)} per hour" + "".join(
        f", {number(item.information_per_hour)} per {per_resource(item.name)} ({number(item.hours)} used)"
        for item in info.resources
    )
    yield (
        f"environment CPU {duration(info.environment_cpu_s)}, trainer compute {duration(info.trainer_compute_s)}; trained "
        f"groups that count nothing: {info.duplicate_groups} duplicates, {info.unweighted_groups} without weights"
    )
    if info.strata:
        yield Grid(
            ("difficulty", "groups", "information", "on offer", "retention", "unknown", "flips", "kappa"),
            tuple(
                (
                    one_line(row.difficulty, 30),
                    str(row.groups),
                    number(row.trained),
                    number(row.offered),
                    percent(row.retention),
                    f"{row.unknown_groups:,}",
                    percent(row.flip_rate),
                    "1, assumed" if row.flip_rate is None else number(row.kappa),
                )
                for row in info.strata
            ),
        )
    if info.regrades:
        flips = f"{info.disputes} of {info.regrades} repeated gradings differed"
    else:
        flips = "not measured, since no transcript was graded twice; kappa is assumed to be 1"
    yield (
        "Information: of trained groups, reward variance against its largest value, times members, times the effective "
        "sample size share of the difficulty in the batch, times kappa. On offer: of all groups decided; retention is "
        f"their ratio. Kappa: (1 - 2 x flip rate) squared. Verdict flips: {flips}. Unknown: groups rejected with fewer "
        "than two rewards, so nobody knows what they had to offer."
    )


def _funnel(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    funnel = report.funnel
    yield Grid(
        ("stage", "unit", *funnel.purposes),
        tuple((row.stage, row.unit, *(f"{row.counts[p]:,}" for p in funnel.purposes)) for row in funnel.stages),
        left=2,
    )
    yield Grid(
        ("what happened", "", *funnel.purposes),
        tuple(
            (row.stage, one_line(row.reason, 60), *(f"{row.counts[p]:,}" for p in funnel.purposes))
            for row in funnel.outcomes
        ),
        left=2,
    )
    tasks, word = funnel.frontier, "holds" if funnel.is_conserved else "IS BROKEN"
    yield (
        f"drawn {tasks.drawn:,} = trained {tasks.trained:,} + filtered {tasks.filtered:,} + abandoned "
        f"{tasks.abandoned:,} + open {tasks.open:,}: {word}"
    )


def _strata(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    drift = {row.difficulty: row.mean_drift for row in report.order.strata}
    tables = {
        "difficulty": report.strata.difficulty,
        "family": report.strata.family,
        "length": report.strata.length,
        "duration": report.strata.duration,
    }
    rows = [(kind, row) for kind, found in tables.items() for row in found]
    ends: tuple[tuple[str, Callable[[StratumFate], int]], ...] = (
        ("filtered", lambda row: row.filtered),
        ("abandoned", lambda row: row.abandoned),
        ("cut off", lambda row: row.cut_off),
    )
    shown = [(name, get) for name, get in ends if is_full or any(get(row) for _, row in rows)]
    yield Grid(
        ("by", "stratum", "drawn", "trained", *(name for name, _ in shown), "kept", "reward", "drift"),
        tuple(
            (
                kind,
                one_line(row.stratum, 28),
                f"{row.drawn:,}",
                f"{row.trained:,}",
                *(f"{get(row):,}" for _, get in shown),
                percent(row.trained_share),
                number(row.mean_reward),
                signed(drift.get(row.stratum)) if kind == "difficulty" else "",
            )
            for kind, row in rows
        ),
        left=2,
    )
    missing = ", ".join(name for name, get in ends if not any(get(row) for _, row in rows))
    if missing:
        yield f"No group was {missing.replace(', ', ' or ')}."
    yield (
        "filtered: turned away by a rule on the data; abandoned: could not be finished; kept: trained of those decided; cut "
        "off: open when the log ends, or closed by the end of the run; drift: groups trained so many places later than "
        "their turn."
    )
    if report.order.strata:
        yield Grid(
            ("mix by difficulty", "offered", "trained", "furthest behind", "furthest ahead"),
            tuple(
                (
                    one_line(row.difficulty, 30),
                    percent(row.drawn_share),
                    percent(row.trained_share),
                    signed(row.max_drift),
                    signed(row.min_drift),
                )
                for row in report.order.strata
            ),
        )
        yield from (f"ALARM {alarm}" for alarm in report.order.alarms)
    rejections = report.strata.rejections if is_full else report.strata.rejections[:_FEW]
    if rejections:
        yield Grid(
            ("rejected as", "reason", "difficulty", "groups", "mean tokens", "mean duration", "oldest lag"),
            tuple(
                (
                    row.state,
                    one_line(row.reason, 60 if is_full else 32),
                    one_line(row.difficulty, 16),
                    f"{row.groups:,}",
                    number(row.mean_tokens),
                    duration(row.mean_duration_s),
                    number(row.oldest_lag),
                )
                for row in rejections
            ),
            left=3,
        )


def _stages(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    stages = report.stages
    yield Grid(
        ("stage", "passed", "inside", "mean", "p50", "p95"),
        tuple(
            (
                row.stage,
                f"{row.left:,} {row.unit}",
                str(row.inside),
                duration(row.mean_s),
                duration(row.p50_s),
                duration(row.p95_s),
            )
            for row in stages.waits
        ),
    )
    yield Grid(
        ("Little's law", "λ", "W", "L", "λW", "residual", ""),
        tuple(
            (
                row.stage,
                f"{number(row.arrival_rate)} /s",
                duration(row.mean_wait_s),
                number(row.measured),
                number(row.expected),
                percent(row.residual),
                "" if row.is_stationary else "not stationary",
            )
            for row in stages.little
        ),
    )
    yield (
        "inside: still there at the end. L is the counted mean number inside, λ arrivals, W the mean stay of what left, "
        f"from {duration(stages.window_s[0])} to {duration(stages.window_s[1])}; residual: (L - λW) / L. A stay that only "
        "partly lies in that time counts in L by its part and in λW whole or not at all, so a few long stays, as of "
        "publication, leave a residual; not stationary: arrivals and departures differ by more than 5%. Quantiles are exact."
    )


def _flow(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    flow, stages = report.flow, report.stages
    yield Grid(
        ("flow", "", ""),
        (
            ("λ, groups ready to train", with_unit(flow.arrival_rate, "groups/s"), ""),
            ("μ, what the trainer could take", with_unit(flow.trainer_capacity, "groups/s"), "while it works"),
            ("trainer at work", duration(flow.trainer_busy_s), f"without work {percent(flow.starvation)} of the time"),
            (
                "groups waiting to train",
                with_unit(flow.backlog_end, "groups"),
                f"last third of the run; first third {number(flow.backlog_start)}",
            ),
            (
                "their wait",
                f"{duration(stages.queue_age_p50_s)}",
                f"median; 95% quantile {duration(stages.queue_age_p95_s)}",
            ),
            ("sampled", with_unit(flow.generated_rate, "tokens/s"), "every purpose"),
            (
                "trained",
                with_unit(flow.trained_rate, "tokens/s"),
                f"{number(flow.signal_rate)} of them with an advantage other than 0",
            ),
            (
                "CPU of environments",
                duration(flow.environment_cpu_s),
                f"{percent(flow.environment_share)} of the cores",
            ),
            (
                "engine paused for new weights",
                duration(flow.engine_pause_s),
                f"{flow.rebuilt_tokens:,} cache entries computed again",
            ),
        ),
        left=3,
    )
    yield flow.verdict
    yield (
        f"each publication kept generation from going on for {percent(report.updates.standstill_share)} of its update "
        "(loading, canary, switch; computing caches again comes on top)"
    )
    turns = report.turns
    if turns.number:
        yield (
            f"shared devices: {turns.number} turns of the trainer, {duration(turns.held_s)} in all "
            f"({percent(ratio(turns.held_s, flow.wall_s))} of the run), {duration(turns.switch_s)} of switching; "
            f"{number(turns.running / turns.number)} sequences stood still in mid-generation each time, and the engine "
            f"computed {turns.computed_tokens:,} tokens meanwhile"
        )


def _updates(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    updates = report.updates
    if not updates.updates:
        yield f"{ABSENT} no update was made"
        return
    yield Grid(
        ("update", "reward", "lag", "mean lag", "span", "ESS", "weight", "diff", "KL to last", "train", "publish"),
        tuple(
            (
                str(item.update),
                number(item.mean_reward),
                number(item.oldest_lag),
                number(item.mean_lag),
                number(item.max_span),
                number(item.ess_fraction),
                number(item.mean_weight),
                number(item.mismatch, 2),
                number(item.kl_to_previous, 2),
                duration(item.train_s),
                duration(item.publish_s),
            )
            for item in thinned(updates.updates, None if is_full else 8)
        ),
    )
    yield (
        f"engine/trainer log-prob difference at most {number(updates.largest_mismatch, 2)} nats on fresh tokens; lag at "
        f"most {number(updates.largest_lag)} updates (p95 {number(updates.lag_p95)}, token-weighted mean "
        f"{number(updates.mean_lag)}); span at most {number(updates.largest_span)}; smallest ESS fraction "
        f"{number(updates.smallest_ess)}; {number(updates.rows_per_episode)} rows per episode"
    )
    if updates.old_cache_tokens:
        yield (
            f"{updates.old_cache_tokens:,} trained tokens saw a cache that an older version had a part in; those of the "
            f"base version differ by up to {number(updates.old_cache_difference, 2)} nats and are held to no bound"
        )
    yield (
        "lag: updates between the oldest trained token and the gradient; span: versions inside one trajectory; ESS: "
        "effective sample size of raw sequence weights over their count; weight: their mean; diff: largest log-prob "
        "difference of engine and trainer under the same weights, nats; KL to last: of the new policy to the one before, "
        "nats per token; train: selection to optimizer step; publish: from there until the engine serves it."
    )


def _workers(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    workers = report.workers
    if workers.workers:
        states = tuple(workers.workers[0].states_ns)
        yield Grid(
            ("worker", *states, "sums to wall time"),
            tuple(
                (
                    one_line(row.worker),
                    *(percent(row.shares.get(state)) for state in states),
                    "yes" if row.sums_to_wall else "NO",
                )
                for row in workers.workers
            ),
        )
        yield (
            f"Shares of {duration(workers.wall_ns / 1e9)}. busy: at least one call is out; sync: hands weights over; "
            "unreported: before its first word."
        )
    if workers.copies:
        rows = [
            (one_line(c.role), one_line(c.policy_id), one_line(c.worker), one_line(c.device), size(c.size_bytes))
            for c in workers.copies
        ]
        total = ("all copies", "", "", "", size(workers.weights_bytes))
        yield Grid(("copy of weights", "policy", "worker", "device", "size"), (*rows, total), left=4)


def _limits(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    if not report.limits.counts:
        yield f"none was reached in {report.limits.episodes:,} episodes"
        return
    yield Grid(
        ("set by", "limit", "count", "unit"),
        tuple((row.kind, one_line(row.name), f"{row.count:,}", row.unit) for row in report.limits.counts),
        left=2,
    )
    yield f"in {report.limits.episodes:,} sealed episodes of every purpose"


def _claims(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    found = report.claims
    yield Grid(
        ("purpose", "claim", "verdict success", "verdict partial", "verdict failure", "no verdict", "disagree"),
        tuple(
            (
                row.purpose,
                one_line(row.claim),
                f"{row.success:,}",
                f"{row.partial:,}",
                f"{row.failure:,}",
                f"{row.absent:,}",
                f"{row.disagreements:,}",
            )
            for row in found.rows
        ),
        left=2,
    )
    yield (
        f"{found.disagreements:,} of {found.compared:,} claims of success or failure differ from the verdict "
        f"({percent(found.rate)}). Only the verdict becomes a reward; the claim is what the environment can tell without "
        "knowing the answer."
    )
