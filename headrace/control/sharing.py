"""Turns on shared devices: generation stands still while the trainer computes.

Invariant: between `GenerationPaused` and `GenerationResumed` the engine computes no token, by its own count; what runs keeps
its prefix, its log-probs and its versions.

* consumes: an update that is ready to be computed.
* waits for: the engine's standstill at a token boundary; afterwards its going on.
* unblocked by: the engine's answers.
* produces: `GenerationPaused`, `GenerationResumed`.
"""

import contextlib
from collections.abc import AsyncGenerator

from headrace.control.recorder import Recorder, WorkerClock
from headrace.errors import InvariantViolated
from headrace.ports import Inference
from headrace.records.update import GenerationPaused, GenerationResumed


class SharedDevices:
    """Devices that engine and trainer have in common."""

    def __init__(self, inference: Inference, recorder: Recorder, clock: WorkerClock, timeout_s: float) -> None:
        self._inference = inference
        self._recorder = recorder
        self._clock = clock
        self._timeout_s = timeout_s

    @contextlib.asynccontextmanager
    async def training(self, update: int) -> AsyncGenerator[None]:
        """The trainer's turn. One that ends with an exception leaves the engine still: the run is over.

        Raises:
            InferenceError: when the engine does not stop or go on in time.
            InvariantViolated: when it computed tokens meanwhile.
        """
        recorder, key = self._recorder, str(update)
        asked_s = recorder.elapsed_s
        paused = await self._inference.pause(self._timeout_s)
        still_s = recorder.elapsed_s
        self._clock.hold()
        begun = GenerationPaused(update, paused.worker, paused.running, paused.computed_tokens, still_s - asked_s)
        cause = recorder.record(begun, key=key)
        yield
        done_s = recorder.elapsed_s
        resumed = await self._inference.resume(self._timeout_s)
        self._clock.release()
        ended = GenerationResumed(
            update, resumed.worker, resumed.computed_tokens, done_s - still_s, recorder.elapsed_s - done_s
        )
        recorder.record(ended, key=key, cause=cause)
        if resumed.computed_tokens != paused.computed_tokens:
            raise InvariantViolated(
                f"update {update}: {resumed.worker} computed {resumed.computed_tokens - paused.computed_tokens} tokens in "
                "the trainer's turn; on shared devices it has to stand still"
            )
