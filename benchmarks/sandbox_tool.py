"""R5: CPU per model turn of 32 episodes whose tool runs in a sandboxed process, with the pool warm.

Run: `python -m benchmarks.sandbox_tool`. The whole orchestrator on the first four groups of W-A. R5 is the default tool, the
calculator, in warm processes that all episodes share. R5-python gives each episode an interpreter of its own, which is
used once and replaced in the background: that replacement is most of its cost, and counts as far as it got by the end.

CPU of the whole process tree counts. Living children are read in clock ticks of 10 ms, 78 us a turn here. The floor runs the
same calls in one process of its own that is not confined, metered or journaled; the peer's way, a process for each
rollout, is run beside it.
"""

import asyncio
import subprocess
import sys

import msgspec

from benchmarks.rollout import check_transcript, play
from benchmarks.sitting.measure import Figure, Side, options, sit, tree_cpu_s
from benchmarks.sitting.workload import MEMBERS, TURNS, Load, fresh_harness, make_load
from headrace.environments.sandbox.environment import SandboxEnvironment
from headrace.environments.sandbox.options import SandboxOptions, ToolName
from headrace.records.action import ActionCommitted
from headrace.records.trajectory import Transcript, TranscriptSealed
from headrace.store.memory import MemoryJournal

EPISODES = 32
CALLS = EPISODES * (TURNS - 1)
US_PER_TURN = 1e6 / (EPISODES * TURNS)
R5 = Figure("R5", "32 episodes, sandboxed calculator, pool warm", "us per turn", US_PER_TURN, 2000.0)
R5_PYTHON = Figure(
    "R5-python", "32 episodes, each with a sandboxed interpreter of its own", "us per turn", US_PER_TURN, None
)
_SERVER = "import sys\nfor line in sys.stdin:\n    print(eval(line), flush=True)\n"


def run_product(load: Load, tool: ToolName, workers: int) -> float:
    async def work() -> tuple[float, MemoryJournal]:
        environment = SandboxEnvironment(SandboxOptions(tools=(tool,), workers=workers))
        await environment.start()
        journal = MemoryJournal()
        try:
            finished = await play(load, journal, environment)
        finally:
            await environment.stop()
        return finished.cpu_s, journal

    used_s, journal = asyncio.run(work())
    payloads = [event.payload for event in journal.events()]
    assert sum(isinstance(payload, ActionCommitted) for payload in payloads) == CALLS
    sealed = [payload for payload in payloads if isinstance(payload, TranscriptSealed)]
    assert len(sealed) == EPISODES
    for payload in sealed:
        check_transcript(load, msgspec.msgpack.decode(journal.read(payload.transcript), type=Transcript))
    return used_s


def _sums(load: Load) -> list[list[str]]:
    """What each episode asks, and gets."""
    return [[turn.output for turn in episode.turns if turn.output] for episode in load.episodes]


def _ask(process: "subprocess.Popen[str]", output: str) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{output}+0\n")
    process.stdin.flush()
    assert process.stdout.readline().strip() == output


def _server() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-S", "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def run_floor(load: Load) -> float:
    """One warm process over pipes, one call after the other."""
    with _server() as process:
        _ask(process, "1")
        began_s = tree_cpu_s()
        for outputs in _sums(load):
            for output in outputs:
                _ask(process, output)
        used_s = tree_cpu_s() - began_s
        assert process.stdin is not None
        process.stdin.close()
    return used_s


def run_process_per_rollout(load: Load) -> float:
    """A fresh, bare interpreter for each episode."""
    began_s = tree_cpu_s()
    for outputs in _sums(load):
        with _server() as process:
            for output in outputs:
                _ask(process, output)
            assert process.stdin is not None
            process.stdin.close()
    return tree_cpu_s() - began_s


def main() -> None:
    arguments = options(__doc__).parse_args()
    harness = fresh_harness()
    load = make_load(harness, EPISODES // MEMBERS)
    sides = [
        Side("product", lambda: run_product(load, "calculator", 2)),
        Side("floor", lambda: run_floor(load)),
        Side("process per rollout", lambda: run_process_per_rollout(load)),
        Side("same, with a framework's imports", None, "not run", 304_884.0),
    ]
    sit(R5, sides, arguments.repeats)
    python = make_load(harness, EPISODES // MEMBERS, "python")
    sides = [Side("product", lambda: run_product(python, "python", EPISODES)), *sides[1:]]
    sit(R5_PYTHON, sides, arguments.repeats)


if __name__ == "__main__":
    main()
