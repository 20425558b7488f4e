"""Corrections by name of what another version sampled, and which of them may stand together."""

from collections.abc import Sequence
from typing import Literal

from headrace.errors import ConfigError
from headrace.records.learning.choice import Choice, tag_of

Anchor = Literal["behavior", "old", "interpolated"]
Denominator = Literal["original", "kept"]


class NoCorrection(Choice, frozen=True, tag="none"):
    """Weight 1 whatever sampled the token: data of another version is treated as if it were on-policy, by choice."""


class TokenTis(Choice, frozen=True, tag="token_tis"):
    """min(w, bound) per token.

    Attributes:
        bound: largest weight.
    """

    bound: float = 2.0


class SequenceTis(Choice, frozen=True, tag="sequence_tis"):
    """min(product of w, bound) for all tokens of a sequence.

    Attributes:
        bound: largest weight.
    """

    bound: float = 2.0


class TokenMis(Choice, frozen=True, tag="token_mis"):
    """w per token, and no weight at all above the bound.

    Attributes:
        bound: largest weight that is kept.
        denominator: whether removed tokens still count.
    """

    bound: float = 2.0
    denominator: Denominator = "original"


class SequenceMis(Choice, frozen=True, tag="sequence_mis"):
    """Product of w for all tokens of a sequence, and no weight at all above the bound.

    Attributes:
        bound: largest weight that is kept.
        denominator: whether removed sequences still count.
    """

    bound: float = 3.0
    denominator: Denominator = "original"


class IcePop(Choice, frozen=True, tag="icepop"):
    """w per token inside [low, high], and nothing outside.

    Attributes:
        low: smallest weight that is kept.
        high: largest.
        denominator: whether removed tokens still count.
    """

    low: float = 0.5
    high: float = 5.0
    denominator: Denominator = "original"


class SequenceMaskTis(Choice, frozen=True, tag="sequence_mask_tis"):
    """Raw token weights in sequences whose geometric mean lies in [low, high]; nothing in the others.

    Attributes:
        low: smallest geometric mean that is kept.
        high: largest.
        denominator: whether removed sequences still count.
    """

    low: float = 0.999
    high: float = 1.002
    denominator: Denominator = "original"


class GeometricMask(Choice, frozen=True, tag="geometric_mask"):
    """Removes sequences whose geometric mean ratio lies outside [low, high], or that hold one impossible token.

    Attributes:
        low: smallest geometric mean that is kept.
        high: largest.
        veto: a sequence with a token ratio below it is removed: a mean over many tokens hides such a one.
        denominator: whether removed sequences still count.
    """

    low: float = 0.99
    high: float = 1.01
    veto: float | None = 1e-4
    denominator: Denominator = "original"


class TokenVeto(Choice, frozen=True, tag="token_veto"):
    """Removes sequences that hold a token of a ratio below the bound.

    Attributes:
        bound: smallest ratio.
        denominator: whether removed sequences still count.
    """

    bound: float = 1e-4
    denominator: Denominator = "original"


class Opsm(Choice, frozen=True, tag="opsm"):
    """Removes sequences of negative advantage whose mean log(behaviour / policy) exceeds the bound.

    Attributes:
        bound: largest mean, nats per token.
        denominator: whether removed sequences still count.
    """

    bound: float = 0.1
    denominator: Denominator = "original"


class M2po(Choice, frozen=True, tag="m2po"):
    """Removes the tokens of largest squared log-ratio until the mean of the rest lies below the bound.

    Attributes:
        bound: of the second moment over the batch.
        denominator: whether removed tokens still count.
    """

    bound: float = 0.04
    denominator: Denominator = "original"


Correction = (
    NoCorrection
    | TokenTis
    | SequenceTis
    | TokenMis
    | SequenceMis
    | IcePop
    | SequenceMaskTis
    | GeometricMask
    | TokenVeto
    | Opsm
    | M2po
)
WEIGHTING = (TokenTis, SequenceTis, TokenMis, SequenceMis, IcePop, SequenceMaskTis)
"""Corrections that multiply the loss by a ratio; a second ratio on top would count it twice."""
MASKING = (TokenMis, SequenceMis, IcePop, SequenceMaskTis, GeometricMask, TokenVeto, Opsm, M2po)
"""Corrections that remove tokens."""


def check_corrections(corrections: Sequence[Correction], anchor: Anchor) -> None:
    """Raises ConfigError for corrections that contradict each other or the anchor."""
    kinds = [tag_of(item) for item in corrections]
    if len(set(kinds)) != len(kinds):
        raise ConfigError(f"algorithm.corrections are {kinds}; each kind once")
    weighting = [tag_of(item) for item in corrections if isinstance(item, WEIGHTING)]
    if len(weighting) > 1:
        raise ConfigError(f"algorithm.corrections {weighting} both weigh by the ratio; keep one of them")
    if "none" in kinds and len(kinds) > 1:
        raise ConfigError(f"algorithm.corrections are {kinds}; `none` stands alone")
    if anchor == "behavior" and weighting:
        raise ConfigError(
            f"algorithm.corrections {weighting} with anchor behavior: the loss's own ratio is that weight already and would "
            'count twice; set algorithm.anchor = "old"'
        )
    if anchor != "behavior" and not kinds:
        raise ConfigError(
            f"algorithm.anchor is {anchor} without a correction: data of another version would count as on-policy; name a "
            'correction, or write corrections = [{ kind = "none" }]'
        )
