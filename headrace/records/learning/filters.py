"""What never reaches an update, or reaches it with another reward."""

from typing import Literal

import msgspec

from headrace.errors import ConfigError


class Filters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What never reaches an update, or reaches it with another reward. Each removal is recorded by stratum.

    Attributes:
        dynamic_sampling: groups whose rewards differ by at most `tolerance` are rejected, and others drawn instead.
        tolerance: in reward units.
        overlong: members that ran into a limit: `keep`; `mask` out of loss and baseline alike; `shape`: a penalty that
            rises over the last `overlong_buffer` tokens of the episode's budget, for every member.
        overlong_buffer: tokens.
        overlong_penalty: at the full budget, in reward units.
    """

    dynamic_sampling: bool = False
    tolerance: float = 1e-6
    overlong: Literal["keep", "mask", "shape"] = "keep"
    overlong_buffer: int = 64
    overlong_penalty: float = 1.0


def check_filters(filters: Filters) -> None:
    """Raises ConfigError for a number out of its bounds."""
    if filters.overlong_buffer < 1 or filters.tolerance < 0:
        raise ConfigError(
            f"algorithm.filters: overlong_buffer is {filters.overlong_buffer}, at least 1 is needed; tolerance is "
            f"{filters.tolerance}, at least 0"
        )
