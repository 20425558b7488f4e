"""A tiny harness for simulated policies: the last token of a turn says what the turn was.

Pure: `parse` reads only the ids it is given, and the number of turns is decided by the workload, through the engine.
"""

from collections.abc import Sequence

from headrace.errors import IntegrityError
from headrace.ports import ObservedTokens, Rewritten
from headrace.records.arrays import Int32Bytes, IntArray
from headrace.records.harness import ParsedCall, ParsedTurn, ParseStatus, ToolSchema
from headrace.records.provenance import content_version
from headrace.records.segment import FinishReason, Origin, TokenSegment
from headrace.records.task import Task
from headrace.records.trajectory import Transcript
from headrace.simulation import tokens
from headrace.simulation.workload import Draws

TOOL = ToolSchema(
    name="work",
    description="Works for as long as the workload says.",
    parameters='{"additionalProperties":false,"properties":{},"type":"object"}',
)
"""The one tool of the simulated environment."""

ANSWER = "answer"
"""Text of every final turn."""


class SimulatedHarness:
    """`Harness` of the simulated token language."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self.version = content_version("simulated harness", TOOL.name, TOOL.parameters, str(tokens.STOP_IDS))
        self.stop_ids = tokens.STOP_IDS

    def open(self, task: Task) -> tuple[TokenSegment, ...]:
        count = max(2, self._draws.task(task.index).prompt_tokens)
        return (TokenSegment(Origin.TEMPLATE, tokens.prompt(task.index, count)),)

    def parse(self, sampled: IntArray) -> ParsedTurn:
        match tokens.last_token(sampled):
            case tokens.CALL_END:
                return ParsedTurn(ParseStatus.CALLS, TOOL.name, calls=(ParsedCall(TOOL.name, "{}"),))
            case tokens.FINAL_END:
                return ParsedTurn(ParseStatus.FINAL, ANSWER)
            case tokens.GARBLED_END:
                return ParsedTurn(ParseStatus.MALFORMED, "", problem="the turn is garbled")
            case _:
                return ParsedTurn(ParseStatus.MALFORMED, "", problem="the turn has no end")

    def observe(self, outputs: Sequence[bytes], budget_tokens: int) -> ObservedTokens:
        counts = [max(1, len(output)) for output in outputs]
        return _observed(counts, budget_tokens)

    def object_to(self, problem: str, budget_tokens: int) -> ObservedTokens:
        return _observed([len(problem)], budget_tokens)

    def rewrite(self, sequence: Sequence[TokenSegment], following: TokenSegment) -> Rewritten | None:
        return None

    def check(self, transcript: Transcript) -> None:
        turns = [segment for segment in transcript.sampled() if segment.finish is not None]
        for segment in turns:
            is_ended = tokens.last_token(segment.ids_T) in tokens.STOP_IDS
            if is_ended is not (segment.finish is FinishReason.STOP):
                raise IntegrityError(f"{transcript.episode}: a turn's last token and its finish disagree")
        for outcome in transcript.actions:
            step = outcome.action.id.step
            if step >= len(turns) or tokens.last_token(turns[step].ids_T) != tokens.CALL_END:
                raise IntegrityError(f"{outcome.action.id}: no turn asked for it")

    def decode(self, ids: IntArray) -> str:
        names = {tokens.CALL_END: "<call>", tokens.FINAL_END: "<final>", tokens.GARBLED_END: "<garbled>"}
        return " ".join(names.get(int(token), str(int(token))) for token in ids)


def _observed(counts: Sequence[int], budget_tokens: int) -> ObservedTokens:
    """One environment segment per output, then the opening of the next policy turn."""
    segments = [TokenSegment(Origin.ENVIRONMENT, _observation(count, budget_tokens)) for count in counts]
    segments.append(TokenSegment(Origin.TEMPLATE, tokens.repeated(tokens.TURN_OPEN, 1)))
    return ObservedTokens(
        segments=tuple(segments),
        observation_indices=tuple(range(len(counts))),
        is_cut=tuple(count > budget_tokens for count in counts),
        neutralized=(0,) * len(counts),
    )


def _observation(count: int, budget_tokens: int) -> Int32Bytes:
    if count <= budget_tokens:
        return tokens.repeated(tokens.OBSERVED, count)
    kept = tokens.repeated(tokens.OBSERVED, budget_tokens - 1)
    return Int32Bytes(kept + tokens.repeated(tokens.CUT_MARKER, 1))
