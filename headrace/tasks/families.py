"""Which generators make the tasks, at which levels, and the default mix: arithmetic that a calculator helps with."""

from typing import Any

from headrace.config import Section


class FamilyOptions(Section, frozen=True):
    """One reasoning-gym generator with its levels.

    Attributes:
        generator: its name in reasoning-gym, and the family of its tasks.
        levels: generator parameters by the name of the difficulty.
        weight: share of the family among all, shared evenly by its levels.
    """

    generator: str
    levels: dict[str, dict[str, Any]]
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.levels:
            raise ValueError(f"tasks: {self.generator} has no levels")
        if not 0.0 < self.weight < float("inf"):
            raise ValueError(f"tasks: {self.generator} has weight {self.weight}; it must be positive and finite")


DEFAULT_FAMILIES = (
    FamilyOptions(
        generator="chain_sum",
        levels={
            "easy": {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 3},
            "medium": {"min_terms": 3, "max_terms": 3, "min_digits": 2, "max_digits": 4},
            "hard": {"min_terms": 4, "max_terms": 4, "min_digits": 3, "max_digits": 4},
        },
    ),
    FamilyOptions(
        generator="products",
        levels={
            "easy": {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2},
            "medium": {"min_terms": 2, "max_terms": 2, "min_digits": 3, "max_digits": 3},
            "hard": {"min_terms": 3, "max_terms": 3, "min_digits": 2, "max_digits": 3},
        },
    ),
    FamilyOptions(
        generator="gcd",
        levels={
            "easy": {"min_numbers": 2, "max_numbers": 2, "min_value": 10, "max_value": 99},
            "medium": {"min_numbers": 2, "max_numbers": 2, "min_value": 100, "max_value": 999},
            "hard": {"min_numbers": 3, "max_numbers": 3, "min_value": 100, "max_value": 999},
        },
    ),
    FamilyOptions(
        generator="lcm",
        levels={
            "easy": {"min_numbers": 2, "max_numbers": 2, "min_value": 10, "max_value": 99},
            "medium": {"min_numbers": 2, "max_numbers": 2, "min_value": 100, "max_value": 999},
            "hard": {"min_numbers": 3, "max_numbers": 3, "min_value": 10, "max_value": 99},
        },
    ),
    FamilyOptions(
        generator="count_bits",
        levels={
            "easy": {"min_n": 100, "max_n": 9_999},
            "medium": {"min_n": 10_000, "max_n": 999_999},
            "hard": {"min_n": 1_000_000, "max_n": 99_999_999},
        },
    ),
    FamilyOptions(
        generator="fraction_simplification",
        levels={
            "easy": {"min_value": 2, "max_value": 30, "min_factor": 2, "max_factor": 9, "styles": ["plain"]},
            "medium": {"min_value": 10, "max_value": 99, "min_factor": 2, "max_factor": 30, "styles": ["plain"]},
            "hard": {"min_value": 100, "max_value": 999, "min_factor": 2, "max_factor": 99, "styles": ["plain"]},
        },
    ),
)


class ReasoningGymOptions(Section, frozen=True):
    """Options of the `reasoning_gym` task source.

    Attributes:
        families: the mix; each generator at most once.
        num_training: length of the training stream; None for one without end.
        held_out_per_stratum: held-out tasks of each (generator, level).
        held_out_seed: chooses the held-out set, apart from the run's seed.
    """

    families: tuple[FamilyOptions, ...] = DEFAULT_FAMILIES
    num_training: int | None = None
    held_out_per_stratum: int = 10
    held_out_seed: int = 0

    def __post_init__(self) -> None:
        names = [family.generator for family in self.families]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"tasks.families are {names}: at least one is needed, each generator once")
        if self.num_training is not None and self.num_training < 1:
            raise ValueError(f"tasks.num_training is {self.num_training}; it must be at least 1")
        if self.held_out_per_stratum < 0:
            raise ValueError(f"tasks.held_out_per_stratum is {self.held_out_per_stratum}; it must not be negative")
