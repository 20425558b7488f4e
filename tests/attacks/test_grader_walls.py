"""Whatever place the grader has, tools can neither find nor imitate nor stop it, and its loss costs no verdict."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from attacks.hostile_runs import Behaviour, Played, after, answer_of, calculates, play, python, say
from grader_case import value_of
from sandbox_case import descendants

from headrace.config import GraderSection
from headrace.environments.sandbox.options import Isolation
from headrace.errors import ConfigError
from headrace.graders import ChildGrader
from headrace.processes.bubblewrap import find_bubblewrap
from headrace.processes.frames import Frame, Kind, encode_frame
from headrace.records.batch import BatchPlanned
from headrace.records.events import Event
from headrace.records.ids import Address
from headrace.records.run import RunEnded
from headrace.records.task import Task
from headrace.records.trajectory import TranscriptSealed
from headrace.records.verdict import Scored, Verdict, VerdictSealed
from headrace.runtime.placement import place_grader
from headrace.runtime.walls import PACKAGE
from headrace.runtime.workers.rights import landlock_version
from headrace.simulation.scripted import ScriptedTurn

pytestmark = pytest.mark.slow
PLACEMENTS = ("service", "environment", "rollout")
NAMESPACES = Isolation("bubblewrap", "rusage", ())
SITE_PACKAGES = Path(msgspec.__file__).parents[1]

HUNT = """
import glob, os
found = []
for path in {paths!r}:
    for look in (os.listdir, lambda name: open(name, 'rb').read(64), os.stat):
        try:
            look(path); found.append(path)
        except OSError:
            pass
    try:
        open(os.path.join(path, 'forged'), 'w'); found.append('wrote ' + path)
    except OSError:
        pass
for name in ('reasoning_gym', 'headrace', 'headrace.graders', 'msgspec'):
    try:
        __import__(name); found.append(name)
    except ImportError:
        pass
for path in glob.glob('/proc/[0-9]*/*'):
    try:
        found += [path] if b'grader' in open(path, 'rb').read(1 << 16) and 'headrace.runtime' in path else []
    except OSError:
        pass
for pid in {pids!r}:
    try:
        os.kill(pid, 9); found.append(f'killed {{pid}}')
    except OSError:
        pass
print('found', found)
"""
FORGE = "import os\nfor fd in range(3, 64):\n    try: os.write(fd, {frame!r})\n    except OSError: pass"


def pids_of_graders() -> list[int]:
    """Processes of the grader of this process, as seen from outside."""
    found = sorted(descendants(os.getpid()))
    return [pid for pid in found if b"workers.grader" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def hunts(folder: Path) -> Behaviour:
    """Looks for the grader, its files and the run; knows every name that there is to know."""

    def behave(task: Task, step: int) -> ScriptedTurn:
        if step:
            return say("0")
        pids = pids_of_graders()
        paths = [folder, folder / "journal.db", PACKAGE / "graders", SITE_PACKAGES / "reasoning_gym"]
        paths += [
            Path(f"/proc/{pid}/{name}") for pid in [*pids, os.getpid()] for name in ("environ", "mem", "root", "fd")
        ]
        return python(HUNT.format(paths=list(map(str, paths)), pids=pids))

    return behave


def forges(task: Task, step: int) -> ScriptedTurn:
    """Writes a verdict to every open descriptor in the words of the grader's own channel."""
    if step:
        return say("0")
    verdict = Verdict(Address("f"), Address("a"), Scored((("answer", 1.0),), "forged"))
    payload = msgspec.msgpack.encode(["f", verdict])
    return python(FORGE.format(frame=encode_frame(Frame(Kind.ITEM, 1, payload=payload))))


@dataclasses.dataclass
class Assassin:
    """Kills the grader with signal 9 as soon as the first transcript of member 0 is sealed, before it is graded."""

    killed: list[int] | None = None

    def __call__(self, event: Event, grader: ChildGrader) -> None:
        if self.killed is None and isinstance(event.payload, TranscriptSealed) and event.key == "train.0.0.0":
            # The process behind the walls first: it cannot answer any more, whatever its guardian outside notices.
            self.killed = pids_of_graders()[::-1]
            for pid in self.killed:
                os.kill(pid, signal.SIGKILL)


RUNS: dict[str, Played] = {}


