"""The ports: what the control plane asks of the world. All async ones take a deadline; large data goes by address.

An adapter raises `BoundaryError` of its own boundary, with the outcome that it knows. Whatever the policy caused is a
value (a receipt, a truncated turn), never an exception. One contract suite per port (`tests/contracts/`) runs against
every implementation, the simulated ones included.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

from headrace.records.action import Action, EffectClass
from headrace.records.arrays import Float32Bytes, IntArray
from headrace.records.batch import BatchPlan, BatchRow
from headrace.records.checkpoint import Manifest
from headrace.records.events import Event, Payload
from headrace.records.execution import IncarnationLost, Lease, Receipt
from headrace.records.harness import ParsedTurn, ToolSchema
from headrace.records.ids import ActionId, Address, EpisodeId, LeaseToken, PolicyRef
from headrace.records.provenance import address_of
from headrace.records.segment import GenerateRequest, TokenSegment
from headrace.records.task import Task
from headrace.records.terminal import Terminal
from headrace.records.trajectory import ForkCause, Transcript
from headrace.records.update import Activation, CanaryScore, RowScore, Standstill, UpdateResult
from headrace.records.verdict import Submission, Verdict


class TurnTiming(msgspec.Struct, frozen=True):
    """How a turn went; the last item of a generation.

    Attributes:
        request_id: whose turn it was; a caller takes no other's.
        wait_s: seconds from request to slot.
        generate_s: seconds from slot to last token.
        preemptions: how often its cache was rebuilt or its slot taken.
    """

    request_id: str
    wait_s: float
    generate_s: float
    preemptions: int


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


UNKNOWN_INCARNATION = ""
"""Incarnation in the handle of an environment whose opening was lost; it closes whatever is open for the episode."""


class Handle(msgspec.Struct, frozen=True):
    """An open environment of one episode.

    Attributes:
        episode: whose.
        incarnation: which life of which executor holds it.
    """

    episode: EpisodeId
    incarnation: str


class Environment(Protocol):
    """The world that tools act on."""

    @property
    def effect(self) -> EffectClass:
        """What its actions do to the world."""
        ...

    @property
    def version(self) -> Address:
        """Content version of its code, options and dependencies."""
        ...

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        """The tools that it offers, in a fixed order."""
        ...

    async def open(self, task: Task, episode: EpisodeId, lease: Lease, timeout_s: float) -> Handle:
        """A fresh environment.

        Raises:
            EnvironmentFault: when it cannot be created.
        """
        ...

    async def adopt(self, handle: Handle, done: Sequence[tuple[Action, Receipt]], timeout_s: float) -> None:
        """Takes over what an earlier executor of the episode did: it is never run again, and the claim knows it.

        Only where the actions left nothing else behind: in a pure environment, and in one that was restored to the
        revision of the last receipt.

        Raises:
            EnvironmentFault: REJECTED when the environment stands elsewhere or the episode is not open.
        """
        ...

    async def execute(self, handle: Handle, action: Action, lease: Lease, timeout_s: float) -> Receipt:
        """The receipt of the action; a second call with the same id returns the stored one and runs nothing.

        A tool that raises, hangs, floods or is killed is a receipt with that status.

        Raises:
            EnvironmentFault: REJECTED when the lease is fenced or the executor was never reached, LOST otherwise.
        """
        ...

    async def probe(self, handle: Handle, action_id: ActionId, timeout_s: float) -> Receipt | IncarnationLost | None:
        """The stored receipt; None when this incarnation never took the action."""
        ...

    async def snapshot(self, handle: Handle, timeout_s: float) -> Address | None:
        """Revision of the present state, the same for an unchanged one; None when it cannot be captured whole."""
        ...

    async def restore(self, handle: Handle, revision: Address, timeout_s: float) -> Handle:
        """The environment as it was at the revision, in a new incarnation unless it is pure.

        Raises:
            EnvironmentFault: REJECTED when the revision is not stored, damaged, or not kept by this environment.
        """
        ...

    async def artifact(self, handle: Handle, timeout_s: float) -> bytes:
        """Bounded bytes that the grader may read; empty when there are none."""
        ...

    async def claim(self, handle: Handle, final_text: str, timeout_s: float) -> Terminal:
        """The environment's own claim of success or failure once the policy has answered."""
        ...

    async def close(self, handle: Handle) -> None:
        """Frees everything; safe to call twice. `UNKNOWN_INCARNATION` stands for whatever the episode has open."""
        ...


