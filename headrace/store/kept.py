"""Which weights a run's folder has to hold: a fold over its events, by the retention rule of each process.

Invariant: a version counts as let go only after an event since which the rule of the process that wrote it let the version
go, so that what a later process keeps longer is not missed.
"""

from collections.abc import Callable, Iterable

import msgspec

from headrace.config import Config
from headrace.errors import IntegrityError, StoreError
from headrace.records.checkpoint import CheckpointWritten, Manifest
from headrace.records.evaluation import EvaluationCompleted, EvaluationStarted
from headrace.records.events import Event
from headrace.records.ids import Address
from headrace.records.run import RunStarted
from headrace.records.update import WeightsCommitted
from headrace.scheduling.retention import Retention


class KeptWeights:
    """Fed with every event.

    Args:
        read: bytes of a sealed row; raises KeyError, IntegrityError or StoreError.

    Attributes:
        committed: weights of every committed version.
    """

    def __init__(self, read: Callable[[Address], bytes]) -> None:
        self.committed: dict[int, Address] = {}
        self._read = read
        self._rule: Retention | None = None
        self._written: list[Manifest] = []
        self._rounds: dict[str, int] = {}
        self._gone: set[Address] = set()
        self._is_known = True

    def observe(self, event: Event) -> None:
        """One more event."""
        match event.payload:
            case RunStarted(config=config):
                self._let_go()
                self._rule = self._rule_of(config)
                self._is_known = self._is_known and self._rule is not None
            case WeightsCommitted(policy=policy, weights=weights):
                self.committed[policy.version] = weights
                self._gone.discard(weights)
            case EvaluationStarted(policy=policy):
                self._rounds[event.key] = policy.version
            case EvaluationCompleted():
                self._rounds.pop(event.key, None)
            case CheckpointWritten(manifest=manifest):
                self._written.append(manifest)
                self._let_go()
            case _:
                pass

    def let_go(self) -> set[int]:
        """Versions whose weights may be gone by now: all but the newest where a configuration cannot be read."""
        self._let_go()
        if not self._is_known:
            return self.committed.keys() - {max(self.committed, default=0)}
        return {version for version, weights in self.committed.items() if weights in self._gone}

    def _let_go(self) -> None:
        if self._rule is not None:
            self._gone.update(self._rule.unneeded(self._written, self.committed, self._rounds.values()))

    def _rule_of(self, config: Address) -> Retention | None:
        """None where the configuration cannot be read, which whoever looks at rows reports."""
        try:
            section = msgspec.msgpack.decode(self._read(config), type=Config).checkpoint
        except (KeyError, IntegrityError, StoreError, msgspec.DecodeError):
            return None
        return Retention(section.keep_last, section.keep_every)


def ranges(versions: Iterable[int]) -> str:
    """Numbers as people write them: `0, 3 to 5`; `none` without any."""
    runs: list[list[int]] = []
    for version in sorted(versions):
        if runs and version == runs[-1][-1] + 1:
            runs[-1].append(version)
        else:
            runs.append([version])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs) or "none"