def run_at(placement: str, make: pytest.TempPathFactory) -> Played:
    if placement not in RUNS:
        folder = make.mktemp(placement)
        behaviours = [calculates, hunts(folder), forges, after(say("0"))]
        RUNS[placement] = play(
            folder, behaviours, watch=Assassin(), grader={"kind": "reasoning_gym", "placement": placement}
        )
    return RUNS[placement]


@pytest.fixture(params=PLACEMENTS)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return run_at(request.param, tmp_path_factory)


def test_a_tool_that_knows_where_to_look_finds_nothing_of_the_grader_or_the_run(played: Played) -> None:
    member = played.member(1)
    assert member.statuses == ["ok"]
    assert member.outputs == ["found []\n"]
    assert value_of(member.verdicts[-1]) == 0.0


def test_a_forged_verdict_ends_the_forgers_tool_and_reaches_no_journal(played: Played) -> None:
    member = played.member(2)
    assert member.statuses == ["killed"]
    assert value_of(member.verdicts[-1]) == 0.0
    sealed = [event.payload.transcript for event in played.events if isinstance(event.payload, VerdictSealed)]
    assert set(sealed) == {m.sealed.transcript for m in played.members.values()}
    assert {verdict.grader for m in played.members.values() for verdict in m.verdicts} == {played.grader.version}


def test_the_answer_stands_in_no_request_task_or_observation(played: Played) -> None:
    """The oracle's answer of the group's task comes to the policy from its own tool or not at all."""
    member = played.member(3)
    request = next(r for r in played.inference.requests if r.request_id == "train.0.3.0/0")
    answer = answer_of_run(played)
    assert answer not in played.text(member).partition("<|im_start|>assistant")[0]
    assert all(segment.behavior_logprobs is None for segment in request.prefix)


def answer_of_run(played: Played) -> str:
    from attacks.hostile_runs import _tasks

    return answer_of(_tasks(played.config).task("train", 0))


def test_a_grader_killed_in_mid_run_leaves_the_reward_absent_until_it_is_graded_again(played: Played) -> None:
    first, *others = [value_of(verdict) for verdict in played.member(0).verdicts]
    assert first == "grader_crash"
    assert others == [1.0]
    assert played.grader.num_restarts == 1
    assert played.outcome("verdict", "graded again") >= 1
    assert "train.0.0.1" not in played.members, "graded again, not rolled again"
    assert [event.payload.rows for event in played.events if isinstance(event.payload, BatchPlanned)] == [4]
    assert played.events[-1].payload == RunEnded("completed", 1)


def test_every_place_gives_the_same_verdict_of_the_same_grader(tmp_path_factory: pytest.TempPathFactory) -> None:
    runs = [run_at(placement, tmp_path_factory) for placement in PLACEMENTS]
    for number in (0, 3):
        assert len({played.member(number).verdicts[-1].address for played in runs}) == 1


def test_only_a_place_without_name_spaces_is_given_where_the_platform_has_none() -> None:
    weak = Isolation("rlimits", "rusage", ())
    with pytest.raises(ConfigError, match=r"grader\.placement is environment"):
        place_grader(GraderSection(kind="reasoning_gym", placement="environment"), weak)
    for placement in ("service", "rollout"):
        place = place_grader(GraderSection(kind="reasoning_gym", placement=placement), weak)
        assert "without name spaces" in place.note


WALLED = """
import asyncio, json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from grader_case import entry_of, submit, value_of
from sandbox_case import descendants
from headrace.config import GraderSection
from headrace.environments.sandbox.options import Isolation
from headrace.graders import ChildGrader
from headrace.processes.child import Child
from headrace.runtime.placement import place_grader

def look(path, read):
    try:
        return read(path)
    except PermissionError:
        return None

async def seen_at(placement):
    section = GraderSection(kind="reasoning_gym", placement=placement)
    place = place_grader(section, Isolation("bubblewrap", "rusage", ()))
    child = await Child.start("grader", place.argv, start_timeout_s=60.0)
    pid = max(descendants(child.pid) | {child.pid})
    status = dict(line.split(":\\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    names = ("mnt", "net", "pid", "ipc", "uts")
    grader = ChildGrader(child)
    verdicts = await grader.grade([submit(entry_of("chain_sum")["answer"]), submit("0")], 30.0)
    seen = {
        "note": place.note,
        "uid": status["Uid"].split()[0],
        "capabilities": int(status["CapEff"], 16),
        "no_new_privileges": status["NoNewPrivs"],
        "shared": [look(f"/proc/{pid}/ns/{n}", os.readlink) == os.readlink(f"/proc/self/ns/{n}") for n in names],
        "environ": look(f"/proc/{pid}/environ", lambda path: Path(path).read_bytes().decode()),
        "verdicts": [value_of(v) for v in verdicts],
        "version": grader.version,
    }
    await grader.close()
    return seen

async def main():
    print(json.dumps(await asyncio.gather(*map(seen_at, ("service", "environment", "rollout")))))
asyncio.run(main())
"""


