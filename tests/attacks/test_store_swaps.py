"""Files of a store that somebody exchanged: nothing is unpickled, no link is followed, no other run's bytes are taken."""

import io
import pickle
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from attacks.test_untrusted_bytes import Exploit
from store.test_verify import store
from training.test_checkpoint import rows, step, trainer
from training_lab import LLAMA, Lab

from headrace.errors import IntegrityError, Outcome, TrainerError
from headrace.records.ids import Address
from headrace.records.provenance import address_of
from headrace.store.blobs import FileBlobs
from headrace.store.references import ROW_TYPES, decode_row
from headrace.store.verify import verify_run
from headrace.training.warm_start import WarmStartSettings, warm_start


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    folder = tmp_path_factory.mktemp("policy") / "policy"
    return Lab(warm_start(LLAMA, (), WarmStartSettings(steps=0), seed=1, out_dir=folder))


@pytest.fixture
def blobs(tmp_path: Path) -> FileBlobs:
    return FileBlobs(tmp_path / "run" / "blobs")


def traps(trap: Path) -> dict[str, bytes]:
    """Files in formats that run code when they are read the usual way."""
    array, zipped = io.BytesIO(), io.BytesIO()
    np.save(array, np.array([Exploit(trap)], dtype=object), allow_pickle=True)
    torch.save({"weights": Exploit(trap)}, zipped)
    plain = pickle.dumps(Exploit(trap))
    return {"pickle": plain, "joblib": zlib.compress(plain), "npy": array.getvalue(), "torch": zipped.getvalue()}


@pytest.mark.parametrize("part", ["weights", "optimizer", "random"])
def test_a_checkpoint_whose_part_is_a_pickle_is_refused_and_runs_nothing(
    lab: Lab, blobs: FileBlobs, tmp_path: Path, part: str
) -> None:
    core = trainer(lab, blobs, {})
    step(core, lab, rows(lab))
    manifest, before = core.save(), core.export()
    for name, data in traps(tmp_path / "trap").items():
        address = blobs.put(data)  # under its own address, so that only its format gives it away
        changes = {"weights": address} if part == "weights" else {"parts": {**manifest.parts, part: address}}
        changed = msgspec.structs.replace(manifest, **changes)
        blobs.put(changed.to_json())
        with pytest.raises(TrainerError, match="no safetensors") as caught:
            core.load(changed)
        assert caught.value.outcome is Outcome.REJECTED, name
    assert core.export() == before
    assert not (tmp_path / "trap").exists()


def test_a_row_that_is_a_pickle_is_no_record_of_any_kind(tmp_path: Path) -> None:
    for data in traps(tmp_path / "trap").values():
        for kind in ROW_TYPES:
            with pytest.raises(ValueError, match="cannot be decoded"):
                decode_row(kind, data)
    assert not (tmp_path / "trap").exists()


def swap_for_link(blobs: FileBlobs, address: Address, target: Path) -> None:
    place = blobs.path(address)
    target.write_bytes(place.read_bytes())
    place.unlink()
    place.symlink_to(target)


def test_a_file_that_became_a_link_is_refused_even_when_its_bytes_are_right(
    lab: Lab, blobs: FileBlobs, tmp_path: Path
) -> None:
    core = trainer(lab, blobs, {})
    step(core, lab, rows(lab))
    manifest = core.save()
    for address in (manifest.weights, manifest.parts["optimizer"], manifest.address):
        swap_for_link(blobs, address, tmp_path / address)
        for look_up in (blobs.path, blobs.read, blobs.verify):
            with pytest.raises(IntegrityError, match="is a link"):
                look_up(address)
    with pytest.raises(TrainerError, match="is a link"):
        core.load(manifest)
    assert core.save() == manifest, "what is stored again takes the place of the links"
    assert not any(blobs.path(address).is_symlink() for address in manifest.blobs)


def test_a_file_of_another_run_in_the_place_of_this_ones_is_refused(lab: Lab, blobs: FileBlobs, tmp_path: Path) -> None:
    other_blobs = FileBlobs(tmp_path / "other" / "blobs")
    other = trainer(lab, other_blobs, {"learning_rate": 1e-2})
    step(other, lab, rows(lab))
    strange = other.save()
    core = trainer(lab, blobs, {"learning_rate": 1e-3})
    step(core, lab, rows(lab))
    manifest = core.save()
    for ours, theirs in ((manifest.weights, strange.weights), (manifest.address, strange.address)):
        blobs.path(ours).write_bytes(other_blobs.read(theirs))
        with pytest.raises(IntegrityError, match="the copy is damaged"):
            blobs.read(ours)
    with pytest.raises(TrainerError, match="damaged"):
        core.load(manifest)
    for address in strange.blobs:
        blobs.put(other_blobs.read(address))
    with pytest.raises(TrainerError, match="algorithm"):
        core.load(strange)


def test_verification_names_a_link_among_the_blobs(tmp_path: Path) -> None:
    run = store(tmp_path / "run")
    blobs = FileBlobs(run / "blobs")
    swap_for_link(blobs, address_of(b"weights 2" * 50), tmp_path / "elsewhere")
    assert any("is a link" in str(problem) for problem in verify_run(run).problems)