class ObservedTokens(msgspec.Struct, frozen=True):
    """Observations of one step, rendered.

    Attributes:
        segments: template and environment segments in order, up to and including the opening of the next policy turn.
        observation_indices: for each receipt, the index in `segments` of its environment segment.
        is_cut: for each receipt, whether it was longer than the observation budget.
        neutralized: for each receipt, control literals that were encoded as ordinary text.
    """

    segments: tuple[TokenSegment, ...]
    observation_indices: tuple[int, ...]
    is_cut: tuple[bool, ...]
    neutralized: tuple[int, ...]


class Rewritten(msgspec.Struct, frozen=True):
    """A sequence as it reads once more follows, where the template does not leave it as it is.

    Attributes:
        kept: leading segments that stay, and are shared with the sequence before.
        segments: what takes the place of the others: turns of the policy as HISTORY, the rest as it was.
        cause: what rewrites it.
    """

    kept: int
    segments: tuple[TokenSegment, ...]
    cause: ForkCause


class Harness(Protocol):
    """Renders records to tokens and parses tokens to calls. Pure and synchronous; never re-encodes sampled text."""

    @property
    def version(self) -> Address:
        """Content version of prompts, tool schemas, template, tokenizer and harness code."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Token ids that end a policy turn."""
        ...

    def open(self, task: Task) -> tuple[TokenSegment, ...]:
        """The prompt, up to and including the opening of the first policy turn."""
        ...

    def parse(self, sampled: IntArray) -> ParsedTurn:
        """What the policy said. `sampled` is the whole turn, stop token included if it was sampled."""
        ...

    def observe(self, outputs: Sequence[bytes], budget_tokens: int) -> ObservedTokens:
        """Tokens that show tool outputs to the policy, each cut to the budget with a visible marker."""
        ...

    def object_to(self, problem: str, budget_tokens: int) -> ObservedTokens:
        """Tokens that tell the policy that its turn could not be read; one observation."""
        ...

    def rewrite(self, sequence: Sequence[TokenSegment], following: TokenSegment) -> Rewritten | None:
        """How the sequence reads once `following` begins what the policy is shown next; None when it stays as it is."""
        ...

    def check(self, transcript: Transcript) -> None:
        """Raises IntegrityError when ids and texts tell different stories, or the sequence was not made by this harness.

        What `Transcript.check` looks at is not looked at again.
        """
        ...

    def decode(self, ids: IntArray) -> str:
        """Text of the ids, control tokens written out; for people."""
        ...


class Grader(Protocol):
    """Verifies independently of the policy and of the environment's claim. Owns answers and evidence."""

    @property
    def version(self) -> Address:
        """Content version of its code, options and dependencies."""
        ...

    @property
    def scope(self) -> Literal["episode", "group"]:
        """Whether it judges episodes one by one, or all members of a group together at the group's close."""
        ...

    async def grade(self, submissions: Sequence[Submission], timeout_s: float) -> list[Verdict]:
        """One verdict per submission, in any order; an `Unscored` one poisons no other.

        A group-level grader receives all members of a group at its close; an episode-level one any submissions.

        Raises:
            GraderError: when no verdict came at all.
        """
        ...


