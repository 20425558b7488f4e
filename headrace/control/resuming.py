"""Takes over a run: refuses what does not fit it, and brings the trainer to the newest committed version.

Invariant: nothing is recorded and nothing is served before the trainer stands where the journal says; a second crash on the
way leaves the journal as it was.

* consumes: where the run stands.
* waits for: the trainer, to load the newest checkpoint that verifies and to compute the plans since.
* unblocked by: its answers.
* produces: a trainer at the newest version.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from headrace.config import Config
from headrace.control.past import RunPast
from headrace.errors import ConfigError, Outcome, TrainerError
from headrace.ports import Trainer
from headrace.records.batch import BatchPlan
from headrace.records.ids import Address

MAY_CHANGE = ("run.updates", "timeouts.", "checkpoint.")
"""Settings that a resumed run may have otherwise; all others would make it another run."""


@dataclasses.dataclass(frozen=True)
class TrainerPast:
    """How the trainer came to where it stands.

    Attributes:
        checkpoint: update whose checkpoint was loaded; None for version 0.
        replayed: plans computed again.
        identical: of those, how many gave the recorded weights bit for bit.
    """

    checkpoint: int | None
    replayed: int
    identical: int


def check_same_run(
    past: RunPast,
    config: Config,
    read: Callable[[Address], bytes],
    *,
    versions: Mapping[str, Address],
    initial: Address,
) -> None:
    """Raises ConfigError, with every difference, unless this process would go on with the very same run.

    Args:
        past: where the run stands.
        config: of this process.
        read: bytes of a sealed row.
        versions: content versions of this process's harness, environment and grader.
        initial: weights that this process's version 0 has.
    """
    started = past.started
    if started is None:
        return
    before = msgspec.msgpack.decode(read(started.config), type=Config)
    differences = config_differences(before, config)
    for name, version in sorted(versions.items()):
        known = started.versions.get(name)
        if known is not None and known != version:
            differences.append(f"{name} code or options: {known[:12]} when it started, {version[:12]} now")
    if past.weights and past.weights[0] != initial:
        differences.append(f"weights of version 0: {past.weights[0][:12]} when it started, {initial[:12]} now")
    _refuse(started.run_id, differences)
    reason = past.ended.reason if past.ended is not None else ""
    if reason.startswith("paused"):
        raise ConfigError(
            f"{started.run_id} was {reason}; it does not go on by itself, start a new run with other settings"
        )
    if config.run.updates < past.version or (reason == "completed" and config.run.updates == past.version):
        raise ConfigError(
            f"{started.run_id} has finished {past.version} updates and run.updates is {config.run.updates}; "
            "raise it to go on, such as run.updates=" + str(2 * past.version)
        )


def check_same_config(run_id: str, before: Config, now: Config) -> None:
    """Raises ConfigError, with every difference, when the configuration is another run's."""
    _refuse(run_id, config_differences(before, now))


def config_differences(before: Config, now: Config) -> list[str]:
    """Settings that differ and must not, as `section.key: before -> now`."""
    old, new = _flat(msgspec.to_builtins(before)), _flat(msgspec.to_builtins(now))
    return [
        f"{name}: {old.get(name, 'absent')!r} when it started, {new.get(name, 'absent')!r} now"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name) and not name.startswith(MAY_CHANGE)
    ]


async def restore_trainer(
    trainer: Trainer, past: RunPast, read: Callable[[Address], bytes], timeout_s: float
) -> TrainerPast:
    """The trainer at the newest committed version.

    The newest checkpoint whose files verify is loaded, and the plans since are computed again. A version whose recorded
    weights come out otherwise, where arithmetic is not reproducible, keeps the recorded ones.

    Raises:
        TrainerError: when a plan cannot be computed again.
    """
    loaded = await _load_newest(trainer, past, timeout_s)
    identical = 0
    versions = range((loaded or 0) + 1, past.version + 1)
    for version in versions:
        plan = msgspec.msgpack.decode(read(past.plans[version]), type=BatchPlan)
        identical += await trainer.replay(plan, past.weights[version], timeout_s)
    return TrainerPast(loaded, len(versions), identical)


async def _load_newest(trainer: Trainer, past: RunPast, timeout_s: float) -> int | None:
    for written in reversed(past.checkpoints):
        try:
            await trainer.load(written.manifest, timeout_s)
        except TrainerError as error:
            if error.outcome is Outcome.LOST:
                raise
            continue  # dropped by retention, or damaged: the one before replays more
        return written.update
    return None


def _refuse(run_id: str, differences: list[str]) -> None:
    if differences:
        lines = "\n  ".join(differences)
        raise ConfigError(f"{run_id} cannot go on, it would be another run:\n  {lines}\nstart a new run instead")


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            found |= _flat(cast("dict[str, Any]", value), f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
