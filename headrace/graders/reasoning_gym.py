"""Grades answers to reasoning-gym tasks with the package's own scorers, whose faults do not get out.

Invariant: the grader makes the entry itself from (family, seed, parameters, index) and trusts nothing of the submission but
the text to judge. 1.0 is given only to an answer that a sound scorer accepts; whatever the policy wrote is the policy's
outcome (0.0); a scorer that cannot be trusted on an entry gives no score at all.

The answer is the whole final text without surrounding white space. It wins when the package scores it at or above
`success_bound`; partial scores are floored, since most of them pay for an answer hidden among others. For the same reason an
answer may be at most twice as long as the expected one plus 32 characters, and no longer than it when the scorer accepts the
expected answer inside other text.

Before a scorer judges, it is tried on the entry: it has to accept the expected answer and refuse no answer, noise and
"nan" (some of the package's scorers accept the last two).
"""

import copy
import functools
import json
import math
import numbers
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import msgspec

from headrace.config import Section, decode_options
from headrace.errors import ConfigError
from headrace.records.ids import Address
from headrace.records.provenance import content_version
from headrace.records.task import Task
from headrace.records.verdict import Scored, Submission, Unscored, UnscoredCause, Verdict

WRONG_ANSWERS = ("", "~", "nan")
SLACK_CHARS = 32
_QUOTED_CHARS = 200
_CACHED_ENTRIES = 4096
_CACHED_DATASETS = 256
_SOURCES = ("reasoning_gym.py",)


class ReasoningGymGraderOptions(Section, frozen=True):
    """Options of the `reasoning_gym` grader.

    Attributes:
        success_bound: a score of the package from here on is a correct answer.
        max_answer_chars: a longer answer is wrong without being scored.
    """

    success_bound: float = 0.99
    max_answer_chars: int = 2048

    def __post_init__(self) -> None:
        if not 0.5 < self.success_bound <= 1.0:
            raise ValueError(f"grader.success_bound is {self.success_bound}; it must lie in (0.5, 1]")
        if self.max_answer_chars < 1:
            raise ValueError(f"grader.max_answer_chars is {self.max_answer_chars}; it must be at least 1")


class ScorerFault(Exception):
    """A scorer or generator of the package did something that no score follows from."""


class ScorerRaised(ScorerFault):
    """The scorer raised on an answer."""


class _Reference(msgspec.Struct, frozen=True):
    """An entry of the package and what is known of its scorer; for the grader's eyes.

    Attributes:
        dataset: the generator.
        entry: question, answer and metadata.
        max_chars: length from which an answer cannot be right.
    """

    dataset: Any
    entry: dict[str, Any]
    max_chars: int

    @property
    def expected(self) -> str | None:
        """The oracle answer; None for generators that have many and name none."""
        return self.entry.get("answer")


