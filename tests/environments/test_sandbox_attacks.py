"""What hostile code tries in the sandbox, and what comes of it: a receipt for the policy, and nothing for anyone else."""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_case import Sandboxed, SharedSandbox, descendants, is_alive, run

from headrace.environments.sandbox.environment import RESTARTED
from headrace.records.execution import ExecutionStatus

PROJECT = Path(__file__).resolve().parents[2]
CANARY = "canary-5f3a9c"


@pytest.fixture(scope="module")
def shared() -> Iterator[SharedSandbox]:
    sandbox = SharedSandbox(wall_s=2.0)
    yield sandbox
    sandbox.close()


def refused(code: str) -> str:
    """Code that prints `refused` when the attempt fails, and what it got otherwise."""
    return f"try:\n    print('got', {code})\nexcept BaseException as error:\n    print('refused', type(error).__name__)"


def test_code_cannot_change_what_a_later_interpreter_imports(shared: SharedSandbox) -> None:
    attempts = """
import os, sys
for folder in [*sys.path, os.path.dirname(os.__file__), '/sandbox', '/', os.path.dirname(sys.executable)]:
    for name in ('sitecustomize.py', 'usercustomize.py', 'conftest.py', 'evil.pth', 'random.py'):
        try:
            open(os.path.join(folder, name), 'w').write('raise SystemExit')
            print('wrote', folder, name)
        except OSError:
            pass
os.environ['PYTHONPATH'] = '/scratch'
open('/scratch/sitecustomize.py', 'w').write('raise SystemExit')
import random
random.random = lambda: 'evil'
"""

    async def scenario(sandbox: Sandboxed) -> None:
        assert (await sandbox.python(attempts)).output == b"28\n" * 0
        assert b"evil" not in (await sandbox.python("import random; random.random()", episode=1)).output
        assert (await sandbox.python("import os; os.listdir('/scratch')", episode=1)).output == b"[]\n"

    shared.run(scenario)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; sys.exit(0)", ExecutionStatus.TOOL_ERROR),
        ("import os; os._exit(0)", ExecutionStatus.KILLED),
        ("import os; os._exit(137)", ExecutionStatus.KILLED),
        ("import ctypes; ctypes.string_at(0)", ExecutionStatus.KILLED),
        ("import os\nfor fd in range(64):\n    try: os.close(fd)\n    except OSError: pass", ExecutionStatus.KILLED),
    ],
)
def test_leaving_early_is_never_success_and_always_the_policys_doing(
    shared: SharedSandbox, code: str, status: ExecutionStatus
) -> None:
    async def scenario(sandbox: Sandboxed) -> None:
        assert (await sandbox.python(code)).status is status
        after = await sandbox.python("6 * 7")
        assert after.status is ExecutionStatus.OK
        assert after.output.removeprefix(RESTARTED) == b"42\n"

    shared.run(scenario)


def test_dying_between_two_calls_is_the_policys_doing_too(shared: SharedSandbox) -> None:
    async def scenario(sandbox: Sandboxed) -> None:
        code = "import os, threading\nthreading.Timer(0.05, os._exit, (0,)).start()"
        assert (await sandbox.python(code)).status is ExecutionStatus.OK
        await (await sandbox.process()).child.wait_lost()
        assert (await sandbox.python("6 * 7")).output == RESTARTED + b"42\n"

    shared.run(scenario)


@pytest.mark.parametrize("level", ["bubblewrap_root", "bubblewrap"])
def test_signals_from_inside_reach_nothing_outside(level: str) -> None:
    async def scenario(sandbox: Sandboxed) -> None:
        for number in (9, 15, 2):
            for target in ("1", "0", "-1", "os.getppid()", "-os.getpgrp()"):
                # Where a target can be reached it is the interpreter itself, and the receipt says so.
                code = f"import os\ntry: os.kill({target}, {number})\nexcept OSError: pass\n5"
                assert (await sandbox.python(code)).status in (
                    ExecutionStatus.OK,
                    ExecutionStatus.KILLED,
                    ExecutionStatus.TOOL_ERROR,
                )
        assert (await sandbox.python("1", episode=1)).output == b"1\n"

    run(scenario, level=level)


