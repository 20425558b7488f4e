"""What a call says that it changed is the policy's to forge: nothing of it reaches outside of the workspace."""

import asyncio
import struct
from pathlib import Path

import pytest
from environment_kinds import EPISODE, TASK, TIMEOUT_S, act, lease

from headrace.environments.workspace.environment import WorkspaceEnvironment
from headrace.environments.workspace.options import WorkspaceOptions
from headrace.environments.workspace.store import RevisionLost, RevisionStore
from headrace.environments.workspace.tree import FILE, LINK, ChangesRefused, Entry, changed, read_records
from headrace.records.execution import ExecutionStatus
from headrace.records.provenance import address_of, canonical_bytes

SECRET = "what only the host may read"


def record(letter: bytes, path: bytes, content: bytes = b"") -> bytes:
    return b"".join((letter, struct.pack("<I", len(path)), path, struct.pack("<I", len(content)), content))


def taken(data: bytes) -> dict[bytes, Entry]:
    return changed({}, read_records(data), max_bytes=1000, max_entries=8)


FORGED: dict[str, bytes] = {
    "an absolute path": record(b"F", b"/etc/passwd", b"x"),
    "up and out": record(b"F", b"../../etc/passwd", b"x"),
    "up within": record(b"D", b"a") + record(b"F", b"a/../b", b"x"),
    "through a link": record(b"L", b"a", b"/etc") + record(b"F", b"a/passwd", b"x"),
    "a folder below a link": record(b"L", b"a", b"/etc") + record(b"D", b"a/b"),
    "below a file": record(b"F", b"a", b"x") + record(b"F", b"a/b", b"x"),
    "in no folder": record(b"F", b"a/b", b"x"),
    "a device": record(b"B", b"sda", b"8:0"),
    "a hard link": record(b"H", b"a", b"/etc/shadow"),
    "a link to nothing": record(b"L", b"a"),
    "a zero in its name": record(b"F", b"a\0b", b"x"),
    "no name": record(b"F", b"", b"x"),
    "a name that is too long": record(b"F", b"a" * 1025, b"x"),
    "more bytes than allowed": record(b"F", b"a", bytes(1001)),
    "more bytes in sum": record(b"F", b"a", bytes(600)) + record(b"F", b"b", bytes(600)),
    "more files than allowed": b"".join(record(b"F", b"%d" % n) for n in range(9)),
    "cut in its bytes": record(b"F", b"a", b"xyz")[:-1],
    "cut in its head": record(b"F", b"a")[:3],
    "a size beyond the end": b"F" + struct.pack("<I", 1 << 31) + b"a",
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_record_that_reaches_out_is_refused_whole(case: str) -> None:
    assert taken(record(b"F", b"good", b"1"))
    with pytest.raises(ChangesRefused):
        taken(record(b"F", b"good", b"1") + FORGED[case])


def test_a_name_that_comes_twice_is_one_thing_and_a_folder_that_turns_into_a_link_takes_its_files_along() -> None:
    assert taken(record(b"F", b"a", b"1") + record(b"F", b"a", b"2")) == {
        b"a": Entry(FILE, address_of(b"2").encode(), 1)
    }
    turned = record(b"D", b"a") + record(b"F", b"a/b", b"x") + record(b"L", b"a", b"/etc")
    assert taken(turned) == {b"a": Entry(LINK, b"/etc")}


@pytest.mark.parametrize(
    "tree",
    [
        {b"../out": Entry(FILE, address_of(b"x").encode(), 1)},
        {b"/etc/passwd": Entry(FILE, address_of(b"x").encode(), 1)},
        {b"a": Entry(LINK, b"/etc"), b"a/passwd": Entry(FILE, address_of(b"x").encode(), 1)},
        {b"a": Entry(FILE, b"../../../secret", 1)},
    ],
    ids=["up", "absolute", "through a link", "bytes from elsewhere"],
)
def test_a_stored_revision_that_reaches_out_is_never_laid_out(tmp_path: Path, tree: dict[bytes, Entry]) -> None:
    """Somebody who can write the folder stores it under its true hash, so that the address alone is no help."""
    store = RevisionStore(tmp_path / "workspaces", None)
    (tmp_path / "secret").write_text(SECRET, encoding="utf-8")
    store.open(EPISODE)
    data = canonical_bytes(sorted(tree.items()))
    (tmp_path / "workspaces" / "episodes" / str(EPISODE) / "revisions" / address_of(data)).write_bytes(data)
    with pytest.raises(RevisionLost):
        store.get(EPISODE, address_of(data))


def test_what_links_outside_is_a_name_inside_and_nothing_is_read_through_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET, encoding="utf-8")
    lines = [
        f"ln -s {secret} link; ln -s {tmp_path} folder; cat link folder/secret",
        f"echo x > {secret}; echo x > folder/new",
        "ls -l",
        "rm link folder; echo kept > artifact; ln artifact second",
    ]

    async def body() -> None:
        options = WorkspaceOptions(tools=("shell",), programs=("sh", "cat", "ln", "ls", "wc", "rm"), by="overlay")
        environment = WorkspaceEnvironment(options, tmp_path / "workspaces")
        await environment.start()
        handle = await environment.open(TASK, EPISODE, lease(), TIMEOUT_S)
        artifacts: list[bytes] = []
        for step, line in enumerate(lines):
            receipt = await environment.execute(handle, act(("shell", {"code": line}), step), lease(), TIMEOUT_S)
            assert SECRET.encode() not in receipt.output
            assert receipt.status in (ExecutionStatus.OK, ExecutionStatus.TOOL_ERROR)
            artifacts.append(await environment.artifact(handle, TIMEOUT_S))
        assert artifacts[:3] == [b""] * 3, "an artifact with a link in it is refused whole"
        assert environment.artifacts_refused == 3
        assert artifacts[3] == b"\x82\xa8artifact\xc4\x05kept\n\xa6second\xc4\x05kept\n", (
            "a hard link is a file of its own"
        )
        await environment.close(handle)
        await environment.stop()

    asyncio.run(body())
    assert secret.read_text(encoding="utf-8") == SECRET
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret", "workspaces"]
