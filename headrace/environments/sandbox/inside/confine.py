"""What a sandboxed process gives up before it looks at anything that the policy wrote.

Invariant: the order is mounts, limits, user, capabilities, system calls, so that each step still has the right that it
needs and none is left at the end. What could not be given up is returned by name, never ignored.
"""

import contextlib
import ctypes
import os
import platform
import resource
import signal
import struct
from pathlib import Path
from typing import TypedDict

SCRATCH = "/scratch"

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 2, 4, 32
_CAPABILITY_VERSION_3 = 0x20080522


class Limits(TypedDict):
    """Bounds of one process, and of the scratch folder.

    `uid` is the user to become, None to stay; `is_shared` tells that other sandboxes are the same user, so that a limit
    would count their processes as well; `has_mounts` tells whether the scratch folder is a file system of its own.
    """

    memory_bytes: int
    cpu_s: int
    file_bytes: int
    processes: int
    open_files: int
    scratch_bytes: int
    scratch_files: int
    uid: int | None
    is_shared: bool
    has_mounts: bool


def confine(limits: Limits) -> list[str]:
    """Names of what could not be confined; empty where everything was."""
    libc = ctypes.CDLL(None, use_errno=True)
    missing: list[str] = []
    os.environ.clear()
    if not limits["has_mounts"]:
        os.chdir("/")
    elif not _bound_scratch(libc, limits):
        missing.append("number of files")
    _set_limits(limits)
    if limits["uid"] is not None:
        _become(limits["uid"])
    if limits["is_shared"] or (os.getuid() == 0 and _is_host_root()):
        missing.append("number of processes by rlimit")
    header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
    if libc.capset(header, bytes(24)) != 0:
        missing.append("capabilities")
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if not _filter_calls(libc):
        missing.append("system calls")
    return missing


def _bound_scratch(libc: ctypes.CDLL, limits: Limits) -> bool:
    """A bound of their own: bubblewrap bounds the bytes of a tmpfs but not its files, and a file costs kernel memory."""
    options = f"size={limits['scratch_bytes']},nr_inodes={limits['scratch_files']}"
    flags = _MS_REMOUNT | _MS_NOSUID | _MS_NODEV
    return libc.mount(b"tmpfs", SCRATCH.encode(), b"tmpfs", flags, options.encode()) == 0


def _set_limits(limits: Limits) -> None:
    bounds = {
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NPROC: limits["processes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_CORE: 0,
    }
    for name, bound in bounds.items():
        if name != resource.RLIMIT_NPROC or not limits["is_shared"]:
            resource.setrlimit(name, (bound, bound))
    # One second between the signal that can be reported and the end.
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_s"], limits["cpu_s"] + 1))
    # A write over the bound is then an error that the writer sees, not its death.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _is_host_root() -> bool:
    """Whether user 0 here is user 0 outside, whom RLIMIT_NPROC does not bind."""
    with contextlib.suppress(OSError, ValueError), Path("/proc/self/uid_map").open(encoding="ascii") as lines:
        return any(line.split()[:2] == ["0", "0"] for line in lines)
    return True


# Ways to a new namespace, to foreign memory, to kernel interfaces with a long history of faults, and to memory that no
# limit of a single process counts.
_MACHINES = ("x86_64", "aarch64")
_DENIED = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_setup": (425, 425),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "request_key": (249, 218),
    "semget": (64, 190),
    "setns": (308, 268),
    "shmget": (29, 194),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_X32_BIT = 0x40000000
_NEW_NAMESPACES = 0x7E020000

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026


def call_filter(machine: str) -> bytes:
    """A seccomp program that lets everything through but `_DENIED` and new namespaces; empty for an unknown machine.

    `clone3` answers ENOSYS, since its flags lie in memory that a filter cannot read; the C library then uses `clone`.
    """
    if machine not in _MACHINES:
        return b""
    program: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, 4),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
        (_JUMP_AT_LEAST, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, _ENOSYS),
        (_JUMP_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ENOSYS),
    ]
    for numbers in _DENIED.values():
        program += [(_JUMP_EQUAL, 0, 1, numbers[_MACHINES.index(machine)]), (_RETURN, 0, 0, _EPERM)]
    program += [
        (_JUMP_EQUAL, 0, 3, _CLONE[machine]),
        (_LOAD, 0, 0, 16),
        (_JUMP_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def _filter_calls(libc: ctypes.CDLL) -> bool:
    code = call_filter(platform.machine())
    if not code:
        return False
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    return libc.prctl(_PR_SET_SECCOMP, 2, program, 0, 0) == 0
