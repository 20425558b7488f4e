"""The configuration: one frozen tree from one TOML file and dotted overrides. An unknown key is an error.

Every section is checked where it is owned. An adapter owns its `options`, chosen by `kind`; everything else is here.
"""

from headrace.config.algorithm import AlgorithmSection
from headrace.config.reading import decode_config, decode_options, load_config, override_config
from headrace.config.schedule import Mode, ScheduleSection, StalenessPolicy
from headrace.config.sections import (
    AdapterSection,
    CheckpointSection,
    EnvironmentSection,
    EvaluationSection,
    GraderSection,
    PolicySection,
    RunSection,
    Section,
    TimeoutSection,
)
from headrace.config.tree import Config

__all__ = [
    "AdapterSection",
    "AlgorithmSection",
    "CheckpointSection",
    "Config",
    "EnvironmentSection",
    "EvaluationSection",
    "GraderSection",
    "Mode",
    "PolicySection",
    "RunSection",
    "ScheduleSection",
    "Section",
    "StalenessPolicy",
    "TimeoutSection",
    "decode_config",
    "decode_options",
    "load_config",
    "override_config",
]