class ReasoningGymGrader:
    """The synchronous core; runs where answers may be, and nowhere else."""

    scope: Literal["episode"] = "episode"

    def __init__(self, options: ReasoningGymGraderOptions) -> None:
        import reasoning_gym  # more than a second: whoever holds a core is ready to grade

        self._create_dataset = reasoning_gym.create_dataset
        self._options = options
        self._reference = functools.lru_cache(_CACHED_ENTRIES)(self._make_reference)
        self._dataset = functools.lru_cache(_CACHED_DATASETS)(self._make_dataset)
        self.version: Address = content_version(
            msgspec.json.encode(options),
            *((Path(__file__).parent / name).read_bytes() for name in _SOURCES),
            *_package_files("reasoning-gym", "reasoning_gym/"),
        )

    def grade(self, submission: Submission) -> Verdict:
        """The verdict on one submission; a fault of the package is an `Unscored` one."""
        try:
            outcome = self._outcome(submission.task, submission.final_text.strip())
        except ScorerFault as fault:
            outcome = Unscored(UnscoredCause.GRADER_INVALID, str(fault)[:_QUOTED_CHARS])
        return Verdict(submission.transcript, self.version, outcome)

    def _outcome(self, task: Task, answer: str) -> Scored:
        reference = self._reference(task.family, task.seed, task.parameters, task.index)
        if reference.entry["question"] != task.question:
            raise ScorerFault(f"{task.family}[{task.index}]: the task asks something else than the entry of that name")
        if not answer:
            return _scored(reference, answer, is_right=False, note="no answer")
        if len(answer) > reference.max_chars:
            return _scored(reference, answer, is_right=False, note=f"longer than {reference.max_chars} characters")
        try:
            score = _score(reference.dataset, answer, reference.entry)
        except ScorerRaised as error:
            if reference.expected is None:
                raise
            return _scored(reference, answer, is_right=False, note=f"{error}; it accepts the expected one")
        return _scored(reference, answer, is_right=score >= self._options.success_bound, score=score)

    def _make_reference(self, family: str, seed: int, parameters: str, index: int) -> _Reference:
        """Raises ScorerFault when the entry cannot be made or its scorer judges a known answer wrongly."""
        dataset = self._dataset(family, seed, parameters)
        try:
            entry = dict(dataset[index])
        except Exception as error:  # boundary: third-party generators raise what they like
            raise ScorerFault(f"{family}[{index}] cannot be made: {type(error).__name__}: {error}") from error
        bound, max_chars = self._options.success_bound, self._options.max_answer_chars
        for wrong in WRONG_ANSWERS:
            if _accepts(dataset, wrong, entry, bound):
                raise ScorerFault(f"{family}[{index}]: the package's scorer accepts {wrong!r} as an answer")
        expected = entry.get("answer")
        if expected is None:
            return _Reference(dataset, entry, max_chars)
        if not isinstance(expected, str) or not _accepts(dataset, expected.strip(), entry, bound):
            raise ScorerFault(f"{family}[{index}]: the package's scorer does not accept its own answer")
        padded = (f"~ {expected}", f"{expected} ~", f"~ {expected} ~")
        is_containing = any(_accepts(dataset, text, entry, bound) for text in padded)
        limit = len(expected) if is_containing else 2 * len(expected) + SLACK_CHARS
        return _Reference(dataset, entry, min(limit, max_chars))

    def _make_dataset(self, family: str, seed: int, parameters: str) -> Any:
        try:
            return self._create_dataset(family, seed=seed, **msgspec.json.decode(parameters))
        except Exception as error:  # boundary: third-party generators raise what they like
            raise ScorerFault(f"{family} with {parameters}: {type(error).__name__}: {error}") from error


def open_grader_core(kind: str, options: dict[str, Any]) -> ReasoningGymGrader:
    """The core of a configured grader. Raises ConfigError."""
    if kind != "reasoning_gym":
        raise ConfigError(f"grader.kind is {kind!r}; known: reasoning_gym")
    return ReasoningGymGrader(decode_options(options, ReasoningGymGraderOptions, "grader.options"))


def _score(dataset: Any, answer: str, entry: dict[str, Any]) -> float:
    """The package's score. Raises ScorerRaised, or ScorerFault when it is no number in [0, 1]."""
    try:
        score = dataset.score_answer(answer, copy.deepcopy(entry))
    except Exception as error:  # boundary: third-party scorers raise what they like
        raise ScorerRaised(f"the scorer raised {type(error).__name__} on this answer") from error
    if isinstance(score, bool) or not isinstance(score, numbers.Real):
        raise ScorerFault(f"the scorer returned a {type(score).__name__}; a number is needed")
    value = float(score)
    if not (math.isfinite(value) and 0.0 <= value <= 1.0):
        raise ScorerFault(f"the scorer returned {value}; it must be finite and in [0, 1]")
    return value


def _accepts(dataset: Any, answer: str, entry: dict[str, Any], bound: float) -> bool:
    try:
        return _score(dataset, answer, entry) >= bound
    except ScorerRaised:
        return False


def _scored(
    reference: _Reference, answer: str, *, is_right: bool, score: float | None = None, note: str = ""
) -> Scored:
    evidence = {"given": _quoted(answer), "expected": _quoted(reference.expected), "score": score, "note": note}
    return Scored((("answer", 1.0 if is_right else 0.0),), json.dumps(evidence))


def _quoted(text: str | None) -> str | None:
    if text is None or len(text) <= _QUOTED_CHARS:
        return text
    return f"{text[:_QUOTED_CHARS]}… ({len(text)} characters)"


def _package_files(distribution: str, folder: str) -> list[str]:
    """Hash lines of the package's installed files, sorted; its version too."""
    package = metadata.distribution(distribution)
    lines = (package.read_text("RECORD") or "").splitlines()
    return [package.version, *sorted(line for line in lines if line.startswith(folder) and "__pycache__" not in line)]
