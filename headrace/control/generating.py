"""Asks the engine for the turns of one attempt, and checks what it answers.

Invariant: a turn is whole or it is not there. What came of a turn that failed is dropped; a stopped one ends at a token
boundary and keeps its tokens.

* consumes: a request.
* waits for: inference.
* unblocked by: the end of the turn, or `stop`.
* produces: the turn.
"""

import asyncio
from collections.abc import Sequence

from headrace.control.recorder import OwnerPen, WorkerClock
from headrace.errors import InferenceError, IntegrityError, Outcome
from headrace.ports import Inference, TurnTiming
from headrace.records.ids import EpisodeId
from headrace.records.run import AnswerRefused
from headrace.records.segment import POLICY, GenerateRequest, TokenSegment, TurnGenerated

_AGAIN_S = 0.5
"""Seconds after which a lost turn is asked for again."""


class TurnGenerator:
    """Generates the turns of one attempt, one at a time.

    Args:
        inference: where.
        clock: times the engine.
        recorder: where refused answers are said.
        episode: the attempt.
        timeout_s: deadline of a call.
        is_stopped: whether the attempt begins with its time used up.

    Attributes:
        is_stopped: whether the attempt's time is over: a running turn is interrupted, and none is asked for again.
    """

    __slots__ = (
        "_clock",
        "_episode",
        "_inference",
        "_interrupt",
        "_recorder",
        "_request_id",
        "_timeout_s",
        "is_stopped",
    )

    def __init__(
        self,
        inference: Inference,
        clock: WorkerClock,
        recorder: OwnerPen,
        *,
        episode: EpisodeId,
        timeout_s: float,
        is_stopped: bool,
    ) -> None:
        self._inference = inference
        self._clock = clock
        self._recorder = recorder
        self._episode = episode
        self._timeout_s = timeout_s
        self.is_stopped = is_stopped
        self._request_id: str | None = None
        self._interrupt: asyncio.Task[None] | None = None

    async def turn(self, request: GenerateRequest, step: int) -> TurnGenerated:
        """The turn, asked for once more where the first answer is lost.

        Raises:
            InferenceError: when the engine failed, or broke a law of its port.
        """
        is_again = False
        while True:
            segments: list[TokenSegment] = []
            timing: TurnTiming | None = None
            self._request_id = request.request_id
            self._clock.enter()
            try:
                async for part in self._inference.generate(request, self._timeout_s):
                    if isinstance(part, TokenSegment):
                        segments.append(_checked(part, request.min_version))
                    else:
                        timing = part
                return self._whole(request, step, segments, timing)
            except InferenceError as lost:
                if is_again or lost.outcome is not Outcome.LOST or self.is_stopped:
                    raise
                is_again = True
            finally:
                self._request_id = None
                self._clock.leave()
            # A turn is a function of its request, so asking again gives what was lost. Where the engine itself is gone the
            # run ends first, and its next process asks.
            await asyncio.sleep(_AGAIN_S)

    def stop(self) -> None:
        """The attempt's time is over: a running turn is interrupted and keeps its tokens."""
        self.is_stopped = True
        if self._request_id is not None:
            self._interrupt = asyncio.create_task(self._end_turn(self._request_id), name=f"wall/{self._request_id}")

    async def settle(self) -> None:
        """Returns once no interruption is under way."""
        if self._interrupt is not None:
            await self._interrupt

    def _whole(
        self, request: GenerateRequest, step: int, segments: Sequence[TokenSegment], timing: TurnTiming | None
    ) -> TurnGenerated:
        """The turn as the engine delivered it. Raises InferenceError where it is not whole, or another one."""
        if timing is None or not segments or segments[-1].finish is None:
            raise InferenceError(f"{request.request_id}: the engine ended a turn without a reason", Outcome.LOST)
        if timing.request_id != request.request_id:
            problem = f"asked for turn {request.request_id}; the answer is turn {timing.request_id}"
            self._recorder.record(AnswerRefused("inference", problem), key=request.request_id)
            raise InferenceError(problem, Outcome.LOST)
        return TurnGenerated(
            self._episode,
            step,
            tuple(segments),
            timing.wait_s,
            timing.generate_s,
            timing.preemptions,
            timing.compute,
        )

    async def _end_turn(self, request_id: str) -> None:
        try:
            await self._inference.interrupt([request_id], self._timeout_s)
        except InferenceError:
            # The generation itself reports the engine's failure; this call only asked it to end sooner.
            return


def _checked(segment: TokenSegment, min_version: int) -> TokenSegment:
    """The segment, if the engine kept the laws of its port.

    Raises:
        InferenceError: on log-probs that are no log-probs, a wrong origin, or a version older than was asked for.
    """
    try:
        segment.check()
    except IntegrityError as error:
        raise InferenceError(f"the engine delivered a segment that cannot be stored: {error}", Outcome.LOST) from error
    if segment.origin is not POLICY or segment.policy is None:
        raise InferenceError(f"the engine delivered a segment of origin {segment.origin.value}", Outcome.LOST)
    if segment.policy.version < min_version:
        raise InferenceError(f"the engine sampled with {segment.policy}, older than {min_version}", Outcome.LOST)
    return segment
