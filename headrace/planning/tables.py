"""The figures of the rollout experiment as rows of a table, the same for terminal, page, JSON and Parquet."""

from collections.abc import Sequence

from headrace.planning.experiment import Measured
from headrace.planning.frontier import REFERENCES, covering, frontier
from headrace.planning.rollout import CURVE, LOSES, PUBLISHED_THROUGHPUT, RULES

Value = str | float | int | None
COLUMNS: tuple[tuple[str, str], ...] = (
    ("cell", "row"),
    ("makespan_s", "virtual seconds from version 0 to the last version"),
    ("completed", "groups whose members all ended, trained or not"),
    ("accepted", "groups that trained"),
    ("samples", "members with a reward in those"),
    ("groups_per_ks", "groups trained per 1000 s over the whole run"),
    ("steady_per_ks", "the same over the last two thirds of the updates"),
    ("fluid_fraction", "steady throughput over the fluid bound that keeps all tasks"),
    ("trainer_idle", "share of time in which the trainer had nothing to do, last two thirds"),
    ("lag_mean", "lag of the oldest token of a trained group, updates"),
    ("lag_max", "the largest"),
    ("token_lag_mean", "lag of every trained segment, token-weighted"),
    ("token_lag_p95", "its 95% quantile"),
    ("span_max", "versions that went by while a group was generated, largest"),
    ("wait_mean", "versions between a group's last token and its update"),
    ("wait_max", "the largest"),
    ("slot_waste", "share of busy slot time whose tokens did not train"),
    ("rejected", "groups that a rule ended"),
)
"""(name, meaning) of every column; columns by difficulty follow them."""


def row_of(cell: Measured) -> dict[str, Value]:
    """One row."""
    outcome, lags = cell.outcome, cell.outcome.lags
    row: dict[str, Value] = {
        "section": cell.section,
        "cell": cell.name,
        "x": cell.x,
        "makespan_s": outcome.makespan_s,
        "completed": outcome.completed_groups,
        "accepted": outcome.accepted_groups,
        "samples": outcome.accepted_samples,
        "groups_per_ks": outcome.groups_per_ks,
        "steady_per_ks": outcome.steady_groups_per_ks,
        "fluid_fraction": cell.fluid_fraction,
        "trainer_idle": outcome.steady_trainer_idle,
        "lag_mean": lags.oldest_mean,
        "lag_max": lags.oldest_max,
        "token_lag_mean": lags.token_mean,
        "token_lag_p95": lags.token_p95,
        "span_max": lags.span_max,
        "wait_mean": lags.wait_mean,
        "wait_max": lags.wait_max,
        "slot_waste": outcome.slot_waste,
        "rejected": outcome.rejected_groups,
        "worst_identity_residual": outcome.identities.worst,
    }
    for name, stratum in outcome.strata.items():
        row[f"{name}: drawn"] = stratum.drawn
        row[f"{name}: rejection_rate"] = stratum.rejection_rate
        row[f"{name}: retention"] = stratum.retention
        row[f"{name}: share_trained"] = stratum.trained_share
    return row


def text_table(cells: Sequence[Measured]) -> str:
    """One section for a terminal of 150 columns."""
    width = max(24, *(len(_label(cell)) for cell in cells)) + 2
    head = (
        f"{'':<{width}}{'makespan':>9}{'done':>6}{'trained':>8}{'steady/ks':>10}{'bound':>7}{'idle':>6}"
        f"{'lag':>9}{'token lag':>10}{'p95':>5}{'wait':>8}{'waste':>7}  rejected of decided"
    )
    lines = [head, "-" * len(head)]
    for cell in cells:
        outcome, lags = cell.outcome, cell.outcome.lags
        strata = ", ".join(f"{name} {stratum.rejection_rate:.0%}" for name, stratum in outcome.strata.items())
        waste = "" if outcome.slot_waste is None else f"{outcome.slot_waste:.0%}"
        lag = f"{lags.oldest_mean:.1f}/{lags.oldest_max}"
        wait = f"{lags.wait_mean:.1f}/{lags.wait_max}"
        lines.append(
            f"{_label(cell):<{width}}{outcome.makespan_s:>9.0f}{outcome.completed_groups:>6}{outcome.accepted_groups:>8}"
            f"{outcome.steady_groups_per_ks:>10.1f}{_bound_share(cell):>7}{outcome.steady_trainer_idle:>6.0%}"
            f"{lag:>9}{lags.token_mean:>10.2f}{lags.token_p95:>5}{wait:>8}{waste:>7}  {strata}"
        )
    return "\n".join(lines)


def curve_table(cells: Sequence[Measured]) -> list[dict[str, Value]]:
    """The published curve beside the simulated one."""
    chosen = [cell for cell in cells if cell.section == CURVE]
    return [
        {
            "allowed lag": cell.name,
            "published": published,
            "simulated": cell.outcome.groups_per_ks / chosen[0].outcome.groups_per_ks,
            "difference": cell.outcome.groups_per_ks / chosen[0].outcome.groups_per_ks / published - 1.0,
        }
        for cell, published in zip(chosen, PUBLISHED_THROUGHPUT, strict=False)
    ]


def frontier_table(cells: Sequence[Measured]) -> list[dict[str, Value]]:
    """Which rules nothing dominates, and which rule covers each of those in use elsewhere."""
    chosen = [cell for cell in cells if cell.section == RULES]
    edge = {cell.name for cell in frontier(chosen)}
    rows: list[dict[str, Value]] = [
        {
            "rule": cell.name,
            "steady_per_ks": cell.outcome.steady_groups_per_ks,
            "token_lag_p95": cell.outcome.lags.token_p95,
            "lag_max": cell.outcome.lags.oldest_max,
            "least retention": min(stratum.retention for stratum in cell.outcome.strata.values()),
            "is": "on the frontier" if cell.name in edge else "dominated",
        }
        for cell in chosen
    ]
    return rows


def reference_table(cells: Sequence[Measured]) -> list[dict[str, Value]]:
    """Rules in use elsewhere, their stated figures on the ten-times experiment, and the rule of ours that covers each."""
    chosen = [cell for cell in cells if cell.section == RULES and "long" in cell.outcome.strata]
    covers = [(reference, covering(reference, chosen)) for reference in REFERENCES] if chosen else []
    return [
        {
            "reference": reference.rule,
            "groups_per_ks": reference.groups_per_ks,
            "lag_max": reference.max_lag,
            "long share": reference.long_share,
            "covered by": "none" if cell is None else cell.name,
        }
        for reference, cell in covers
    ]


def losses(cells: Sequence[Measured]) -> list[str]:
    """One sentence for each configuration of the comparison in which asynchronous training is slower."""
    chosen = [cell for cell in cells if cell.section == LOSES]
    return [
        f"{slow.name.removesuffix(': asynchronous')}: asynchronous takes "
        f"{slow.outcome.makespan_s / fast.outcome.makespan_s - 1:+.0%} of the synchronous time"
        for fast, slow in zip(chosen[::2], chosen[1::2], strict=True)
    ]


def _bound_share(cell: Measured) -> str:
    """Share of the fluid bound; more than all of it is no pace that lasts, and is marked."""
    share = f"{cell.fluid_fraction:.0%}"
    return f"{share}*" if cell.fluid_fraction > 1.0 else share


def _label(cell: Measured) -> str:
    return cell.name if cell.x is None or cell.section == CURVE else f"{cell.name}, {cell.x:g}"
