"""The error model on one page.

A bad rollout is data, not a crash. An exception here means that a *boundary* failed, and says which one and what is
known of the effect:

* ``Outcome.REJECTED``  nothing was executed; asking again is safe.
* ``Outcome.LOST``      nobody knows whether it was executed; probe before asking again.

Errors are raised close to the cause and caught at three places: the port boundary (attributes it), the episode driver
(records it as a terminal state) and the orchestrator (stops everything). A message carries the value, the bound and the
remedy.
"""

import enum


class Outcome(enum.Enum):
    """What is known of an operation that failed."""

    REJECTED = "rejected"
    LOST = "lost"


class HeadraceError(Exception):
    """Base of every error that Headrace raises on purpose."""


class ConfigError(HeadraceError):
    """A configuration value is missing, unknown or out of its bounds."""


class IntegrityError(HeadraceError):
    """Stored or received bytes are not what their address, hash or schema says."""


class InvariantViolated(HeadraceError):
    """A law that must always hold does not: a defect of Headrace, never of the policy."""


class StoreError(HeadraceError):
    """The journal or a blob could not be made durable; nothing after it may be acknowledged.

    `outcome` tells whether it may be there all the same: a disk that reports a failure may have written. Whoever opens the
    journal next finds out, so no writer asks: it stops.
    """

    def __init__(self, message: str, outcome: Outcome = Outcome.LOST) -> None:
        super().__init__(message)
        self.outcome = outcome


class BoundaryError(HeadraceError):
    """A port failed. `outcome` tells whether the operation may have taken effect."""

    boundary = "unknown"

    def __init__(self, message: str, outcome: Outcome = Outcome.LOST) -> None:
        super().__init__(message)
        self.outcome = outcome


class InferenceError(BoundaryError):
    """The inference engine did not generate, stage, activate or score."""

    boundary = "inference"


class EnvironmentFault(BoundaryError):
    """The environment did not open, execute or answer. A tool that raises is an observation, not this."""

    boundary = "environment"


class EnvironmentFenced(EnvironmentFault):
    """The executor serves a newer owner of the episode; whoever asked is too late, and asking again is in vain."""


class OwnerFenced(BoundaryError):
    """The attempt has a newer owner; nothing that the old one says is recorded."""

    boundary = "lease"


class GraderError(BoundaryError):
    """The grader did not deliver a verdict. The reward is absent, and the trajectory is graded again."""

    boundary = "grader"


class GraderTimeout(GraderError):
    """No verdict came within the deadline."""


class TrainerError(BoundaryError):
    """The trainer did not score, update, export or load."""

    boundary = "trainer"


class ProcessError(BoundaryError):
    """A child process could not be started, died, or did not answer in time."""

    boundary = "process"
