"""Sections of the configuration that need no rule beyond the type and the least value of each field."""

from typing import Any, Literal

import msgspec

from headrace.records.checkpoint import InFlight


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections: frozen, keyword-only, no unknown keys."""


class RunSection(Section, frozen=True):
    """Attributes:
    seed: root of every random stream.
    updates: number of policy updates, >= 1.
    deterministic: order batches by ordinal alone and end no episode by the wall clock; bit-exact proofs hold in this mode.
    """

    seed: int = 7
    updates: int = 100
    deterministic: bool = False


class AdapterSection(Section, frozen=True):
    """Attributes:
    kind: which adapter.
    options: the adapter's own options; see `headrace describe KIND`.
    """

    kind: str
    options: dict[str, Any] = {}


class EnvironmentSection(AdapterSection, frozen=True):
    """Attributes:
    calls_per_s: tool calls that the external service behind the tools lets begin in a second, evenly spaced, over the whole
        run; a call waits its turn in the order of asking, until the wall budget of its episode ends. None has no bound.
    """

    calls_per_s: float | None = None


class GraderSection(AdapterSection, frozen=True):
    """Attributes:
    placement: where the grader's process stands: `service` by itself, `environment` beside the tools, `rollout` beside
        the control plane. No placement changes a verdict; see docs/grading.md for what each keeps apart.
    """

    placement: Literal["service", "environment", "rollout"] = "service"


class PolicySection(Section, frozen=True):
    """Attributes:
    policy_id: name under which versions are published.
    kind: how version 0 comes about: `warm_start` or `folder`.
    canary_tolerance: largest absolute log-prob difference between engine and trainer on the canary sequences; above it
        a version is not published.
    options: the builder's own options.
    """

    policy_id: str = "policy"
    kind: str = "warm_start"
    canary_tolerance: float = 1e-3
    options: dict[str, Any] = {}


class EvaluationSection(Section, frozen=True):
    """Attributes:
    every_updates: a held-out round after every so many updates, and at the start and the end; 0 for none.
    temperatures: one round for each.
    success_bound: a reward at or above it counts as success.
    """

    every_updates: int = 20
    temperatures: tuple[float, ...] = (1.0, 0.2)
    success_bound: float = 1.0


class CheckpointSection(Section, frozen=True):
    """Attributes:
    every_updates: the trainer's state goes to disk after every so many updates, while episodes go on; 0 for never. A run
        resumes without any as well: it then computes all of its updates again.
    keep_last: newest checkpoints that stay, at least 1.
    keep_every: checkpoints after every so many updates stay for good; 0 keeps none beyond the newest.
    in_flight: what becomes of attempts that run when the process ends: `resume` goes on with the same attempt where the
        environment is pure or keeps revisions, `reissue` starts the member again, as is the only way in all others.
    """

    every_updates: int = 10
    keep_last: int = 2
    keep_every: int = 0
    in_flight: InFlight = "resume"


class TimeoutSection(Section, frozen=True):
    """Deadlines in seconds; no await on a port goes without one.

    Attributes:
        generate_s: one policy turn.
        tool_s: one action.
        environment_s: opening, artifact, claim.
        grade_s: one grading.
        update_s: scoring or update of a batch.
        publish_s: one phase of publication.
        broken_environment_s: an environment whose attempts fail for so long, tried again one by one, ends the run.
    """

    generate_s: float = 120.0
    tool_s: float = 10.0
    environment_s: float = 30.0
    grade_s: float = 30.0
    update_s: float = 300.0
    publish_s: float = 60.0
    broken_environment_s: float = 600.0
