"""Verdicts, independent of the policy and of the environment's claim. Answers are made and kept in the core alone."""

from headrace.graders.inline import InlineGrader
from headrace.graders.reasoning_gym import ReasoningGymGrader, ReasoningGymGraderOptions, open_grader_core
from headrace.graders.service import ChildGrader, GraderCore, grader_service

__all__ = [
    "ChildGrader",
    "GraderCore",
    "InlineGrader",
    "ReasoningGymGrader",
    "ReasoningGymGraderOptions",
    "grader_service",
    "open_grader_core",
]
