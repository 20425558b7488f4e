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


def test_a_file_that_a_kept_manifest_or_a_served_version_names_does_not_go() -> None:
    manifests = [manifest(10, optimizer="shared"), manifest(20), manifest(30, optimizer="shared")]
    unnamed = Retention(1, 0).unnamed(manifests, served=["w20"])
    assert set(unnamed) == {"w10", "o20", manifests[0].address, manifests[1].address}


def test_nothing_goes_while_everything_is_kept() -> None:
    manifests = [manifest(10), manifest(20)]
    assert Retention(2, 0).unnamed(manifests, served=[]) == ()
