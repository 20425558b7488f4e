"""Versions of weights: read from the bytes that hash to their address, and never reused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from engine_case import generate, make_core, publish, rescoring_error, some_ids
from tiny_policy import POLICY, PolicyFolder, prompt, request

from headrace.errors import InferenceError, Outcome
from headrace.inference.options import EngineOptions
from headrace.inference.weights import WeightBank
from headrace.records.ids import Address, PolicyId, PolicyRef

OPTIONS = EngineOptions(context=128)


@pytest.fixture
def folder(tmp_path: Path) -> PolicyFolder:
    return PolicyFolder.create(tmp_path)


@pytest.fixture
def bank(folder: PolicyFolder) -> WeightBank:
    return WeightBank(OPTIONS, folder.path, folder.weights_path)


def refused(bank: WeightBank, policy: PolicyRef, weights: Address, match: str) -> None:
    before = bank.held
    with pytest.raises(InferenceError, match=match) as error:
        bank.stage(policy, weights)
    assert error.value.outcome is Outcome.REJECTED and bank.held == before


def test_damaged_bytes_are_refused(bank: WeightBank, folder: PolicyFolder) -> None:
    address = folder.publish(0)
    data = bytearray(folder.weights_path(address).read_bytes())
    data[-1] ^= 1
    folder.weights_path(address).write_bytes(data)
    refused(bank, PolicyRef(POLICY, 0), address, "damaged")


def test_a_missing_file_is_refused(bank: WeightBank) -> None:
    refused(bank, PolicyRef(POLICY, 0), Address("0" * 64), "cannot be read")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_refused(bank: WeightBank, folder: PolicyFolder, value: float) -> None:
    state = {name: tensor.clone() for name, tensor in folder.model(0).state_dict().items()}
    state["model.norm.weight"][3] = value
    refused(bank, PolicyRef(POLICY, 0), folder.write(state), "not finite")


@pytest.mark.parametrize("change", ["missing", "unexpected", "shape"])
def test_weights_of_another_model_are_refused(bank: WeightBank, folder: PolicyFolder, change: str) -> None:
    state = dict(folder.model(0).state_dict())
    if change == "missing":
        del state["lm_head.weight"]
    elif change == "unexpected":
        state["model.extra"] = torch.zeros(1)
    else:
        state["lm_head.weight"] = torch.zeros(3, 3)
    refused(bank, PolicyRef(POLICY, 0), folder.write(state), "lm_head|extra")


def test_one_version_never_stands_for_two_weights_even_after_it_was_unloaded(
    bank: WeightBank, folder: PolicyFolder
) -> None:
    for version in (0, 1):
        bank.stage(PolicyRef(POLICY, version), folder.publish(version))
        bank.activate(PolicyRef(POLICY, version))
        bank.retain(frozenset())
    assert bank.held == (1,)
    refused(bank, PolicyRef(POLICY, 0), folder.publish(2), "never reused")
    bank.stage(PolicyRef(POLICY, 0), folder.publish(0))
    with pytest.raises(InferenceError, match="versions never fall"):
        bank.activate(PolicyRef(POLICY, 0))


def test_another_policy_is_refused(bank: WeightBank, folder: PolicyFolder) -> None:
    bank.stage(PolicyRef(POLICY, 0), folder.publish(0))
    bank.activate(PolicyRef(POLICY, 0))
    refused(bank, PolicyRef(PolicyId("critic"), 1), folder.publish(1), "serves policy")


def test_loading_leaves_the_random_state_of_the_process_alone(folder: PolicyFolder) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    bank = WeightBank(OPTIONS, folder.path, folder.weights_path)
    for version in (0, 1):
        bank.stage(PolicyRef(POLICY, version), folder.publish(version))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("is_full", [False, True], ids=["one name in the file", "both names in the file"])
def test_a_tied_output_layer_follows_the_embeddings(tmp_path: Path, is_full: bool) -> None:
    folder = PolicyFolder.create(tmp_path, is_tied=True)
    core = make_core(folder, versions=())
    for version in (0, 1):
        state = dict(folder.model(version).state_dict())
        if not is_full:
            del state["lm_head.weight"]
        policy = PolicyRef(POLICY, version)
        core.stage(policy, folder.write(state))
        core.activate(policy, frozenset())
        ids = some_ids(20, version)
        [result] = generate(core, request(f"e{version}/0", prompt(*ids)))
        assert result.versions == [version] and rescoring_error(folder, ids, result) < 2e-5
        np.testing.assert_allclose(core.score([ids], version)[0], folder.logprobs(version, ids), atol=1e-5)


def test_tied_names_with_different_values_are_refused(tmp_path: Path) -> None:
    folder = PolicyFolder.create(tmp_path, is_tied=True)
    state = dict(folder.model(0).state_dict())
    state["lm_head.weight"] = state["lm_head.weight"] + 1
    bank = WeightBank(OPTIONS, folder.path, folder.weights_path)
    refused(bank, PolicyRef(POLICY, 0), folder.write(state), "differs from")


def test_publishing_many_versions_holds_no_more_than_the_wanted_ones(folder: PolicyFolder) -> None:
    core = make_core(folder)
    for version in range(1, 6):
        publish(core, folder, version)
        assert core.bank.held == (version,)