@pytest.mark.slow
def test_a_forged_answer_on_the_channel_is_the_policys_own_loss(shared: SharedSandbox) -> None:
    forge = """
import os, struct
for fd in range(3, 64):
    try:
        os.write(fd, {payload})
    except OSError:
        pass
import time; time.sleep(5)
"""

    async def scenario(sandbox: Sandboxed) -> None:
        for payload in ("b'\\xff' * 100", "b'ALL TESTS PASSED\\n' * 20", "struct.pack('<I', 200_000_000)"):
            receipt = await sandbox.python(forge.format(payload=payload))
            assert receipt.status in (ExecutionStatus.KILLED, ExecutionStatus.TIMEOUT)
        printed = await sandbox.python("print('ALL TESTS PASSED')\nprint('{\"reward\": 1}')\n1 / 0")
        assert printed.status is ExecutionStatus.TOOL_ERROR

    shared.run(scenario)


def test_nothing_of_the_host_can_be_read(
    shared: SharedSandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLOUD_SECRET", CANARY)
    run_folder = tmp_path / "answers"
    run_folder.mkdir()
    (run_folder / "answers.json").write_text(CANARY)
    paths = [PROJECT, PROJECT / "pyproject.toml", run_folder / "answers.json", "/etc/passwd", "/etc/hostname", "/home"]
    paths += [f"/proc/{os.getpid()}/environ", f"/proc/{os.getpid()}/root", "/proc/1/root/etc/passwd", "/sys", "/run"]

    async def scenario(sandbox: Sandboxed) -> None:
        for path in map(str, paths):
            output = (await sandbox.python(refused(f"open({path!r}).read()"))).output
            assert output.startswith(b"refused"), (path, output)
            listing = (await sandbox.python(refused(f"__import__('os').listdir({path!r})"))).output
            assert listing.startswith(b"refused"), (path, listing)
        for module in ("headrace", "reasoning_gym", "msgspec", "torch", "numpy", "pytest"):
            assert (await sandbox.python(refused(f"__import__({module!r}).__file__"))).output.startswith(b"refused")
        seen = await sandbox.python(
            "import glob, os\nprint(dict(os.environ))\nfor path in glob.glob('/proc/[0-9]*/environ'):\n"
            "    try: print(open(path, 'rb').read())\n    except OSError: pass\n"
            "print(sorted(int(p) for p in os.listdir('/proc') if p.isdigit()))"
        )
        assert CANARY.encode() not in seen.output
        assert seen.output.startswith(b"{}\n")
        assert seen.output.endswith((b"[1]\n", b"[1, 2]\n"))

    shared.run(scenario)


def test_nothing_outside_the_scratch_folder_can_be_written(shared: SharedSandbox, tmp_path: Path) -> None:
    paths = [
        tmp_path / "journal.db",
        PROJECT / "runs" / "x",
        "/dev/shm/x",
        "/dev/x",
        "/sandbox/x",
        "/proc/sys/kernel/hostname",
    ]
    paths += ["/proc/sysrq-trigger", "/x", "/tmp/x", "/lib/x"]

    async def scenario(sandbox: Sandboxed) -> None:
        for path in map(str, paths):
            output = (await sandbox.python(refused(f"open({path!r}, 'w').write('x')"))).output
            assert output.startswith(b"refused"), (path, output)

    shared.run(scenario)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "code",
    [
        "__import__('socket').create_connection(('1.1.1.1', 53), 2)",
        "__import__('socket').create_connection(('169.254.169.254', 80), 2)",
        "__import__('socket').getaddrinfo('example.org', 80)",
        "__import__('urllib.request').request.urlopen('http://169.254.169.254/latest/meta-data/', timeout=2)",
        "__import__('socket').socket(__import__('socket').AF_UNIX).connect('/run/docker.sock')",
    ],
)
def test_there_is_no_network_and_the_attempt_is_in_the_receipt(shared: SharedSandbox, code: str) -> None:
    async def scenario(sandbox: Sandboxed) -> None:
        receipt = await sandbox.python(code)
        assert receipt.status is ExecutionStatus.TOOL_ERROR
        assert b"rror: " in receipt.output

    shared.run(scenario)


