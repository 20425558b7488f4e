"""W-A: 1000 episodes of four model turns, 256 in flight, 3000 tool calls; prompt 132 tokens, answers 65 and 46 tokens.

Invariant: no two turns of the load are equal, so no cache of anybody's can answer for the work; every answer is fixed by
(group, member, step), so every side has to come to the same ids, calls and rewards.
"""

import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.environments.tools import CALCULATOR, PYTHON
from headrace.harness import ChatMLHarness, open_harness
from headrace.records.arrays import Float32Bytes, Int32Bytes, float32_bytes, int32_bytes
from headrace.records.ids import EpisodeId, GroupId, Purpose
from headrace.records.streams import stream
from headrace.records.task import Budget, Task

GROUPS, MEMBERS, TURNS = 125, 8, 4
EPISODES = GROUPS * MEMBERS
CALLS = EPISODES * (TURNS - 1)
IN_FLIGHT_GROUPS = 32
IN_FLIGHT = IN_FLIGHT_GROUPS * MEMBERS
PROMPT_TOKENS, CALL_TOKENS, FINAL_TOKENS = 132, 65, 46
SAMPLED_TOKENS = EPISODES * ((TURNS - 1) * CALL_TOKENS + FINAL_TOKENS)
UNGRADED_EVERY = 50
"""The grader declines every so many episodes: its reward is absent, which is not 0."""

_WORDS = [
    "the",
    "sum",
    "of",
    "all",
    "terms",
    "is",
    "first",
    "then",
    "add",
    "next",
    "take",
    "value",
    "number",
    "and",
    "so",
]


@dataclasses.dataclass(frozen=True)
class Turn:
    """What the scripted model says."""

    ids: Int32Bytes
    logprobs: Float32Bytes
    text: str
    output: str


@dataclasses.dataclass(frozen=True)
class Episode:
    """One episode of the load; `reward` is None where the grader declines."""

    id: EpisodeId
    turns: tuple[Turn, ...]
    reward: float | None


@dataclasses.dataclass(frozen=True)
class Load:
    """The whole of W-A, or its first groups."""

    tasks: tuple[Task, ...]
    episodes: tuple[Episode, ...]

    @functools.cached_property
    def turns(self) -> dict[str, Turn]:
        """Turns by request id."""
        return {f"{e.id}/{step}": turn for e in self.episodes for step, turn in enumerate(e.turns)}

    @functools.cached_property
    def rewards(self) -> dict[EpisodeId, float | None]:
        return {episode.id: episode.reward for episode in self.episodes}

    def write(self, path: Path, harness: ChatMLHarness) -> Path:
        """The load as JSON, for sides in other environments."""
        prompts = [[i for s in harness.open(task) for i in s.ids_T.tolist()] for task in self.tasks]
        episodes: list[dict[str, Any]] = []
        for episode in self.episodes:
            turns = [
                {
                    "ids": np.frombuffer(turn.ids, "<i4").tolist(),
                    "logprobs": np.frombuffer(turn.logprobs, "<f4").tolist(),
                    "text": turn.text,
                    "output": turn.output,
                }
                for turn in episode.turns
            ]
            group = episode.id.group.ordinal
            episodes.append({"prompt": prompts[group], "turns": turns, "reward": episode.reward or 0.0})
        load = {
            "episodes": episodes,
            "questions": [task.question for task in self.tasks],
            "prompt_texts": [harness.codec.decode(ids) for ids in prompts],
            "members": MEMBERS,
            "in_flight": IN_FLIGHT,
            "feedback": [
                "\n<|im_start|>user\n<tool_response>\n",
                "\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
            ],
            "tokenizer": harness.codec.source.decode(),
        }
        path.write_text(json.dumps(load))
        return path


def fresh_harness() -> ChatMLHarness:
    """A harness whose caches are empty."""
    return open_harness("chatml", {}, (CALCULATOR, PYTHON))


def make_load(harness: ChatMLHarness, groups: int = GROUPS, tool: str = CALCULATOR.name) -> Load:
    """The load, with lengths asserted."""
    tasks = tuple(_task(harness, ordinal) for ordinal in range(groups))
    episodes = tuple(_episode(harness, ordinal, member, tool) for ordinal in range(groups) for member in range(MEMBERS))
    for task in tasks:
        assert sum(map(len, harness.open(task))) == PROMPT_TOKENS
    assert len({turn.ids for episode in episodes for turn in episode.turns}) == groups * MEMBERS * TURNS
    return Load(tasks, episodes)


def _task(harness: ChatMLHarness, ordinal: int) -> Task:
    draws = stream(7, "workload", "question", ordinal)
    frame = sum(map(len, harness.open(_asking("", ordinal))))
    text = f"Task {ordinal}:"
    while True:
        size = len(harness.codec.encode_text(text)[0])
        if size == PROMPT_TOKENS - frame:
            return _asking(text, ordinal)
        room = PROMPT_TOKENS - frame - size
        text = f"{text} {draws.choice(_WORDS)}" if room > 0 else text[: -1 - int(draws.integers(1, 12))]


def _asking(question: str, ordinal: int) -> Task:
    return Task("workload", "one", 7, ordinal, question, Budget(episode_tokens=1024), "inline")


def _episode(harness: ChatMLHarness, ordinal: int, member: int, tool: str) -> Episode:
    draws = stream(7, "workload", "episode", ordinal, member)
    identity = EpisodeId(GroupId.of(Purpose.TRAIN, ordinal), member, 0)
    turns = []
    for _ in range(TURNS - 1):
        left, right = (int(n) for n in draws.integers(100, 1000, 2))
        said = {"expression": f"{left}+{right}"} if tool == CALCULATOR.name else {"code": f"print({left}+{right})"}
        call = json.dumps({"name": tool, "arguments": said})
        turns.append(_turn(harness, draws, "", [call], num_tokens=CALL_TOKENS, output=str(left + right)))
    number = ordinal * MEMBERS + member
    is_solved = bool(draws.random() < 0.5)
    turns.append(
        _turn(harness, draws, f" answer {number if is_solved else 'unknown'}", (), num_tokens=FINAL_TOKENS, output="")
    )
    reward = None if number % UNGRADED_EVERY == 0 else float(is_solved)
    return Episode(identity, tuple(turns), reward)


def _turn(
    harness: ChatMLHarness, draws: np.random.Generator, text: str, calls: Sequence[str], *, num_tokens: int, output: str
) -> Turn:
    """A turn of exactly so many tokens: words of the vocabulary, then what is said."""
    said = harness.turn_ids(text, calls).tolist()
    words = [i for i in _word_ids(harness) if i not in said]
    ids = [*draws.choice(words, num_tokens - len(said)).tolist(), *said]
    logprobs = -draws.exponential(0.5, num_tokens)
    return Turn(int32_bytes(ids), float32_bytes(logprobs), harness.codec.decode(ids), output)


@functools.cache
def _word_ids(harness: ChatMLHarness) -> list[int]:
    ids = sorted(harness.codec.known_ids - harness.codec.control_ids)
    return [i for i in ids if (text := harness.codec.decode([i])).strip().isalpha() and text.isascii()]
