"""The port of the engine: generation by token ids, and weights that come and go under it."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from headrace.records.arrays import Float32Bytes, IntArray
from headrace.records.ids import Address, PolicyRef
from headrace.records.segment import GenerateRequest, TokenSegment, TurnCompute
from headrace.records.update import Activation, Standstill


class TurnTiming(msgspec.Struct, frozen=True):
    """How a turn went; the last item of a generation.

    Attributes:
        request_id: whose turn it was; a caller takes no other's.
        wait_s: seconds from request to slot.
        generate_s: seconds from slot to last token.
        preemptions: how often its cache was rebuilt or its slot taken.
        compute: what it took of the engine; None where the engine does not tell.
    """

    request_id: str
    wait_s: float
    generate_s: float
    preemptions: int
    compute: TurnCompute | None = None


class Inference(Protocol):
    """The policy as a service that speaks token ids."""

    def generate(self, request: GenerateRequest, timeout_s: float) -> AsyncIterator[TokenSegment | TurnTiming]:
        """Segments in order, cut at version changes, then one `TurnTiming`.

        The last segment carries a `finish`. A repeated `request_id` that is still running is refused.

        Raises:
            InferenceError: REJECTED when the request cannot be served (too long, version not held, older than
                `min_version`), LOST when the engine died or did not finish in time.
        """
        ...

    async def interrupt(self, request_ids: Sequence[str], timeout_s: float) -> None:
        """Ends running requests at the next token boundary; their last segment has finish INTERRUPTED."""
        ...

    async def stage(self, policy: PolicyRef, weights: Address, timeout_s: float) -> None:
        """Loads weights aside and verifies their hash; nothing is served with them yet.

        Raises:
            InferenceError: when the file is missing or does not hash to its address.
        """
        ...

    async def activate(self, policy: PolicyRef, keep: frozenset[int], timeout_s: float) -> Activation:
        """Serves unpinned requests with the staged version from the next token boundary on.

        Versions in `keep` stay loaded for pinned requests; any other is unloaded once nothing runs on it. Activating the
        active version again takes back whatever was staged after it.
        """
        ...

    async def score(self, ids: Sequence[IntArray], version: int, timeout_s: float) -> list[Float32Bytes]:
        """Natural-log probabilities [T - 1] of each sequence's tokens after the first, at temperature 1."""
        ...

    async def pause(self, timeout_s: float) -> Standstill:
        """Generates nothing from the next token boundary on, and returns once that is so; a second call changes nothing.

        Requests are still taken, interrupted and cut by new versions, and weights staged, scored and activated. What runs
        keeps its prefix and log-probs; deadlines go on.
        """
        ...

    async def resume(self, timeout_s: float) -> Standstill:
        """Generates again, with what stood still as with what came meanwhile."""
        ...