def test_kernel_interfaces_that_lead_out_are_closed(shared: SharedSandbox) -> None:
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
calls = {
    'unshare user': lambda: libc.unshare(0x10000000),
    'unshare mount': lambda: libc.unshare(0x20000),
    'mount': lambda: libc.mount(b'tmpfs', b'/scratch', b'tmpfs', 0, None),
    'umount': lambda: libc.umount2(b'/proc', 2),
    'remount': lambda: libc.mount(None, b'/', None, 32, None),
    'chroot': lambda: libc.chroot(b'/'),
    'ptrace': lambda: libc.ptrace(16, 1, 0, 0),
    'memfd': lambda: libc.memfd_create(b'x', 0),
    'shm': lambda: libc.shmget(0, 1 << 20, 0o1000 | 0o600),
    'setuid': lambda: libc.setuid(os.getuid() + 1),
    'mknod': lambda: libc.mknod(b'/scratch/disk', 0o60600, 0x0800),
    'clone': lambda: libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0) if os.uname().machine == 'x86_64' else -1,
}
print([name for name, call in calls.items() if call() != -1])
"""

    async def scenario(sandbox: Sandboxed) -> None:
        assert (await sandbox.python(code)).output == b"[]\n"
        raised = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))"
        assert (await sandbox.python(raised)).status is ExecutionStatus.TOOL_ERROR

    shared.run(scenario)


def test_a_daemon_dies_with_its_episode_and_changes_no_artifact(shared: SharedSandbox) -> None:
    daemon = """
import os, time
os.makedirs('/scratch/artifact')
open('/scratch/artifact/answer', 'w').write('before')
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            time.sleep(0.001)
            open('/scratch/artifact/answer', 'w').write('edited by the daemon')
    os._exit(0)
