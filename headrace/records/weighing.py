"""Weights by stratum: what was accepted of each, and how much its rows count."""

from typing import Literal

import msgspec


class StratumWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much a row counts by the difficulty of its task.

    Attributes:
        kind: `none`, all alike; `inverse_acceptance`: 1 / acceptance of the stratum so far, over the mean of the batch.
            Accepted is what trained; offered is that and what staleness or the statistical gate ended. A stratum of which
            nothing was accepted yet refuses weights for the whole batch, and the record names it.
        cap: largest weight before the mean is taken out.
    """

    kind: Literal["none", "inverse_acceptance"] = "none"
    cap: float = 4.0


class StratumAcceptance(msgspec.Struct, frozen=True):
    """One difficulty, counted from the start of the run.

    Attributes:
        difficulty: stratum.
        offered: groups that trained or that a rule on staleness or weights ended.
        accepted: of those, the ones that trained, this batch's included.
        weight: of its rows in this batch; 1 where weights were refused.
        is_capped: whether the weight was cut.
    """

    difficulty: str
    offered: int
    accepted: int
    weight: float
    is_capped: bool


class StrataWeighed(msgspec.Struct, frozen=True, tag="strata_weighed"):
    """Rows were weighed by the acceptance of their stratum.

    Attributes:
        update: number of the update.
        strata: in order of name.
        refused: strata of which nothing was accepted: no weight brings them back, and none was used.
        ess_fraction: effective sample size of the weights alone over the accepted groups; None where they were refused.
    """

    update: int
    strata: tuple[StratumAcceptance, ...]
    refused: tuple[str, ...]
    ess_fraction: float | None
