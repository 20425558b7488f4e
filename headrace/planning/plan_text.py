"""The plan as text for a terminal, and as JSON."""

from pathlib import Path

import msgspec

from headrace.planning.whatif import REPLAY_SEEDS, Figures, Margins, Plan

_FREE_SWITCH = "  colocate_async is counted without the cost of switching: a log of separate devices does not tell it."


def render_plan(plan: Plan) -> str:
    """The text: fit, replay against the run, demands, sweep, recommendation with its uncertainty."""
    fitted, workload = plan.fitted, plan.fitted.scenario.workload
    schedule = fitted.config.schedule
    strata = ", ".join(f"{s.share:.0%} {s.name} (x{s.scale:.2f})" for s in workload.strata)
    lines = [
        f"Plan of run {fitted.name}: {schedule.mode}, credit {schedule.credit_batches}, batches of "
        f"{schedule.batch_groups} x {schedule.group_size}. Simulated scheduling on measured durations, not other hardware.",
        "",
        f"Fitted: {workload.source.removeprefix('fitted from ')}",
        f"  {workload.mean_tokens:.0f} tokens per {workload.tokens_of}, {workload.turns.mean:.2f} turns an episode; "
        f"{strata}; correlation in a group {workload.group_correlation:.2f}",
        f"  engine {_rates(plan)} tokens/s at full slots ({fitted.scenario.engine.slots}); between turns "
        f"{workload.tool_s.mean:.3g} s, opening {workload.open_s.mean:.3g} s, grading {workload.grade_s.mean:.3g} s",
        *(f"  note: {note}" for note in fitted.notes),
        "",
        f"{'':<16}{'groups/ks':>12}{'idle':>8}{'token lag':>11}{'oldest lag':>12}",
        _row("measured", plan.measured),
        _row("predicted", plan.replayed),
        _margins(plan.margins),
        f"{'difference':<16}{plan.replay_error:>+12.1%}{_points(plan)}",
        _verdict(plan),
        "",
        "Seconds that one update needs of each resource: "
        + ", ".join(f"{name} {seconds:.2f}" for name, seconds in plan.demands.table().items() if seconds > 0),
        f"Bottleneck now: {plan.bottleneck}",
        "",
        f"{'layout':<46}{'groups/ks':>10}{'+-':>6}{'idle':>7}{'token lag':>11}  bottleneck",
    ]
    for prediction in sorted(plan.predictions, key=lambda item: -item.figures.groups_per_ks):
        figures = prediction.figures
        lines.append(
            f"{prediction.layout.name:<46}{figures.groups_per_ks:>10.0f}{figures.spread:>6.0%}{figures.trainer_idle:>7.0%}"
            f"{figures.token_lag:>11.2f}  {prediction.bottleneck}"
        )
    return "\n".join([*lines, "", *_recommendation(plan)])


def write_plan(plan: Plan, path: Path) -> None:
    """Writes the whole plan, fitted laws included, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=1))


def _recommendation(plan: Plan) -> list[str]:
    chosen = plan.recommended
    gain = _gain(chosen.figures, plan)
    overrides = [
        f"schedule.{name}={value}"
        for name, value in chosen.layout.schedule.items()
        if name in ("mode", "credit_batches")
    ]
    if chosen.layout.slots != 1.0:
        overrides.append(f"inference.options.slots={round(plan.fitted.scenario.engine.slots * chosen.layout.slots)}")
    more = [p for p in plan.predictions if p.layout.engines * p.layout.trainers > 1]
    best = max(more, key=lambda p: p.figures.groups_per_ks)
    bound = abs(plan.replay_error) + chosen.figures.spread
    return [
        f"Recommended: {chosen.layout.name} ({gain:+.0%} groups/ks against this run as it is, both without evaluations)",
        f"  {' '.join(overrides)}",
        f"  Believe it to about +-{bound:.0%}: the replay of the run itself is off by {plan.replay_error:+.1%}, seeds "
        f"spread by {chosen.figures.spread:.0%}.",
        "  Not in this figure: engine and trainer that slow each other on shared cores, lengths that training changes.",
        f"  With more devices: {best.layout.name} gives {_gain(best.figures, plan):+.0%}.",
        *([] if plan.fitted.scenario.switch_s else [_FREE_SWITCH]),
    ]


def _gain(figures: Figures, plan: Plan) -> float:
    return figures.groups_per_ks / plan.plain.groups_per_ks - 1.0


def _rates(plan: Plan) -> str:
    engine = plan.fitted.scenario.engine
    return f"{engine.request_rates()[-1] * engine.slots:.0f}"


def _row(name: str, figures: Figures) -> str:
    return (
        f"{name:<16}{figures.groups_per_ks:>12.1f}{figures.trainer_idle:>8.1%}{figures.token_lag:>11.2f}"
        f"{figures.oldest_lag:>12.2f}"
    )


def _margins(margins: Margins) -> str:
    return (
        f"{'  one run, 95%':<16}{f'+-{margins.groups_per_ks:.1f}':>12}{f'+-{margins.trainer_idle:.1%}':>8}"
        f"{f'+-{margins.token_lag:.2f}':>11}{f'+-{margins.oldest_lag:.2f}':>12}"
    )


def _verdict(plan: Plan) -> str:
    """Whether chance alone explains the difference."""
    if not plan.outside:
        return f"The measured run lies within what {len(REPLAY_SEEDS)} replays with other draws spread to, in every figure."
    names = ", ".join(name.replace("_", " ") for name in plan.outside)
    return f"Other draws do not explain the difference in {names}: there the fit leaves something out."


def _points(plan: Plan) -> str:
    measured, replayed = plan.measured, plan.replayed
    return (
        f"{replayed.trainer_idle - measured.trainer_idle:>+8.1%}{replayed.token_lag - measured.token_lag:>+11.2f}"
        f"{replayed.oldest_lag - measured.oldest_lag:>+12.2f}"
    )
