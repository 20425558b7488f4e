"""What a worker gives up once it is loaded and before it reads its first message.

Invariant: afterwards it has no capability, no program that it starts can gain rights, and no other process of its user can
read its memory or its environment. Where it was told to be another user it is that one, without groups. Where the kernel has
Landlock it reads the named folders alone, writes nothing, and opens no TCP connection.
"""

import ctypes
import os
import struct
import sys
from collections.abc import Sequence

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_CAPABILITY_VERSION_3 = 0x20080522
# The same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 2, 1 << 3
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of rights on files that each version knows; later versions know as many as the fifth."""
_CONNECT_AND_BIND, _NETWORK_SINCE = 0b11, 4
_SIGNALS_AND_SOCKETS, _SCOPES_SINCE = 0b11, 6


def landlock_version() -> int:
    """Version of the kernel's Landlock; 0 where there is none."""
    if sys.platform != "linux":
        return 0
    return max(0, _libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION))


def give_up_rights(uid: int | None, readable: Sequence[str]) -> None:
    """Becomes the user, if one is given, and closes this process to its neighbours and the files to this process.

    Has to come before the channel is opened and before there is a second thread: becoming another user takes back the
    death with the parent, and Landlock binds the calling thread and what it starts.

    Raises:
        OSError: when the platform refuses.
    """
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if sys.platform != "linux":
        return
    for option, value in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_DUMPABLE, 0)):
        _succeed(_libc().prctl(option, value, 0, 0, 0), f"prctl {option}")
    _succeed(_libc().capset(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24)), "capset")
    version = landlock_version()
    if version:
        _confine(version, readable)


def _confine(version: int, readable: Sequence[str]) -> None:
    libc, rights = _libc(), (1 << _FILE_RIGHTS.get(version, 16)) - 1
    network = _CONNECT_AND_BIND if version >= _NETWORK_SINCE else 0
    scopes = _SIGNALS_AND_SOCKETS if version >= _SCOPES_SINCE else 0
    # An older kernel takes the longer structure as long as what it does not know is zero.
    attributes = struct.pack("=QQQ", rights, network, scopes)
    rules = _succeed(libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0), "a rule set")
    for path in readable:
        allowed = _EXECUTE | _READ_FILE | (_READ_FOLDER if os.path.isdir(path) else 0)  # noqa: PTH112
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            rule = struct.pack("=Qi", allowed, fd)
            _succeed(libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0), path)
        finally:
            os.close(fd)
    _succeed(libc.syscall(_RESTRICT_SELF, rules, 0), "the rule set")
    os.close(rules)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _succeed(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: the kernel refuses")
    return result
