"""Which checkpoints stay, and which files go."""

import pytest

from headrace.records.checkpoint import Manifest
from headrace.scheduling.retention import Retention


def manifest(version: int, optimizer: str | None = None) -> Manifest:
    parts = {"optimizer": optimizer or f"o{version}"}
    return Manifest("policy", version, f"w{version}", parts, 1, "constant", "a")


@pytest.mark.parametrize(
    ("keep_last", "keep_every", "kept"), [(1, 0, [40]), (2, 0, [30, 40]), (1, 20, [20, 40]), (9, 0, [10, 20, 30, 40])]
)
def test_the_newest_stay_and_every_k_th(keep_last: int, keep_every: int, kept: list[int]) -> None:
    manifests = [manifest(version) for version in (10, 20, 30, 40)]
    assert [item.version for item in Retention(keep_last, keep_every).kept(manifests)] == kept


WEIGHTS = {version: f"w{version}" for version in range(46)}


def kept_versions(keep_last: int, keep_every: int, held: tuple[int, ...] = ()) -> list[int]:
    manifests = [manifest(version) for version in (10, 20, 30, 40)]
    gone = Retention(keep_last, keep_every).unneeded(manifests, WEIGHTS, held)
    return [version for version, weights in WEIGHTS.items() if weights not in gone]


@pytest.mark.parametrize("keep_last", [1, 2, 3])
def test_weights_stay_from_the_oldest_checkpoint_of_the_newest_on_and_where_the_run_began(keep_last: int) -> None:
    assert kept_versions(keep_last, 0) == [0, *range(50 - 10 * keep_last, 46)]


def test_a_version_on_which_a_round_is_pinned_or_whose_checkpoint_stays_for_good_stays_as_well() -> None:
    assert kept_versions(1, 20, held=(7, 35)) == [0, 7, 20, 35, *range(40, 46)]


def test_without_a_checkpoint_every_version_may_be_needed_to_recover() -> None:
    assert Retention(1, 0).unneeded([], WEIGHTS, ()) == ()


def test_a_file_that_a_kept_manifest_or_a_version_that_may_be_loaded_names_does_not_go() -> None:
    manifests = [manifest(10, optimizer="shared"), manifest(20), manifest(30, optimizer="shared")]
    gone = Retention(1, 0).unneeded(manifests, {10: "w10", 20: "w20", 30: "w30"}, held=[20])
    assert set(gone) == {"w10", "o20", manifests[0].address, manifests[1].address}
