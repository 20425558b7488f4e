"""The real engine and trainer, killed at seeded instants: the resumed run ends with the uninterrupted one's bits."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from recovery.crashes import DEAD, MortalStorage, broken_laws_of, consumed, weights
from runtime.proof import proof_config

from headrace.config import CheckpointSection, Config
from headrace.errors import StoreError
from headrace.records.action import Action
from headrace.records.checkpoint import RunResumed
from headrace.records.experience import Replay
from headrace.records.learning.corrections import SequenceMis
from headrace.records.update import BatchScored
from headrace.runtime.inline import InlineResult, InlineWorld, run_inline
from headrace.store.memory import MemoryStorage


def proof(every_updates: int = 2) -> Config:
    return msgspec.structs.replace(proof_config("sync"), checkpoint=CheckpointSection(every_updates=every_updates))


def random_delays(seed: int) -> Callable[[Action], float]:
    """Seconds of each action, other ones for every seed."""

    def tool_s(action: Action) -> float:
        digest = hashlib.sha256(f"{seed}/{action.id}".encode()).digest()
        return digest[0] / 255.0

    return tool_s


def run_once(
    configured: Config, policy: Path, blobs: Path, storage: MemoryStorage, *, dies_at: int = 0, delays: int = 0
) -> InlineResult | None:
    world = InlineWorld(MortalStorage(storage, dies_at), random_delays(delays))
    try:
        return run_inline(configured, policy, blobs, world=world)
    except StoreError as error:
        assert DEAD in str(error)
        return None


def replaying() -> Config:
    """Four updates, in which groups train up to three times under a weight."""
    configured = proof()
    algorithm = msgspec.structs.replace(
        configured.algorithm,
        anchor="old",
        corrections=(SequenceMis(bound=3.0),),
        replay=Replay(kind="recent", uses=3, max_lag=3, share=0.5),
    )
    return msgspec.structs.replace(
        configured, algorithm=algorithm, run=msgspec.structs.replace(configured.run, updates=4)
    )


@pytest.mark.slow
def test_replayed_groups_train_on_the_real_trainer_and_a_killed_run_ends_with_the_same_bits(
    warm_policy: Path, tmp_path: Path
) -> None:
    configured, storage = replaying(), MemoryStorage()
    configured.check()
    counting = MortalStorage(storage)
    whole = run_inline(configured, warm_policy, tmp_path / "whole", world=InlineWorld(counting, random_delays(0)))
    scored = [event.payload for event in whole.events if isinstance(event.payload, BatchScored)]
    assert [item.replayed is not None for item in scored] == [False, True, True, True]
    for item in scored[1:]:
        assert item.replayed is not None
        assert item.replayed.mismatch is None, "no token of the base version trains again"
    moved = max(item.log_ratio_abs_max for item in scored)
    assert moved > 1e-4, "the policy moved, so the recorded log-probs are not its own"
    assert broken_laws_of(configured, storage) == []
    expected = list(whole.weights), consumed(whole.events, storage.read)
    disk, blobs = MemoryStorage(), tmp_path / "killed"
    assert run_once(configured, warm_policy, blobs, disk, dies_at=counting.commits * 3 // 4) is None
    result = run_once(configured, warm_policy, blobs, disk, delays=1)
    assert result is not None
    assert (weights(result.events), consumed(result.events, disk.read)) == expected
    assert broken_laws_of(configured, disk) == []


@pytest.mark.slow
@pytest.mark.parametrize(("every_updates", "kills"), [(2, 4), (0, 2)])
def test_a_run_killed_at_seeded_instants_ends_with_the_weights_and_the_consumption_of_the_uninterrupted_one(
    warm_policy: Path, tmp_path: Path, every_updates: int, kills: int
) -> None:
    """One instant in each part of the run, of equal numbers of commits."""
    configured, storage = proof(every_updates), MemoryStorage()
    counting = MortalStorage(storage)
    whole = run_inline(configured, warm_policy, tmp_path / "whole", world=InlineWorld(counting, random_delays(0)))
    expected = list(whole.weights), consumed(whole.events, storage.read)
    assert len(set(expected[0])) == 4, "every update has to move the weights"
    parts = np.array_split(np.arange(3, counting.commits + 1), kills)
    draws = np.random.default_rng(11)
    for delays, dies_at in enumerate((int(draws.choice(part)) for part in parts), start=1):
        disk, blobs = MemoryStorage(), tmp_path / f"killed-{dies_at}"
        assert run_once(configured, warm_policy, blobs, disk, dies_at=dies_at) is None
        result = run_once(configured, warm_policy, blobs, disk, delays=delays)
        assert result is not None
        assert (weights(result.events), consumed(result.events, disk.read)) == expected, f"killed at commit {dies_at}"
        assert broken_laws_of(configured, disk) == []
        (resumed,) = [event.payload for event in result.events if isinstance(event.payload, RunResumed)] or [None]
        assert resumed is None or resumed.identical == resumed.replayed