class Trainer(Protocol):
    """Parameters and optimizer of one policy. Reads transcripts by address."""

    async def score(self, rows: Sequence[BatchRow], version: int, timeout_s: float) -> list[RowScore]:
        """The trainer's log-probs of the rows under its present weights, against the recorded behaviour."""
        ...

    async def update(self, plan: BatchPlan, timeout_s: float) -> UpdateResult:
        """One optimizer step; the new weights lie in the blob store under the returned address.

        Raises:
            TrainerError: REJECTED when the plan does not follow from the present version, or a value is not finite
                (the weights are then unchanged); LOST when the process died.
        """
        ...

    async def canary(self, ids: Sequence[IntArray], timeout_s: float) -> CanaryScore:
        """Log-probs of fixed sequences under the present weights, joined end to end."""
        ...

    async def save(self, timeout_s: float) -> Manifest:
        """Everything that the next updates depend on, as durable files; the manifest itself is one of them."""
        ...

    async def load(self, manifest: Manifest, timeout_s: float) -> None:
        """Goes on from a saved state.

        Raises:
            TrainerError: REJECTED when a file is missing, damaged or of another policy or algorithm; nothing has
                changed then.
        """
        ...

    async def replay(self, plan: BatchPlan, weights: Address, timeout_s: float) -> bool:
        """Computes a plan again; whether it gave exactly the recorded weights.

        Where arithmetic is not reproducible the recorded weights are loaded: a version stands for one content.

        Raises:
            TrainerError: REJECTED when the plan does not follow from the present version, or other weights were recorded
                and are not stored.
        """
        ...

    async def forget(self, blobs: Sequence[Address], timeout_s: float) -> None:
        """Removes files of its own that nothing names any more; unknown ones are ignored."""
        ...


class Row:
    """A content-addressed row that becomes durable together with the event that names it.

    It makes its address itself, so none can lie under the address of other bytes.

    Attributes:
        kind: `task`, `transcript`, `side`, `verdict`, `plan`, `config`, `artifact`, `receipt`.
        data: canonical bytes.
        address: SHA-256 of `data`.
    """

    __slots__ = ("address", "data", "kind")

    def __init__(self, kind: str, data: bytes) -> None:
        self.kind: Final = kind
        self.data: Final = data
        self.address: Final = address_of(data)


class Journal(Protocol):
    """The append-only event log of one run, with its sealed rows."""

    @property
    def epoch(self) -> int:
        """Epoch of this writer: 1 for the first process of the run."""
        ...

    def append(self, payload: Payload, *, key: str, cause: int = 0, rows: Sequence[Row] = ()) -> int:
        """Sequence number of the event, which has its place in the order at once and is durable later.

        Raises:
            StoreError: when an earlier write failed; nothing more is accepted.
        """
        ...

    async def durable(self, seq: int) -> None:
        """Returns once the event and all before it are on disk.

        Raises:
            StoreError: when they could not be written, or a once-only (kind, key) was there already.
        """
        ...

    def read(self, address: Address) -> bytes:
        """Bytes of a sealed row, appended by this process or durable, checked against the address.

        Raises:
            IntegrityError: when the bytes do not hash to the address.
            KeyError: when there is no such row.
        """
        ...

    def events(self, after: int = 0) -> Iterator[Event]:
        """Durable events with seq > after, in order."""
        ...

    def head(self) -> str:
        """Hash over all events so far: two runs that did the same have the same."""
        ...


class Blobs(Protocol):
    """Large immutable bytes by content address, as files."""

    def put(self, data: bytes) -> Address:
        """Stores the bytes; returns once they are durable."""
        ...

    def path(self, address: Address) -> Path:
        """Where the file lies.

        Raises:
            KeyError: when it is not stored.
        """
        ...


class TaskSource(Protocol):
    """A cursor over training tasks, and the held-out set. The split is by task content."""

    def next(self) -> Task | None:
        """The task at the cursor, which moves on; None once exhausted."""
        ...

    def held_out(self) -> Sequence[Task]:
        """Tasks that never enter training, the same in every call."""
        ...


class Leases(Protocol):
    """Grants fencing tokens in rising order."""

    def grant(self, episode: EpisodeId, deadline_s: float) -> Lease:
        """A lease with a token higher than every one before."""
        ...

    def highest(self) -> LeaseToken:
        """The highest token granted."""
        ...
