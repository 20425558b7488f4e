"""A grader in a process of its own: the child's loop and the parent's adapter.

Invariant: every submission gets one verdict or the caller gets a `GraderError`. What comes from the child is data: a verdict
that cannot be read, breaks its schema or is of another grader becomes `Unscored` for its submission alone. Verdicts that
came before the child was lost are kept. Calls have the child one after another, so that a submission which kills or hangs
it costs no other call its verdict.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Literal, Protocol, runtime_checkable

import msgspec

from headrace.errors import GraderError, GraderTimeout, IntegrityError, Outcome, ProcessError
from headrace.processes.child import Child
from headrace.processes.serve import Call, ParentGone, Server
from headrace.records.ids import Address
from headrace.records.verdict import Submission, Unscored, UnscoredCause, Verdict

GRADE = "grade"
_DETAIL_CHARS = 200
_SUBMISSIONS = msgspec.msgpack.Decoder(list[Submission])
_VERDICT = msgspec.msgpack.Decoder(Verdict)


class GraderCore(Protocol):
    """A synchronous grader, wherever it runs."""

    version: Address
    scope: Literal["episode"]

    def grade(self, submission: Submission) -> Verdict:
        """The verdict on one submission."""
        ...


@runtime_checkable
class BatchingCore(Protocol):
    """A core that grades many at once, such as a learned model."""

    def grade_all(self, submissions: Sequence[Submission]) -> list[Verdict]:
        """Verdicts in the order of the submissions."""
        ...


class _Graded(msgspec.Struct, frozen=True, array_like=True):
    """One item of the child's answer; the verdict stays raw so that a bad one is known by its transcript."""

    transcript: Address
    verdict: msgspec.Raw


_GRADED = msgspec.msgpack.Decoder(_Graded)


def verdict_of(core: GraderCore, submission: Submission) -> Verdict:
    """The core's verdict; an exception of the core is an `Unscored` one."""
    try:
        return core.grade(submission)
    except Exception as error:  # boundary: one submission that crashes the core poisons no other
        return _unscored(core.version, submission, UnscoredCause.GRADER_CRASH, f"{type(error).__name__}: {error}")


def verdicts_of(core: GraderCore, submissions: Sequence[Submission]) -> Iterator[tuple[Submission, Verdict]]:
    """Every submission with its verdict; a core that batches gets all at once, and one by one if that fails."""
    if isinstance(core, BatchingCore):
        try:
            yield from zip(submissions, core.grade_all(submissions), strict=True)
            return
        except Exception:  # noqa: S110 - boundary: whoever broke the batch is found below, and breaks no other
            pass
    for submission in submissions:
        yield submission, verdict_of(core, submission)


def grader_service(core: GraderCore, server: Server) -> None:
    """Grades until the parent is gone. The server's hello has to be `grader_hello(core)`."""
    while True:
        try:
            for call in server.poll(None):
                _answer(core, server, call)
        except ParentGone:
            return


