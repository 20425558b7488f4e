"""A trainer that was saved and loaded goes on as if nothing had happened, bit for bit."""

import msgspec
import pytest
from training_lab import LLAMA, Lab

from headrace.errors import Outcome, TrainerError
from headrace.records.checkpoint import Manifest
from headrace.store.blobs import FileBlobs
from headrace.training.core import TrainerCore
from headrace.training.options import TrainerOptions
from headrace.training.warm_start import WarmStartSettings, warm_start

SIGNALS = {
    "mean": {},
    "old anchor and a reference, two steps": {
        "anchor": "old",
        "steps": 2,
        "kl": {"coefficient": 0.05, "place": "loss"},
    },
    "critic": {"advantage": "gae"},
}


@pytest.fixture
def lab(tmp_path):
    return Lab(warm_start(LLAMA, (), WarmStartSettings(steps=0), seed=1, out_dir=tmp_path / "policy"))


@pytest.fixture
def blobs(tmp_path):
    return FileBlobs(tmp_path / "blobs")


def trainer(lab: Lab, blobs: FileBlobs, signal: dict, **options) -> TrainerCore:
    from headrace.config import AlgorithmSection

    return TrainerCore(
        TrainerOptions(**options),
        lab.folder,
        msgspec.convert(signal, AlgorithmSection),
        read_row=lab.rows.__getitem__,
        put_weights=blobs.put,
        clock=lambda: 0.0,
        files=blobs,
    )


def rows(lab: Lab, count: int = 6):
    return [lab.regroup(row, ordinal // 2) for ordinal, row in enumerate(lab.ragged(count))]


def step(core: TrainerCore, lab: Lab, batch) -> str:
    core.score(batch, core.version)
    return core.update(lab.plan(batch, version=core.version)).weights


@pytest.mark.parametrize("signal", SIGNALS.values(), ids=SIGNALS)
def test_the_updates_after_a_restore_give_the_bits_of_the_uninterrupted_ones(lab, blobs, signal):
    batch = rows(lab)
    first = trainer(lab, blobs, signal)
    step(first, lab, batch)
    step(first, lab, batch)
    manifest = first.save()
    expected = [step(first, lab, batch) for _ in range(2)]
    second = trainer(lab, blobs, signal)
    second.load(manifest)
    assert second.version == 2
    assert [step(second, lab, batch) for _ in range(2)] == expected


def test_replay_from_version_zero_gives_the_recorded_weights(lab, blobs):
    batch = rows(lab)
    first = trainer(lab, blobs, {})
    plans = [lab.plan(batch, version=version) for version in range(3)]
    recorded = [step(first, lab, batch) for _ in plans]
    second = trainer(lab, blobs, {})
    assert all(second.replay(plan, weights) for plan, weights in zip(plans, recorded, strict=True))


def test_where_arithmetic_differs_the_recorded_weights_are_loaded(lab, blobs):
    batch = rows(lab)
    first = trainer(lab, blobs, {"learning_rate": 1e-2})
    recorded = step(first, lab, batch)
    second = trainer(lab, blobs, {"learning_rate": 1e-3})
    assert second.replay(lab.plan(batch), recorded) is False
    assert second.export() == recorded
    assert second.version == 1


def test_the_manifest_is_a_json_file_that_names_every_other_file(lab, blobs):
    core = trainer(lab, blobs, {"advantage": "gae"})
    core.update(lab.plan(rows(lab)))
    manifest = core.save()
    stored = msgspec.json.decode(blobs.read(manifest.address), type=Manifest)
    assert stored == manifest
    assert set(manifest.parts) == {"optimizer", "random", "critic", "critic_optimizer"}
    sizes = [blobs.verify(address) for address in manifest.blobs - {manifest.address}]
    assert sum(sizes) == manifest.size_bytes
    assert not any(data.startswith(b"\x80") for data in map(blobs.read, manifest.blobs)), "nothing is a pickle"


@pytest.mark.parametrize("harm", ["missing", "damaged", "other algorithm"])
def test_a_checkpoint_that_does_not_verify_is_rejected_and_changes_nothing(lab, blobs, harm):
    batch = rows(lab)
    core = trainer(lab, blobs, {})
    step(core, lab, batch)
    manifest = core.save()
    expected = step(core, lab, batch)
    other = trainer(lab, blobs, {})
    step(other, lab, batch)
    place = blobs.path(manifest.parts["optimizer"])
    if harm == "missing":
        place.unlink()
    elif harm == "damaged":
        data = bytearray(place.read_bytes())
        data[-1] ^= 1
        place.write_bytes(bytes(data))
    else:
        manifest = msgspec.structs.replace(manifest, algorithm="0" * 64)
    with pytest.raises(TrainerError) as caught:
        other.load(manifest)
    assert caught.value.outcome is Outcome.REJECTED
    assert step(other, lab, batch) == expected


def test_forgotten_files_are_gone_and_unknown_ones_are_ignored(lab, blobs):
    core = trainer(lab, blobs, {})
    core.update(lab.plan(rows(lab)))
    manifest = core.save()
    core.forget([manifest.parts["optimizer"], "f" * 64])
    assert manifest.parts["optimizer"] not in set(blobs.addresses())
    assert manifest.weights in set(blobs.addresses())