@pytest.mark.parametrize("user", ["as started", "ordinary"])
def test_each_place_has_the_walls_that_its_note_says(user: str, tmp_path: Path) -> None:
    """`ordinary` is a user without any capability, in a user name space of its own."""
    program = find_bubblewrap()
    assert program is not None
    prefix = [program, "--dev-bind", "/", "/", "--unshare-user", "--uid", "1000", "--gid", "1000"]
    evil = tmp_path / "evil"
    evil.mkdir()
    for name in ("reasoning_gym", "sitecustomize", "headrace", "json", "msgspec"):
        (evil / f"{name}.py").write_text("raise SystemExit('imported from the current folder')")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE.parent), "SECRET": "canary-93f1"}
    # Only the grader starts where the evil modules lie: what controls it has its own folder in front.
    code = f"import os, sys; os.chdir({str(evil)!r}); exec(sys.argv.pop(1))"
    argv = [sys.executable, "-P", "-c", code, WALLED, str(Path(__file__).parents[1])]
    argv = [*(prefix if user == "ordinary" else []), *argv]
    answer = subprocess.run(argv, capture_output=True, text=True, env=environment, check=True, timeout=120)
    seen = json.loads(answer.stdout.splitlines()[-1])
    assert len({json.dumps([place["verdicts"], place["version"]]) for place in seen}) == 1
    assert seen[0]["verdicts"] == [1.0, 0.0]
    for placement, place in zip(PLACEMENTS, seen, strict=True):
        is_other = "as another user" in place["note"]
        assert place["no_new_privileges"] == "1"
        assert "canary-93f1" not in (place["environ"] or "")
        assert is_other is (place["uid"] not in (str(os.getuid()), "1000"))
        if placement != "rollout":
            assert not any(place["shared"])
        assert place["capabilities"] == 0
    if user == "ordinary":
        assert seen[-1]["environ"] is None, "not even a process of the same user may look into it"


RIGHTS = """
import os, socket, sys
from headrace.runtime.workers.rights import give_up_rights
folder, readable, port, parent = sys.argv[1:]
give_up_rights(None, [readable])
def attempt(name, action):
    try:
        action()
        print(name)
    except OSError:
        pass
attempt("read what it may", lambda: open(os.path.join(readable, "word"), "rb").read())
attempt("read the journal", lambda: open(os.path.join(folder, "journal.db"), "rb").read())
attempt("list the run", lambda: os.listdir(folder))
attempt("write the journal", lambda: open(os.path.join(folder, "journal.db"), "ab"))
attempt("write a file", lambda: open(os.path.join(readable, "new"), "w"))
attempt("remove a file", lambda: os.unlink(os.path.join(readable, "word")))
attempt("read a neighbour", lambda: open(f"/proc/{parent}/environ", "rb").read())
attempt("connect", lambda: socket.create_connection(("127.0.0.1", int(port)), 2))
attempt("signal", lambda: os.kill(int(parent), 0))
"""


def test_what_has_given_up_its_rights_reads_named_folders_and_does_nothing_else(tmp_path: Path) -> None:
    version = landlock_version()
    if version < 6:
        pytest.skip(f"Landlock {version} here; signals are confined from version 6 on")
    readable, folder = tmp_path / "packages", tmp_path / "run"
    for made in (readable, folder):
        made.mkdir()
    (readable / "word").write_text("word")
    (folder / "journal.db").write_text("journal")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        argv = [sys.executable, "-c", RIGHTS, str(folder), str(readable), port, str(os.getpid())]
        environment = {"PYTHONPATH": str(PACKAGE.parent)}
        answer = subprocess.run(argv, capture_output=True, text=True, env=environment, check=True, timeout=60)
    assert answer.stdout == "read what it may\n"
