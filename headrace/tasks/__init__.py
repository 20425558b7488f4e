"""Where tasks come from, and the demonstrations that a policy is warmed up with. Answers never leave a generator."""

from headrace.tasks.families import DEFAULT_FAMILIES, FamilyOptions, ReasoningGymOptions
from headrace.tasks.reasoning_gym import ReasoningGymTasks, open_tasks

__all__ = ["DEFAULT_FAMILIES", "FamilyOptions", "ReasoningGymOptions", "ReasoningGymTasks", "open_tasks"]
