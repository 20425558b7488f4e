"""Numbers as people read them, with units. An absent number is "–", never 0."""

import math
from collections.abc import Sequence

ABSENT = "–"


def number(value: float | None, digits: int = 3) -> str:
    """The value to so many significant digits, or the dash.

    Example: 1234567 gives "1,234,567", 0.01234 gives "0.0123", 3.1e-6 gives "3.1e-06".
    """
    if value is None or math.isnan(value):
        return ABSENT
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    size = abs(value)
    if size >= 10**digits:
        return f"{value:,.0f}"
    if size < 1e-3:
        return f"{value:.{max(0, digits - 2)}e}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(size)))}f}"


def percent(value: float | None, digits: int = 1) -> str:
    """A share as per cent: 0.1234 gives "12.3%"."""
    return ABSENT if value is None else f"{round(100 * value, digits) + 0.0:.{digits}f}%"


def duration(value_s: float | None) -> str:
    """Seconds in the unit that fits: 0.0042 gives "4.2 ms", 75 gives "1 min 15 s"."""
    if value_s is None:
        return ABSENT
    if value_s == 0:
        return "0 s"
    if value_s < 1:
        return f"{number(1e3 * value_s, 2)} ms"
    if value_s < 60:
        return f"{value_s:.3g} s"
    minutes, seconds = divmod(round(value_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def size(value_bytes: float | None) -> str:
    """Bytes in the unit that fits: 3500000 gives "3.34 MiB"."""
    if value_bytes is None:
        return ABSENT
    amount, unit = float(value_bytes), 0
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    while amount >= 1024 and unit < len(units) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.3g} {units[unit]}"


def quantile(values: Sequence[float], share: float) -> float | None:
    """Exact quantile, linear between order statistics; None of nothing.

    Example: the 0.5 quantile of (1, 2, 4, 8) is 3.
    """
    if not values:
        return None
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def mean(values: Sequence[float]) -> float | None:
    """Arithmetic mean; None of nothing."""
    return math.fsum(values) / len(values) if values else None


def ratio(part: float, whole: float) -> float | None:
    """Part over whole; None when the whole is 0."""
    return part / whole if whole else None
