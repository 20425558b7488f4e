"""The learning signal as text: what was chosen, what it supposes, and what it did by difficulty.

Invariant: a run that trains on data of another version without any correction says so in words.
"""

from collections.abc import Iterator

from headrace.algorithms.corrections import FACTS
from headrace.config import AlgorithmSection
from headrace.records.learning.choice import tag_of
from headrace.records.learning.corrections import MASKING
from headrace.reporting.folds.signal import LearningSignal
from headrace.reporting.grids import Grid
from headrace.reporting.plaintext import one_line
from headrace.reporting.quantities import number, percent, ratio
from headrace.reporting.report import RunReport


def learning(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    """Choices, their support conditions, and figures by difficulty."""
    if report.facts.config is not None:
        yield from _choices(report.facts.config.algorithm)
    signal = report.signal
    if signal.strata:
        yield Grid(
            (
                "difficulty",
                "rows",
                "ESS",
                "max weight",
                "k-hat",
                "KL k1",
                "KL k3",
                "kept",
                "clip",
                "out",
                "dual",
            ),
            tuple(
                (
                    one_line(row.difficulty, 30),
                    f"{row.rows:,}",
                    number(row.smallest_ess),
                    number(row.largest_weight),
                    number(row.largest_k_hat),
                    number(row.kl_k1, 2),
                    number(row.kl_k3, 2),
                    percent(ratio(row.counts.kept, row.counts.tokens)),
                    percent(ratio(row.counts.branch_binds, row.counts.tokens)),
                    percent(ratio(row.counts.ratio_outside, row.counts.tokens)),
                    percent(ratio(row.counts.dual, row.counts.tokens)),
                )
                for row in signal.strata
            ),
        )
        yield (
            "ESS: smallest of an update, as a share; k-hat: Pareto tail of the weights, above 0.7 no estimate is usable, "
            "though where ESS is 1.000 the weights hardly differ and their tail decides nothing; KL: of "
            "behaviour to trainer; kept: tokens that no correction removed; clip: where the clipped branch decides; "
            "out: ratio outside the clip range; dual: where the dual clip decides."
        )
        yield from _gate(signal)
    yield from _weights(report)
    yield from _replay(report)
    if signal.removed:
        yield Grid(
            ("filter", "difficulty", "members"),
            tuple((row.filter, one_line(row.difficulty, 30), f"{row.members:,}") for row in signal.removed),
            left=2,
        )


def _gate(signal: LearningSignal) -> Iterator[str | Grid]:
    if not signal.judged:
        return
    if not signal.gate:
        yield f"statistical gate: {signal.judged} batches judged, none left a bound"
        return
    yield Grid(
        ("difficulty", "rows judged", "changed by the gate", "tokens outside the clip"),
        tuple(
            (one_line(row.difficulty, 30), f"{row.rows:,}", f"{row.gated:,}", percent(row.outside))
            for row in signal.strata
        ),
    )
    yield Grid(
        ("statistical gate", "decision", "batches", "worst", "bound"),
        tuple(
            (row.figure, row.decision, f"{row.batches:,}", number(row.worst), number(row.bound)) for row in signal.gate
        ),
        left=2,
    )


def _weights(report: RunReport) -> Iterator[str | Grid]:
    """Weights by acceptance, as they stand after the newest batch."""
    weighed, config = report.signal.weights, report.facts.config
    if weighed is None or config is None:
        return
    cap = config.algorithm.stratum_weights.cap
    yield Grid(
        ("difficulty", "offered", "accepted", "row weight", "cut at the cap"),
        tuple(
            (
                one_line(row.difficulty, 30),
                f"{row.offered:,}",
                f"{row.accepted:,}",
                number(row.weight),
                "yes" if row.is_capped else "no",
            )
            for row in weighed.strata
        ),
    )
    ess = f"ESS {number(weighed.ess_fraction)}, smallest {number(report.signal.smallest_weight_ess)}"
    yield f"weights by acceptance, update {weighed.update}: cap {number(cap)}; of these weights alone {ess}"
    if weighed.refused:
        names = ", ".join(one_line(name, 30) for name in weighed.refused)
        yield f"No weight was used: of {names} nothing was accepted, and no weight brings back what never trains."


def _replay(report: RunReport) -> Iterator[str | Grid]:
    replay, config = report.signal.replay, report.facts.config
    if replay is None or config is None:
        return
    yield (
        f"replay {config.algorithm.replay.kind}: {percent(replay.share)} of the rows trained before, in {replay.groups:,} "
        f"uses of a group, at most use {replay.largest_use}; lag mean {number(replay.mean_lag)}, oldest "
        f"{replay.oldest_lag}; of replayed rows alone smallest ESS {number(replay.smallest_ess)}, largest weight "
        f"{number(replay.largest_weight)}"
    )
    yield (
        "Replayed rows carry the log-probs recorded when they were sampled and the weight of the corrections above. What "
        "the old version hardly ever sampled is still hardly ever there, and no weight brings it back."
    )
    if replay.retired:
        yield "replayed no more: " + ", ".join(f"{count:,} ({reason})" for reason, count in replay.retired.items())


def _choices(algorithm: AlgorithmSection) -> Iterator[str | Grid]:
    yield (
        f"advantage {algorithm.advantage}, loss {tag_of(algorithm.loss)}, anchor {algorithm.anchor}, "
        f"aggregation {algorithm.aggregation}"
    )
    if algorithm.anchor == "behavior":
        yield "The loss's own ratio is against the version that sampled each token; no second weight stands on top of it."
    if not algorithm.corrections:
        return
    yield Grid(
        ("correction", "supposes", "what stays wrong", "removes", "denominator"),
        tuple(
            (
                tag_of(item),
                FACTS[tag_of(item)].support,
                FACTS[tag_of(item)].bias,
                FACTS[tag_of(item)].removes,
                item.denominator if isinstance(item, MASKING) else "unchanged",
            )
            for item in algorithm.corrections
        ),
        left=5,
    )
    if any(tag_of(item) == "none" for item in algorithm.corrections):
        yield "No correction, by choice: tokens of another version count as if this policy had sampled them."
