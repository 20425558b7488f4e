"""The KL term: how the distance to the reference model is estimated, and where it enters."""

from typing import Literal

import msgspec

from headrace.errors import ConfigError


class Kl(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Distance to the reference model. A coefficient above 0 makes the reference exist.

    Attributes:
        coefficient: factor; 0 is no reference model at all.
        estimator: `k1` log(p/q); `k2` half its square; `k3` q/p - 1 + log(p/q).
        gradient: `own`: of the estimator itself; `straight_through`: the estimator's value with the gradient of k2.
        place: `loss`: a term of the loss; `reward`: subtracted from rewards before advantages are made.
        importance: weighs each token by policy over behaviour, which keeps value and gradient right on data of another
            version.
    """

    coefficient: float = 0.0
    estimator: Literal["k1", "k2", "k3"] = "k3"
    gradient: Literal["own", "straight_through"] = "own"
    place: Literal["loss", "reward"] = "loss"
    importance: bool = False


def check_kl(kl: Kl) -> None:
    """Raises ConfigError for a KL term whose gradient or place has no meaning."""
    if not kl.coefficient >= 0:
        raise ConfigError(f"algorithm.kl.coefficient is {kl.coefficient}; it must be at least 0")
    if kl.place == "reward" and (kl.gradient == "straight_through" or kl.importance):
        raise ConfigError(
            "algorithm.kl in the reward has no gradient of its own: leave `gradient` and `importance` out"
        )
    is_zero = kl.estimator == "k1" and kl.gradient == "own" and not kl.importance
    if kl.coefficient > 0 and kl.place == "loss" and is_zero:
        raise ConfigError(
            "algorithm.kl: k1 in the loss has an expected gradient of 0 and holds nothing; use k2, straight_through or "
            "importance, or put it in the reward"
        )
