"""The content of a workspace as a value: what lies where, and what one call changed.

Invariant: every path of a tree is relative, without `.` or `..`, and its parent is a folder of the same tree; so nothing
that is built from a tree by following its paths can lie outside of it. Times, owners, and rights other than to be executed
are not content.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from headrace.records.ids import Address
from headrace.records.provenance import address_of, canonical_bytes

MAX_PATH_BYTES = 1024
Kind = Literal["d", "f", "x", "l"]
FOLDER: Final = "d"
FILE: Final = "f"
PROGRAM: Final = "x"
LINK: Final = "l"
_LETTERS: Mapping[bytes, Kind] = {b"D": FOLDER, b"F": FILE, b"X": PROGRAM, b"L": LINK}
_NAMES = b"N"


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What lies at a path.

    Attributes:
        kind: `d` a folder, `f` a file, `x` a file that may be executed, `l` a symbolic link.
        content: address of a file's bytes, target of a link; empty for a folder.
        size_bytes: of a file's bytes.
    """

    kind: Kind
    content: bytes = b""
    size_bytes: int = 0

    @property
    def is_file(self) -> bool:
        return self.kind in (FILE, PROGRAM)


Tree = Mapping[bytes, Entry]
"""Entries by path; the root has none."""


class ChangesRefused(ValueError):
    """What came out of the sandbox is no change of a workspace, or leads to one over its bounds."""


class Record(msgspec.Struct, frozen=True):
    """One thing that a call says of its workspace.

    Attributes:
        path: where; empty for the root.
        entry: what lies there now; None when `names` tells what is left in the folder.
        names: everything in the folder.
        data: bytes of a file.
    """

    path: bytes
    entry: Entry | None
    names: frozenset[bytes] = frozenset()
    data: bytes = b""


def revision_of(tree: Tree) -> tuple[Address, bytes]:
    """The tree's content address, and the bytes that hash to it."""
    data = canonical_bytes(sorted(tree.items()))
    return address_of(data), data


def read_tree(data: bytes) -> dict[bytes, Entry]:
    """The tree of a revision's bytes. Raises msgspec.DecodeError or ChangesRefused."""
    tree = dict(msgspec.msgpack.decode(data, type=list[tuple[bytes, Entry]]))
    check_tree(tree)
    return tree


def check_tree(tree: Tree) -> None:
    """Raises ChangesRefused when a path is not plain, or its parent no folder."""
    for path in tree:
        _check_path(path)
        parent = path.rpartition(b"/")[0]
        if parent and (parent not in tree or tree[parent].kind != FOLDER):
            raise ChangesRefused(f"{path!r} lies in no folder")


def _check_path(path: bytes) -> None:
    parts = path.split(b"/")
    if len(path) > MAX_PATH_BYTES or b"\0" in path or any(part in (b"", b".", b"..") for part in parts):
        raise ChangesRefused(f"path {path[:64]!r} is not plain, or longer than {MAX_PATH_BYTES} bytes")


def read_records(data: bytes) -> list[Record]:
    """Records as the sandbox writes them: one letter, then a path and a content, each behind its length in 4 bytes.

    Raises:
        ChangesRefused: when it is anything else.
    """
    records: list[Record] = []
    position = 0
    while position < len(data):
        letter = data[position : position + 1]
        path, position = _chunk(data, position + 1)
        content, position = _chunk(data, position)
        if path:
            _check_path(path)
        if letter == _NAMES:
            records.append(Record(path, None, frozenset(content.split(b"\0")) if content else frozenset()))
            continue
        kind = _LETTERS.get(letter)
        if kind is None or not path:
            raise ChangesRefused(f"record {letter!r} of {path[:64]!r} is unknown")
        if kind in (FILE, PROGRAM):
            entry = Entry(kind, address_of(content).encode(), len(content))
            records.append(Record(path, entry, data=content))
        elif kind == LINK and not content:
            raise ChangesRefused(f"{path[:64]!r} links to nothing")
        else:
            records.append(Record(path, Entry(kind, content if kind == LINK else b"")))
    return records


def _chunk(data: bytes, position: int) -> tuple[bytes, int]:
    start = position + 4
    end = start + int.from_bytes(data[position:start], "little")
    if start > len(data) or end > len(data):
        raise ChangesRefused("it ends in the middle of a record")
    return data[start:end], end


def changed(tree: Tree, records: Sequence[Record], *, max_bytes: int, max_entries: int) -> dict[bytes, Entry]:
    """The tree after a call.

    Raises:
        ChangesRefused: when the outcome is no tree, or over a bound.
    """
    now = dict(tree)
    for record in records:
        if record.entry is not None:
            if now.get(record.path) != record.entry and record.entry.kind != FOLDER:
                _drop(now, record.path)
            now[record.path] = record.entry
    kept = {record.path: record.names for record in records if record.entry is None}
    for path in list(now):
        parent, _, name = path.rpartition(b"/")
        if path in now and parent in kept and name not in kept[parent]:
            _drop(now, path)
    check_tree(now)
    size_bytes = sum(entry.size_bytes for entry in now.values())
    if size_bytes > max_bytes or len(now) > max_entries:
        raise ChangesRefused(
            f"the workspace would hold {size_bytes} bytes in {len(now)} files and folders; "
            f"the bounds are {max_bytes} and {max_entries}"
        )
    return now


def _drop(tree: dict[bytes, Entry], path: bytes) -> None:
    """Takes a path out, with everything below a folder."""
    entry = tree.pop(path, None)
    if entry is not None and entry.kind == FOLDER:
        for below in [other for other in tree if other.startswith(path + b"/")]:
            del tree[below]


def tree_of_files(files: Mapping[str, str]) -> tuple[dict[bytes, Entry], dict[bytes, bytes]]:
    """A tree and the bytes of its files by address, from texts by path. Raises ChangesRefused."""
    tree: dict[bytes, Entry] = {}
    contents: dict[bytes, bytes] = {}
    for name, text in sorted(files.items()):
        path, data = name.encode(), text.encode()
        _check_path(path)
        parts = path.split(b"/")
        for parent in itertools.accumulate(parts[:-1], lambda left, right: left + b"/" + right):
            tree.setdefault(parent, Entry(FOLDER))
        content = address_of(data).encode()
        tree[path], contents[content] = Entry(FILE, content, len(data)), data
    check_tree(tree)
    return tree, contents


def removed(tree: Tree, base: Tree) -> Iterable[bytes]:
    """Paths of the base that the tree lacks although it has the folder around them, topmost only."""
    for path in base:
        parent = path.rpartition(b"/")[0]
        has_folder = not parent or (parent in tree and tree[parent].kind == FOLDER)
        if path not in tree and has_folder:
            yield path
