"""Episodes over Qwen3's own chat template, which drops thoughts: a scripted policy, the calculator, virtual time."""

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from family_case import QWEN3
from harness_case import CALCULATOR, WRITE, call_text, ids_of, make_task, sampled

from headrace.checkers import ActionOrder, Checker, Read, Sealing, SingleOwner, TokenAccount
from headrace.config import TimeoutSection
from headrace.control.episode import EpisodeDriver, EpisodePorts, EpisodeSettings, EpisodeSpec
from headrace.control.leases import CountingLeases
from headrace.control.pacing import ServiceTurns
from headrace.control.past import AttemptPast
from headrace.control.recorder import Recorder, WorkerClock, sealed_row
from headrace.control.sealing import Sealer
from headrace.environments.inline import InlineEnvironment
from headrace.harness.families import TOKENIZER_CONFIG, render_template
from headrace.harness.rendered import RenderedHarness
from headrace.inference.scripted import ScriptedInference
from headrace.records.action import ActionCommitted, ActionIntended
from headrace.records.arrays import IntArray
from headrace.records.events import Event
from headrace.records.ids import Address, EpisodeId, GroupId, PolicyId
from headrace.records.observation import ActionObserved
from headrace.records.segment import FinishReason, GenerateRequest, Sampling, TokenSegment, TurnGenerated
from headrace.records.task import Budget
from headrace.records.trajectory import EpisodeStarted, Transcript
from headrace.simulation.loop import run_virtual
from headrace.store.memory import MemoryJournal, MemoryStorage

FORKING = {"family": "default", "settings": {"tool_parser": "qwen3"}, "on_rewrite": "fork"}
ROOMY = Budget(turns=6, episode_tokens=8192, turn_tokens=256, observation_tokens=64, malformed_calls=9)
EPISODE = EpisodeId(GroupId("train", 0), 0, 0)
CALL = call_text("calculator", expression="2 + 3")
CALLED = {"name": "calculator", "arguments": {"expression": "2 + 3"}}


@dataclasses.dataclass(frozen=True)
class Said:
    """A turn of the policy: its thought (None for none, empty for an empty one), and a call, an answer or a mistake.

    Attributes:
        is_open: whether the prompt has begun the thought already.
    """

    thought: str | None = None
    call: bool = True
    text: str = ""
    is_open: bool = False

    def ids(self, harness: RenderedHarness) -> IntArray:
        inside = f"{self.thought}\n" if self.thought else "\n"
        start = [inside] if self.is_open else ["<think>", f"\n{inside}"]
        parts = [] if self.thought is None else [*start, "</think>", "\n\n"]
        parts += ["<tool_call>", "\n", CALL, "\n", "</tool_call>"] if self.call else [self.text]
        return ids_of(harness, *(harness.codec.controls.get(part, part) for part in (*parts, "<|im_end|>")))

    @property
    def message(self) -> dict[str, Any]:
        called = {"tool_calls": [{"type": "function", "function": CALLED}]} if self.call else {}
        return {"role": "assistant", "content": self.text, "reasoning_content": self.thought or "", **called}


class Crash(Exception):
    """The process ends here."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What an episode left behind."""

    transcript: Transcript
    address: Address
    requests: tuple[GenerateRequest, ...]
    events: tuple[Event, ...]
    read: Read

    def broken_laws(self) -> list[str]:
        checkers: list[Checker] = [Sealing(self.read), TokenAccount(self.read), ActionOrder(), SingleOwner()]
        return [str(item) for event in self.events for checker in checkers for item in checker.observe(event)]


def run_episode(harness: RenderedHarness, turns: Sequence[Said], budget: Budget = ROOMY) -> Run:
    return run_virtual(_run(harness, turns, budget))


def run_twice(harness: RenderedHarness, turns: Sequence[Said], crash_at: int) -> Run:
    """The process ends when turn `crash_at` is asked for; another one goes on."""

    async def both() -> Run:
        storage = MemoryStorage()
        try:
            await _run(harness, turns[:crash_at], ROOMY, storage)
        except Crash:
            return await _run(harness, turns, ROOMY, storage)
        raise AssertionError("it was to crash")

    return run_virtual(both())


async def _run(
    harness: RenderedHarness, turns: Sequence[Said], budget: Budget, storage: MemoryStorage | None = None
) -> Run:
    requests: list[GenerateRequest] = []

    async def speak(request: GenerateRequest) -> list[TokenSegment]:
        step = int(request.request_id.rpartition("/")[2])
        if step >= len(turns):
            raise Crash
        requests.append(request)
        ids = turns[step].ids(harness)
        is_cut = len(ids) > request.max_tokens
        return [sampled(ids[: request.max_tokens], finish=FinishReason.LENGTH if is_cut else FinishReason.STOP)]

    journal = MemoryJournal(storage)
    recorder, environment = Recorder(journal), InlineEnvironment()
    before = list(journal.events())
    ports = EpisodePorts(
        harness,
        ScriptedInference(speak),
        environment,
        WorkerClock(recorder, "inference"),
        WorkerClock(recorder, "environment"),
        ServiceTurns(),
    )
    driver = EpisodeDriver(
        ports,
        recorder,
        Sealer(recorder, harness, environment.version, {0: sealed_row("weights", b"weights").address}),
        EpisodeSettings(PolicyId("policy"), TimeoutSection(), has_wall_limit=False),
    )
    task = msgspec.structs.replace(make_task(), budget=budget)
    lease = CountingLeases(1 if before else 0).grant(EPISODE, 1e9)
    spec = EpisodeSpec(EPISODE, task, sealed_row("task", task).address, Sampling(), None, 7, _past(before))
    try:
        sealed = await driver.run(spec, lease)
    finally:
        await journal.durable(journal.last_seq)
        events = tuple(journal.events())
        await journal.close()
    return Run(sealed.transcript, sealed.address, tuple(requests), events, journal.read)


def _past(events: Sequence[Event]) -> AttemptPast | None:
    past = AttemptPast(EPISODE)
    for event in events:
        match event.payload:
            case EpisodeStarted():
                past.started_seq = event.seq
            case TurnGenerated(step=step):
                past.turns[step] = event.payload
            case ActionIntended(action=action):
                past.intents[action.id] = event.payload
            case ActionCommitted(action_id=action_id):
                past.commits[action_id] = (event.seq, event.payload)
            case ActionObserved(action_id=action_id):
                past.observed[action_id] = event.payload
            case _:
                pass
    return past if events else None


def folder_with(place: Path, before: str, after: str) -> Path:
    """Qwen3's tokenizer with one text of its template changed."""
    shutil.copy(QWEN3 / "tokenizer.json", place)
    described = json.loads((QWEN3 / TOKENIZER_CONFIG).read_text(encoding="utf-8"))
    assert described["chat_template"].count(before) >= 1
    described["chat_template"] = described["chat_template"].replace(before, after)
    (place / TOKENIZER_CONFIG).write_text(json.dumps(described), encoding="utf-8")
    return place


def template_text(turns: Sequence[tuple[dict[str, Any], dict[str, Any]]], folder: Path = QWEN3, **settings: Any) -> str:
    """What the folder's own template shows the policy after turns and what followed each."""
    source = json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8"))["chat_template"]
    messages: list[dict[str, Any]] = [{"role": "user", "content": make_task().question}]
    for turn, after in turns:
        messages += [turn, after]
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": msgspec.json.decode(tool.parameters),
            },
        }
        for tool in (CALCULATOR, WRITE)
    ]
    return render_template(source, messages, tools=tools, add_generation_prompt=True, **settings)
