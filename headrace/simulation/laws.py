"""Distributions of lengths and durations as data, each a map from a standard normal score to a value.

Invariant: `law.at(z)` is non-decreasing in z, and with z ~ N(0, 1) it has the law's distribution. So any law can be
correlated within a group: z = sqrt(c) * (prompt effect) + sqrt(1 - c) * (sample noise) keeps the distribution and gives
members of one prompt the correlation c of their scores. For the log-normal this is exactly a prompt factor times a
sample factor.
"""

import bisect
import itertools
import math
from statistics import NormalDist

import msgspec

from headrace.records.streams import Streams

_NORMAL = NormalDist()


def upper_tail(z: float) -> float:
    """P(N(0, 1) > z), exact far into the tail."""
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def score_of(probability: float) -> float:
    """The z that a standard normal stays below with this probability; infinite at 0 and 1."""
    if not 0.0 < probability < 1.0:
        return math.copysign(math.inf, probability - 0.5)
    return _NORMAL.inv_cdf(probability)


class _Law(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="law"):
    """Base of all laws; in TOML `{law = "lognormal", mean = 60.0, sigma = 0.6}`."""

    def at(self, z: float) -> float:
        """The value at a standard normal score."""
        raise NotImplementedError

    @property
    def mean(self) -> float:
        """The expected value."""
        raise NotImplementedError


class Constant(_Law, frozen=True, tag="constant"):
    """Always the same.

    Attributes:
        value: >= 0.
    """

    value: float

    def __post_init__(self) -> None:
        _require(self.value >= 0.0, f"constant: value is {self.value}; it must be >= 0")

    def at(self, z: float) -> float:
        return self.value

    @property
    def mean(self) -> float:
        return self.value


class LogNormal(_Law, frozen=True, tag="lognormal"):
    """exp of a normal with standard deviation sigma, cut off at `cap`.

    Attributes:
        sigma: standard deviation of the logarithm, >= 0.
        mean_uncut: expected value before the cut; give this or `median`.
        median: exp of the normal's mean.
        cap: larger values become this one.
    """

    sigma: float
    mean_uncut: float | None = msgspec.field(default=None, name="mean")
    median: float | None = None
    cap: float | None = None

    def __post_init__(self) -> None:
        given = [value for value in (self.mean_uncut, self.median) if value is not None]
        _require(
            len(given) == 1 and given[0] > 0.0 and self.sigma >= 0.0,
            f"lognormal: mean {self.mean_uncut}, median {self.median}, sigma {self.sigma}; give one of the first two, "
            "positive, and sigma >= 0",
        )
        _require(self.cap is None or self.cap > 0.0, f"lognormal: cap is {self.cap}; it must be positive")

    @property
    def _mu(self) -> float:
        if self.median is not None:
            return math.log(self.median)
        assert self.mean_uncut is not None
        return math.log(self.mean_uncut) - self.sigma**2 / 2

    def at(self, z: float) -> float:
        value = math.exp(self._mu + self.sigma * z)
        return value if self.cap is None else min(value, self.cap)

    @property
    def mean(self) -> float:
        full = math.exp(self._mu + self.sigma**2 / 2)
        if self.cap is None:
            return full
        if self.sigma == 0.0:
            return min(full, self.cap)
        edge = (math.log(self.cap) - self._mu) / self.sigma
        return full * upper_tail(self.sigma - edge) + self.cap * upper_tail(edge)


class Exponential(_Law, frozen=True, tag="exponential"):
    """Memoryless.

    Attributes:
        scale: the expected value, >= 0.
    """

    scale: float = msgspec.field(name="mean")

    def __post_init__(self) -> None:
        _require(self.scale >= 0.0, f"exponential: mean is {self.scale}; it must be >= 0")

    def at(self, z: float) -> float:
        return -self.scale * math.log(max(upper_tail(z), 5e-324))

    @property
    def mean(self) -> float:
        return self.scale


class TwoPoint(_Law, frozen=True, tag="two_point"):
    """One of two values.

    Attributes:
        low: the smaller value, >= 0.
        high: the larger value.
        share_high: probability of the larger one.
    """

    low: float
    high: float
    share_high: float

    def __post_init__(self) -> None:
        _require(
            0.0 <= self.low <= self.high and 0.0 <= self.share_high <= 1.0,
            f"two_point: low {self.low}, high {self.high}, share_high {self.share_high}; 0 <= low <= high, share in [0, 1]",
        )

    def at(self, z: float) -> float:
        return self.high if upper_tail(z) < self.share_high else self.low

    @property
    def mean(self) -> float:
        return self.low + self.share_high * (self.high - self.low)


class Quantiles(_Law, frozen=True, tag="quantiles"):
    """A measured distribution, linear between its quantiles.

    Attributes:
        points: (probability, value) pairs, both rising, from probability 0 to 1.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        is_rising = all(p < q and x <= y for (p, x), (q, y) in itertools.pairwise(self.points))
        _require(
            len(self.points) >= 2
            and (self.points[0][0], self.points[-1][0]) == (0.0, 1.0)
            and self.points[0][1] >= 0.0
            and is_rising,
            f"quantiles: points {self.points} must rise from probability 0 to 1 with values >= 0",
        )

    def at(self, z: float) -> float:
        probability = 1.0 - upper_tail(z)
        index = bisect.bisect_right(self.points, (probability, math.inf), 1, len(self.points) - 1)
        (p, x), (q, y) = self.points[index - 1], self.points[index]
        return x + (y - x) * (probability - p) / (q - p)

    @property
    def mean(self) -> float:
        return sum((q - p) * (x + y) / 2 for (p, x), (q, y) in itertools.pairwise(self.points))


class TruncatedNormal(_Law, frozen=True, tag="normal"):
    """A Gaussian conditioned on being at least `low`.

    Attributes:
        centre: mean of the Gaussian before it is conditioned.
        sigma: its standard deviation, > 0.
        low: no value lies below, >= 0.
    """

    centre: float = msgspec.field(name="mean")
    sigma: float
    low: float = 0.0

    def __post_init__(self) -> None:
        _require(
            self.sigma > 0.0 and self.low >= 0.0 and self.centre + 8 * self.sigma > self.low,
            f"normal: mean {self.centre}, sigma {self.sigma}, low {self.low}; sigma > 0, low >= 0 and within 8 sigma",
        )

    def at(self, z: float) -> float:
        # By the upper tail, which keeps its digits where the mass is: P(X > x) = P(Z > z) * P(X > low).
        tail = upper_tail(z) * upper_tail((self.low - self.centre) / self.sigma)
        return max(self.low, self.centre - self.sigma * score_of(max(tail, 5e-324)))

    @property
    def mean(self) -> float:
        edge = (self.low - self.centre) / self.sigma
        return self.centre + self.sigma * _NORMAL.pdf(edge) / upper_tail(edge)


Law = Constant | LogNormal | Exponential | TwoPoint | Quantiles | TruncatedNormal


def drawn(law: Law, streams: Streams, *names: str | int) -> float:
    """The value of a law at the first number of a named stream; what has one value is not drawn."""
    return law.value if isinstance(law, Constant) else law.at(float(streams.at(*names).standard_normal()))


def _require(is_met: bool, message: str) -> None:
    if not is_met:
        raise ValueError(message)
