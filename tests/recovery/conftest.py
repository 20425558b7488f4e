"""A run of the real trainer on a tiny model, which several tests of this folder harm."""

from pathlib import Path
from typing import Any

import pytest
from recovery.test_checkpoint_cuts import UPDATES, Life
from training.test_checkpoint import rows
from training_lab import LLAMA, Lab

from headrace.config import CheckpointSection, decode_config
from headrace.control.recorder import sealed_row
from headrace.records.ids import Address
from headrace.records.run import RunStarted
from headrace.simulation.loop import run_virtual
from headrace.training.warm_start import WarmStartSettings, warm_start


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    folder = tmp_path_factory.mktemp("policy") / "policy"
    return Lab(warm_start(LLAMA, (), WarmStartSettings(steps=0), seed=1, out_dir=folder))


@pytest.fixture(scope="session")
def batch(lab: Lab) -> list[Any]:
    return rows(lab)


@pytest.fixture
def trained(tmp_path: Path, lab: Lab, batch: list[Any]) -> tuple[Path, list[Address], Address]:
    """A run of four updates that keeps the newest checkpoint, its weights by version, and an orphan beside."""
    folder = tmp_path / "run"
    config = decode_config({"checkpoint": {"every_updates": 1, "keep_last": 1}}, "test")
    assert config.checkpoint == CheckpointSection(every_updates=1, keep_last=1)

    async def work() -> tuple[list[Address], Address]:
        life = Life(folder, lab, batch)
        await life.restore()
        row = sealed_row("config", config)
        life.recorder.record(RunStarted("run", 7, row.address, "test", "", {}), key="1", rows=[row])
        for _ in range(UPDATES):
            await life.update()
        orphan = life.blobs.put(b"of a checkpoint that was never finished")
        await life.journal.close()
        return [weights for _, weights in sorted(life.versions.weights.items())], orphan

    weights, orphan = run_virtual(work())
    (folder / "blobs" / weights[0][:2] / f"{weights[0]}.7.0.part").write_bytes(b"half")
    return folder, weights, orphan
