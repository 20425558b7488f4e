"""What an episode hands to the grader: named bytes, and nothing that could reach outside of them.

Invariant: an artifact that passes has relative names without `..`, each once, and is within its bound; anything else is
refused whole.
"""

from pathlib import PurePosixPath

import msgspec

MAX_FILES = 256
MAX_NAME_BYTES = 255


class ArtifactRefused(ValueError):
    """The sandbox handed over something that no artifact may be."""


def checked_artifact(data: bytes, max_bytes: int) -> bytes:
    """Canonical msgpack map from name to bytes, sorted; empty for no files.

    `data` is a sequence of name length (4 bytes, little-endian), name, size (the same), bytes.

    Raises:
        ArtifactRefused: when it is anything else, or over a bound.
    """
    files: dict[str, bytes] = {}
    position = 0
    while position < len(data):
        raw_name, position = _chunk(data, position)
        content, position = _chunk(data, position)
        name = _checked_name(raw_name)
        if name in files:
            raise ArtifactRefused(f"{name} comes twice")
        files[name] = content
        if len(files) > MAX_FILES:
            raise ArtifactRefused(f"more than {MAX_FILES} files")
    if not files:
        return b""
    packed = msgspec.msgpack.encode(dict(sorted(files.items())))
    if len(packed) > max_bytes:
        raise ArtifactRefused(f"{len(packed)} bytes; the bound is {max_bytes}")
    return packed


def _chunk(data: bytes, position: int) -> tuple[bytes, int]:
    start = position + 4
    end = start + int.from_bytes(data[position:start], "little")
    if start > len(data) or end > len(data):
        raise ArtifactRefused("it ends in the middle of a file")
    return data[start:end], end


def _checked_name(raw: bytes) -> str:
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactRefused(f"name {raw[:64]!r} is not UTF-8") from error
    path = PurePosixPath(name)
    is_plain = name == str(path) and not path.is_absolute() and ".." not in path.parts and name.isprintable()
    if not is_plain or name == "." or len(raw) > MAX_NAME_BYTES:
        raise ArtifactRefused(f"name {name[:64]!r} is not a plain relative path")
    return name