"""

    async def scenario(sandbox: Sandboxed) -> None:
        await sandbox.python(daemon)
        process = await sandbox.process()
        alive = descendants(process.child.pid) | {process.child.pid}
        assert len(alive) >= 3
        first = await sandbox.artifact()
        assert first
        assert await sandbox.artifact() == first
        await sandbox.close()
        assert not [pid for pid in alive if is_alive(pid)]

    shared.run(scenario)


def test_an_artifact_is_the_regular_files_of_its_folder(shared: SharedSandbox) -> None:
    async def scenario(sandbox: Sandboxed) -> None:
        assert await sandbox.artifact() == b""
        await sandbox.python(
            "import os; os.makedirs('/scratch/artifact/a'); open('/scratch/artifact/a/b', 'wb').write(b'\\xff\\x00')\n"
            "open('/scratch/artifact/z', 'w').write('last'); open('/scratch/private', 'w').write('no')"
        )
        assert await sandbox.artifact() == b"\x82\xa3a/b\xc4\x02\xff\x00\xa1z\xc4\x04last"

    shared.run(scenario)


@pytest.mark.parametrize(
    "code",
    [
        "os.symlink('/proc/self/environ', 'artifact/link')",
        "os.symlink('artifact/link', 'artifact/link')",
        "open('artifact/a', 'w').close(); os.link('artifact/a', 'artifact/b')",
        "os.mkfifo('artifact/fifo')",
        "[open(f'artifact/{n}', 'w').close() for n in range(300)]",
        "open('artifact/big', 'wb').write(bytes(2_000_000))",
        "open(b'artifact/\\xff', 'w').close()",
        "open('artifact/new\\nline', 'w').close()",
    ],
)
def test_an_artifact_with_anything_else_in_it_is_refused_whole(shared: SharedSandbox, code: str) -> None:
    async def scenario(sandbox: Sandboxed) -> None:
        receipt = await sandbox.python(f"import os\nos.chdir('/scratch'); os.mkdir('artifact')\n{code}")
        assert receipt.status is ExecutionStatus.OK
        refused_before = sandbox.environment.artifacts_refused
        assert await sandbox.artifact() == b""
        assert sandbox.environment.artifacts_refused == refused_before + 1

    shared.run(scenario)


def test_escapes_and_invalid_text_are_kept_byte_for_byte(shared: SharedSandbox) -> None:
    async def scenario(sandbox: Sandboxed) -> None:
        raw = b"\x1b[2J\x1b]0;title\x07\xff\xfe\x00 no newline"
        receipt = await sandbox.python(f"import os; _ = os.write(1, {raw!r})")
        assert receipt.output == raw
        assert (await sandbox.python("print('\\ud800')")).status in ExecutionStatus

    shared.run(scenario)


def test_a_flood_is_cut_and_counted_and_holds_up_nobody(shared: SharedSandbox) -> None:
    async def scenario(sandbox: Sandboxed) -> None:
        flood = "import os\nblock = b'x' * 65536\nfor _ in range(2000): os.write(1, block)"
        receipt = await sandbox.python(flood)
        assert receipt.status is ExecutionStatus.OK
        assert receipt.output_bytes == 2000 * 65536
        assert len(receipt.output) <= 16_384 + 64

    shared.run(scenario)


EXHAUSTION = {
    "memory": ("x = []\nwhile True: x.append(bytearray(1 << 20))", {ExecutionStatus.OUT_OF_MEMORY}),
    "fork bomb": ("import os\nwhile True: os.fork()", {ExecutionStatus.TOOL_ERROR}),
    "threads": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()",
        {ExecutionStatus.TOOL_ERROR},
    ),
    "disk": (
        "n = 0\nwhile True:\n    open(f'/scratch/{n}', 'wb').write(bytes(1 << 20)); n += 1",
        {ExecutionStatus.TOOL_ERROR},
    ),
    "one file": ("open('/scratch/a', 'wb').write(bytes(1 << 25))", {ExecutionStatus.TOOL_ERROR}),
    "inodes": ("n = 0\nwhile True:\n    open(f'/scratch/{n}', 'w').close(); n += 1", {ExecutionStatus.TOOL_ERROR}),
    "descriptors": ("files = []\nwhile True: files.append(open('/dev/null'))", {ExecutionStatus.TOOL_ERROR}),
    "sleep": ("import time; time.sleep(10 ** 6)", {ExecutionStatus.TIMEOUT}),
    "recursion": ("def f(): f()\nf()", {ExecutionStatus.TOOL_ERROR}),
    "big number": ("10 ** 10 ** 9", {ExecutionStatus.TIMEOUT, ExecutionStatus.OUT_OF_MEMORY}),
}


SLOW = ("sleep", "big number")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in EXHAUSTION])
def test_a_resource_that_runs_out_is_the_policys_outcome(shared: SharedSandbox, name: str) -> None:
    code, expected = EXHAUSTION[name]

    async def scenario(sandbox: Sandboxed) -> None:
        assert (await sandbox.python(code)).status in expected
        assert (await sandbox.python("6 * 7", episode=1)).output == b"42\n"

    shared.run(scenario)


@pytest.mark.slow
def test_several_processes_together_stay_within_the_memory_bound_where_groups_can_be_written() -> None:
    balloon = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        x = bytearray(40 << 20)
        for i in range(0, len(x), 4096): x[i] = 1
        time.sleep(60)
os.wait()
"""

    async def scenario(sandbox: Sandboxed) -> None:
        receipt = await sandbox.python(balloon)
        if "memory of all processes together" not in sandbox.environment.isolation.missing:
            assert receipt.status is ExecutionStatus.OUT_OF_MEMORY
            assert receipt.metering.memory_peak_bytes <= (160 + 33) << 20
        assert (await sandbox.python("6 * 7", episode=1)).output == b"42\n"

    run(scenario, wall_s=5.0, memory_bytes=160 << 20)


@pytest.mark.slow
def test_neighbours_stay_fast_while_others_do_their_worst() -> None:
    async def scenario(sandbox: Sandboxed) -> None:
        await sandbox.calculator("1", episode=100)
        hostile = [asyncio.create_task(sandbox.python(code, n)) for n, (code, _) in enumerate(EXHAUSTION.values())]
        waits: list[float] = []
        while not all(task.done() for task in hostile):
            start_s = time.monotonic()
            assert (await sandbox.calculator("6 * 7", episode=100)).output == b"42"
            waits.append(time.monotonic() - start_s)
        await asyncio.gather(*hostile)
        waits.sort()
        assert waits[int(len(waits) * 0.95)] < 0.25

    run(scenario, wall_s=3.0)