class ChildGrader:
    """Implements `ports.Grader` on a child process that runs `grader_service`.

    Args:
        child: the running child.
        respawn: starts another one after a loss; without it a lost grader stays lost.

    Attributes:
        weights_bytes: bytes of the weights that it holds, 0 for most graders.
        num_restarts: how often it was started again.
    """

    def __init__(self, child: Child, respawn: Callable[[], Awaitable[Child]] | None = None) -> None:
        self._version = _version_of(child)
        self.weights_bytes = _weights_bytes_of(child)
        self._child: Child | None = child
        self._respawn = respawn
        self._turn = asyncio.Lock()
        self.num_restarts = 0

    @property
    def version(self) -> Address:
        return self._version

    @property
    def scope(self) -> Literal["episode"]:
        return "episode"

    async def grade(self, submissions: Sequence[Submission], timeout_s: float) -> list[Verdict]:
        """The port's; the deadline counts from the turn of this call, and each before it is bound by its own."""
        if not submissions:
            return []
        async with self._turn:
            return await self._grade(submissions, timeout_s)

    async def _grade(self, submissions: Sequence[Submission], timeout_s: float) -> list[Verdict]:
        deadline = asyncio.get_running_loop().time() + timeout_s
        child = await self._living(timeout_s)
        verdicts: dict[Address, Verdict] = {}
        cause, detail = UnscoredCause.GRADER_INVALID, "the grader sent no verdict for it"
        wanted = {submission.transcript for submission in submissions}
        try:
            items = child.stream(GRADE, msgspec.msgpack.encode(list(submissions)), timeout_s=timeout_s)
            async for item in items:
                self._take(item, wanted, verdicts)
        except ProcessError as error:
            is_late = asyncio.get_running_loop().time() >= deadline
            await self._lose(child)
            if not verdicts:
                raise (GraderTimeout if is_late else GraderError)(str(error), error.outcome) from error
            cause = UnscoredCause.GRADER_TIMEOUT if is_late else UnscoredCause.GRADER_CRASH
            detail = str(error)
        return [
            verdicts.get(submission.transcript) or _unscored(self._version, submission, cause, detail)
            for submission in submissions
        ]

    async def close(self) -> None:
        """Ends the child; safe to call twice."""
        if self._child is not None:
            await self._lose(self._child, grace_s=2.0)

    def _take(self, item: bytes, wanted: set[Address], verdicts: dict[Address, Verdict]) -> None:
        """Adds the item's verdict; the first for a submission counts, and unasked ones do not."""
        try:
            graded = _GRADED.decode(item)
        except msgspec.DecodeError:
            return  # its submission stays without a verdict, which is reported as such
        if graded.transcript not in wanted or graded.transcript in verdicts:
            return
        try:
            verdict = _VERDICT.decode(graded.verdict)
            verdict.check()
            if verdict.transcript != graded.transcript or verdict.grader != self._version:
                raise IntegrityError(f"verdict on {verdict.transcript[:12]} by grader {verdict.grader[:12]}")
        except (msgspec.DecodeError, IntegrityError) as error:
            outcome = Unscored(UnscoredCause.GRADER_INVALID, str(error)[:_DETAIL_CHARS])
            verdict = Verdict(graded.transcript, self._version, outcome)
        verdicts[graded.transcript] = verdict

    async def _living(self, timeout_s: float) -> Child:
        """The running child, started again if it was lost. Only the call whose turn it is asks."""
        if self._child is None:
            if self._respawn is None:
                raise GraderError("the grader is gone and nothing starts another one", Outcome.REJECTED)
            self.num_restarts += 1
            try:
                async with asyncio.timeout(timeout_s):
                    child = await self._respawn()
            except (ProcessError, TimeoutError) as error:
                raise GraderError(f"the grader did not start again: {error}", Outcome.REJECTED) from error
            if _version_of(child) != self._version:
                await child.close(grace_s=0.0)
                raise GraderError("the grader that started again is of another version", Outcome.REJECTED)
            self._child = child
        return self._child

    async def _lose(self, child: Child, grace_s: float = 0.0) -> None:
        # A child that missed a deadline is stuck in one submission, and every later one would wait behind it.
        if self._child is child:
            self._child = None
        await child.close(grace_s=grace_s)


def _answer(core: GraderCore, server: Server, call: Call) -> None:
    if call.method != GRADE:
        server.reject(call.call_id, f"the grader has no method {call.method!r}")
        return
    try:
        submissions = _SUBMISSIONS.decode(call.payload)
    except msgspec.DecodeError as error:
        server.reject(call.call_id, f"submissions cannot be read: {error}")
        return
    for submission, verdict in verdicts_of(core, submissions):
        raw = msgspec.Raw(msgspec.msgpack.encode(verdict))
        server.item(call.call_id, msgspec.msgpack.encode(_Graded(submission.transcript, raw)))
    server.reply(call.call_id, b"")


def grader_hello(core: GraderCore) -> bytes:
    """First message of a grader's child: its version, and the bytes of the weights it holds, 0 for most."""
    return f"{core.version} {getattr(core, 'size_bytes', 0)}".encode("ascii")


def _weights_bytes_of(child: Child) -> int:
    size = child.hello.decode("ascii", "replace").partition(" ")[2]
    return int(size) if size.isdecimal() else 0


def _version_of(child: Child) -> Address:
    version = child.hello.decode("ascii", "replace").partition(" ")[0]
    if len(version) != 64:
        raise GraderError(
            f"{child.name}: hello is {version[:80]!r}; a grader says its 64-digit version", Outcome.REJECTED
        )
    return Address(version)


def _unscored(version: Address, submission: Submission, cause: UnscoredCause, detail: str) -> Verdict:
    return Verdict(submission.transcript, version, Unscored(cause, detail[:_DETAIL_CHARS]))
