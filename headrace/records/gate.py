"""The statistical gate: its bounds, and what it decided about a batch."""

from typing import Literal

import msgspec

GateAction = Literal["pass", "downweight", "mask", "reject"]


class Gate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bounds on the raw sequence weights of a batch, looked at after the lag filter. 0 turns a bound off.

    Attributes:
        action: what becomes of the fewest rows without which the batch holds its bounds: `pass` only records;
            `downweight` counts a row as much as the furthest one that is kept; `mask` gives it no weight; `reject` takes it
            out of baseline and denominators as well. A batch of which nothing would be left is masked.
        on_reject: `smaller`: the step runs without the rejected samples; `replace`: for each whole group's worth of them a
            ready group takes their place, the batch is judged once more, and what that rejects is not replaced again.
        max_p95: 95% quantile of the weights.
        max_p99: 99% quantile.
        max_weight: the largest.
        max_largest_share: share of the largest in their sum.
        max_outside: clip fraction `ratio_outside`: share of trained tokens whose ratio of policy to behaviour lies outside
            the clip distances, whatever the advantage.
        max_kl: k3 estimate of KL(behaviour, policy), nats per trained token.
        min_ess_share: effective sample size over the number of rows.
        max_mean_z: distance of the mean weight from 1 in standard errors, where it is off by more than 1%.
    """

    action: GateAction = "pass"
    on_reject: Literal["smaller", "replace"] = "smaller"
    max_p95: float = 0.0
    max_p99: float = 20.0
    max_weight: float = 0.0
    max_largest_share: float = 0.5
    max_outside: float = 0.3
    max_kl: float = 0.1
    min_ess_share: float = 0.2
    max_mean_z: float = 4.0


class Breach(msgspec.Struct, frozen=True):
    """A figure beyond its bound.

    Attributes:
        figure: its name.
        value: what it was.
        bound: what is allowed.
    """

    figure: str
    value: float
    bound: float


class StratumGated(msgspec.Struct, frozen=True):
    """What the gate did to the rows of one difficulty.

    Attributes:
        difficulty: stratum.
        rows: judged.
        affected: of those, down-weighted, masked or rejected.
        kept_weight: sum of the factors that it gave, over the rows: 1 where it changed nothing.
    """

    difficulty: str
    rows: int
    affected: int
    kept_weight: float


class BatchGated(msgspec.Struct, frozen=True, tag="batch_gated"):
    """The gate judged the selected rows, after scoring and before the plan.

    Attributes:
        update: number of the update.
        decision: what was done. `pass` beside breaches: the gate only records.
        breaches: figures beyond their bounds, in a fixed order; none for a batch that holds them.
        strata: by difficulty, in order of name.
    """

    update: int
    decision: GateAction
    breaches: tuple[Breach, ...]
    strata: tuple[StratumGated, ...]
