"""Admission, order and staleness in the configuration.

Invariant: what `check` has passed can train every group that it admits, in time where its policy promises so.
"""

from typing import Literal

from headrace.config.sections import Section
from headrace.errors import ConfigError

Mode = Literal["sync", "colocate_async", "separate_async"]
StalenessPolicy = Literal["pace", "wait", "window", "drop", "cancel", "requeue"]


class ScheduleSection(Section, frozen=True):
    """Attributes:
    mode: `sync` waits for each version's own groups; `colocate_async` lets generation and
        training take turns on the same devices: what runs stands still while the trainer computes and goes on under the
        new version; `separate_async` generates while the trainer computes, and new weights go live at a token boundary.
    batch_groups: groups of one update.
    group_size: members of a group.
    credit_batches: groups are admitted while outstanding < (credit_batches + 1) * batch_groups: 0 in `sync`, at least 1 in
        the asynchronous modes. `auto` is 0 in `sync`; elsewhere it finds the knee while the run goes on.
    start_credit_batches: where `auto` begins.
    max_credit_batches: where `auto` ends, and with it the bound on outstanding groups.
    staleness: what keeps lag in bounds, see docs/staleness.md. `pace` only admits by credit and reports; `wait` holds an
        update back until every group that could exceed `max_lag` is in it; `window` trains finished groups in order and
        overtakes an unfinished one by so many at most that none exceeds `max_lag`. These three end no work. `drop` rejects a
        finished group beyond `max_lag`, `cancel` a running one as well, `requeue` draws the task of a rejected one again.
    max_lag: bound of every policy but `pace`, in updates.
    order: `ready` takes finished groups by completion, `ordinal` strictly by position in the source.
    quotas: least share of each batch by difficulty, held while the stratum has open groups; needs order `ready`, and no rule
        of its own on who is due.
    infra_attempts: attempts of one member after infrastructure failures, the first included.
    grade_tries: gradings of one transcript after grader failures, the first included.
    temperature: sampling temperature of training episodes.
    """

    mode: Mode = "sync"
    batch_groups: int = 16
    group_size: int = 8
    credit_batches: int | Literal["auto"] = "auto"
    start_credit_batches: int = 1
    max_credit_batches: int = 16
    staleness: StalenessPolicy = "pace"
    max_lag: int = 4
    order: Literal["ready", "ordinal"] = "ready"
    quotas: dict[str, float] = {}  # noqa: RUF012 - msgspec gives each instance its own
    infra_attempts: int = 3
    grade_tries: int = 3
    temperature: float = 1.0

    @property
    def is_credit_found(self) -> bool:
        """Whether the run finds its credit itself."""
        return self.credit_batches == "auto" and self.mode != "sync"

    @property
    def first_credit_batches(self) -> int:
        """The credit that a run begins with."""
        if self.credit_batches != "auto":
            return self.credit_batches
        return min(self.start_credit_batches, self.most_credit_batches) if self.is_credit_found else 0

    @property
    def most_credit_batches(self) -> int:
        """The largest credit that a run can come to."""
        if self.credit_batches != "auto":
            return self.credit_batches
        if not self.is_credit_found:
            return 0
        return min(self.max_credit_batches, self.max_lag) if self.keeps_every_group_in_time else self.max_credit_batches

    @property
    def keeps_every_group_in_time(self) -> bool:
        """Whether the policy bounds lag without ending any work; the credit then may not exceed the bound."""
        return self.staleness in ("wait", "window")

    @property
    def max_outstanding(self) -> int:
        """Largest number of groups that hold a slot."""
        return (self.most_credit_batches + 1) * self.batch_groups

    def check(self, is_deterministic: bool) -> None:
        """Raises ConfigError for rules that contradict each other, or a run that has to be deterministic."""
        _check_schedule(self, is_deterministic)
        _check_quotas(self)


def _check_schedule(schedule: ScheduleSection, is_deterministic: bool) -> None:
    if (schedule.mode == "sync") != (schedule.most_credit_batches == 0):
        raise ConfigError(
            f"schedule.mode is {schedule.mode} with credit_batches {schedule.credit_batches}; "
            "sync needs exactly 0, the asynchronous modes at least 1"
        )
    if schedule.keeps_every_group_in_time and schedule.max_lag < schedule.most_credit_batches:
        raise ConfigError(
            f"schedule.max_lag is {schedule.max_lag} with credit_batches {schedule.credit_batches}; under "
            f"`{schedule.staleness}` it must be at least credit_batches, or groups admitted together could not all train in "
            "time"
        )
    if schedule.staleness == "window" and schedule.order == "ordinal":
        raise ConfigError(
            "schedule.staleness is window with order ordinal; strict order is the window of max_lag = credit_batches, set "
            'schedule.order = "ready"'
        )
    if is_deterministic and schedule.mode != "sync" and (schedule.order != "ordinal" or schedule.is_credit_found):
        raise ConfigError(
            f"run.deterministic with schedule.mode {schedule.mode}, order {schedule.order} and credit_batches "
            f'{schedule.credit_batches}; batches then depend on arrival, set schedule.order = "ordinal" and a number'
        )


def _check_quotas(schedule: ScheduleSection) -> None:
    if not schedule.quotas:
        return
    total = sum(schedule.quotas.values())
    if min(schedule.quotas.values()) <= 0 or total > 1 + 1e-9:
        raise ConfigError(
            f"schedule.quotas are {schedule.quotas}, {total:g} in all; each is above 0, and all at most 1"
        )
    if schedule.order != "ready" or schedule.staleness in ("wait", "window"):
        raise ConfigError(
            f"schedule.quotas with order {schedule.order} and staleness {schedule.staleness}: both say who is due; set "
            'order = "ready" and staleness `pace` or `drop`'
        )
