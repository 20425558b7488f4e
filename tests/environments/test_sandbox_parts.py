"""The small parts of the sandbox: wire, call filter, artifact check, launch order."""

import contextlib
import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.environments.sandbox.artifact import ArtifactRefused, checked_artifact
from headrace.environments.sandbox.inside import wire
from headrace.environments.sandbox.inside.confine import call_filter
from headrace.environments.sandbox.launch import possible_levels
from headrace.environments.sandbox.options import SandboxOptions
from headrace.environments.sandbox.python_root import find_python_root
from headrace.processes.frames import Frame, FrameReader, Kind, encode_frame


@given(st.integers(0, 2**32 - 1), st.text(max_size=300), st.binary(max_size=70_000))
def test_the_inside_reads_what_the_parent_writes(call_id: int, method: str, payload: bytes) -> None:
    read = wire._value
    body = encode_frame(Frame(Kind.CALL, call_id, method, payload))[4:]
    kind, position = read(body, 1)
    found_id, position = read(body, position)
    found_method, position = read(body, position)
    found_payload, position = read(body, position)
    assert (kind, found_id, found_method, found_payload) == (Kind.CALL, call_id, method.encode(), payload)
    assert position == len(body)


@given(st.integers(0, 2**32 - 1), st.text(max_size=300), st.binary(max_size=4_000))
def test_the_parent_reads_what_the_inside_writes(call_id: int, text: str, payload: bytes) -> None:
    reading, writing = os.pipe()
    try:
        wire.send(writing, wire.REJECT, call_id, text=text, payload=payload)
        frames = FrameReader().feed(os.read(reading, 1 << 16))
    finally:
        os.close(reading)
        os.close(writing)
    assert frames == [Frame(Kind.REJECT, call_id, text, payload)]
    assert (wire.HELLO, wire.REPLY, wire.REJECT) == (Kind.HELLO, Kind.REPLY, Kind.REJECT)


def verdict(program: bytes, arch: int, number: int, argument: int = 0) -> int:
    """What a seccomp program returns; the few instructions that it may use."""
    data = struct.pack("<IIQQ", number, arch, 0, argument)
    code = [struct.unpack_from("<HBBI", program, start) for start in range(0, len(program), 8)]
    position = accumulator = 0
    while True:
        opcode, jump_true, jump_false, operand = code[position]
        position += 1
        match opcode:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, operand)
            case 0x06:
                return operand
            case 0x15:
                position += jump_true if accumulator == operand else jump_false
            case 0x35:
                position += jump_true if accumulator >= operand else jump_false
            case 0x45:
                position += jump_true if accumulator & operand else jump_false


@pytest.mark.parametrize(
    ("machine", "arch", "read", "unshare", "clone"),
    [("x86_64", 0xC000003E, 0, 272, 56), ("aarch64", 0xC00000B7, 63, 97, 220)],
)
def test_the_call_filter_allows_work_and_forbids_new_name_spaces(
    machine: str, arch: int, read: int, unshare: int, clone: int
) -> None:
    program = call_filter(machine)
    allow, forbid, unknown, kill = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
    assert verdict(program, arch, read) == allow
    assert verdict(program, arch, unshare) == forbid
    assert verdict(program, arch, clone, 17) == allow
    assert verdict(program, arch, clone, 0x003D0F00) == allow  # what a thread is made with
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(program, arch, clone, flag | 17) == forbid
    assert verdict(program, arch, 435) == unknown
    assert verdict(program, arch, read | 0x40000000) == unknown
    assert verdict(program, 0x40000003, read) == kill
    assert call_filter("riscv64") == b""


def packed(*files: tuple[bytes, bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(part)) + part for file in files for part in file)


def test_an_artifact_is_canonical_whatever_the_order() -> None:
    one = checked_artifact(packed((b"a/b", b"1"), (b"c", b"2")), 100)
    assert one == checked_artifact(packed((b"c", b"2"), (b"a/b", b"1")), 100)
    assert checked_artifact(b"", 100) == b""


@pytest.mark.parametrize(
    "name", [b"/etc/passwd", b"../up", b"a/../../b", b"a//b", b"./a", b".", b"", b"a\0b", b"a\nb", b"\xff", b"x" * 300]
)
def test_a_name_that_reaches_out_is_refused(name: bytes) -> None:
    with pytest.raises(ArtifactRefused):
        checked_artifact(packed((name, b"1")), 1000)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_artifact_or_refused(data: bytes) -> None:
    with contextlib.suppress(ArtifactRefused):
        assert len(checked_artifact(data, 150)) <= 150


def test_a_name_that_comes_twice_and_a_cut_file_are_refused() -> None:
    for data in (packed((b"a", b"1"), (b"a", b"2")), packed((b"a", b"1"))[:-1], b"\x05", packed((b"a", bytes(200)))):
        with pytest.raises(ArtifactRefused):
            checked_artifact(data, 150)


def test_levels_are_tried_from_the_strongest_and_weak_ones_only_when_allowed() -> None:
    strict = possible_levels(SandboxOptions())
    assert "rlimits" not in strict
    assert possible_levels(SandboxOptions(allow_weak_isolation=True)) == [*strict, "rlimits"]
    assert possible_levels(SandboxOptions(level="rlimits")) == []


def test_the_visible_tree_holds_no_installed_package_and_no_home() -> None:
    root = find_python_root()
    for path in root.visible:
        assert "site-packages" not in path
        assert "dist-packages" not in path
        assert path not in ("/", "/usr", "/home", "/root", "/etc", "/usr/lib")
