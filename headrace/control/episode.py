"""The episode driver: one attempt from its first prompt token to its sealed transcript.

Invariant: whatever the policy does ends in a terminal state and a sealed transcript; only boundaries raise, and they are
recorded as `InfraError`.

* consumes: a task, a lease and a sampling setting.
* waits for: inference and the environment.
* unblocked by: the end of each turn, each receipt, or the wall limit, which interrupts generation at a token boundary.
* produces: `TurnGenerated`, the action events, `TranscriptSealed`.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable

from headrace.config import TimeoutSection
from headrace.control.acting import ActionRunner, UnknownEffect, stored_receipt
from headrace.control.past import AttemptPast
from headrace.control.recorder import OwnerPen, Recorder, WorkerClock
from headrace.control.sealing import EpisodeTrace, Sealed, Sealer
from headrace.errors import BoundaryError, EnvironmentFault, InferenceError, IntegrityError, Outcome
from headrace.ports import UNKNOWN_INCARNATION, Environment, Handle, Harness, Inference, ObservedTokens, TurnTiming
from headrace.records.action import Action, EffectClass
from headrace.records.arrays import IntArray, as_int32
from headrace.records.checkpoint import InFlight
from headrace.records.execution import EnvironmentRestored, EpisodeClaimed, Lease, Receipt
from headrace.records.harness import ParsedTurn, ParseStatus
from headrace.records.ids import ActionId, Address, EpisodeId, GroupId, PolicyId
from headrace.records.observation import ActionObserved
from headrace.records.provenance import address_of
from headrace.records.run import AnswerRefused
from headrace.records.segment import (
    FinishReason,
    GenerateRequest,
    Origin,
    Sampling,
    TokenSegment,
    TurnGenerated,
    num_tokens,
)
from headrace.records.streams import stream_key_bytes
from headrace.records.task import Task
from headrace.records.terminal import InfraError, Limit, Terminal, Truncated
from headrace.records.trajectory import ActionOutcome, EpisodeStarted

_NO_PAST = AttemptPast(EpisodeId(GroupId("", 0), 0, 0))
"""What every new attempt has behind it: one record for all of them, which nobody writes to."""
_AGAIN_S = 0.5
"""Seconds after which a lost turn is asked for again."""


@dataclasses.dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """What to run.

    Attributes:
        episode: who.
        task: what is asked.
        task_address: address of the task.
        sampling: how to sample.
        pin_version: the version to use throughout; None follows publication.
        seed: root of the sampling streams.
        past: what an earlier process of the run did of it; None when it is new.
        in_flight: whether such an attempt goes on (`resume`) or ends where it was (`reissue`).
    """

    episode: EpisodeId
    task: Task
    task_address: Address
    sampling: Sampling
    pin_version: int | None
    seed: int
    past: AttemptPast | None = None
    in_flight: InFlight = "resume"


@dataclasses.dataclass(frozen=True)
class EpisodePorts:
    """What a driver acts through, with the clocks that time it."""

    harness: Harness
    inference: Inference
    environment: Environment
    inference_clock: WorkerClock
    environment_clock: WorkerClock


@dataclasses.dataclass(frozen=True)
class EpisodeSettings:
    """What every episode of a run goes by.

    Attributes:
        policy_id: whose versions are used.
        timeouts: deadlines of single awaits.
        has_wall_limit: whether `budget.wall_s` ends an episode; off in deterministic runs.
    """

    policy_id: PolicyId
    timeouts: TimeoutSection
    has_wall_limit: bool


class RunInterrupted(BoundaryError):
    """The process that ran the attempt ended, and what its environment held ended with it."""

    boundary = "run"


class EpisodeDriver:
    """Runs episodes; holds no state of any.

    An attempt that was in flight when its process ended takes the same way again: whatever the journal holds of it is taken
    from there, in the order in which it happened, and only then does anything new happen.
    """

    def __init__(self, ports: EpisodePorts, recorder: Recorder, sealer: Sealer, settings: EpisodeSettings) -> None:
        self._ports = ports
        self._recorder = recorder
        self._sealer = sealer
        self._settings = settings

    async def run(self, spec: EpisodeSpec, lease: Lease) -> Sealed:
        """The sealed transcript of the attempt.

        Raises:
            IntegrityError: when the trace cannot be sealed: a defect, not an outcome.
            OwnerFenced: when the attempt has a newer owner; nothing of it was sealed.
        """
        recorder, name = self._recorder, str(spec.episode)
        claimed = recorder.record(EpisodeClaimed(lease.token, lease.deadline_s), key=f"{name}#{lease.token}")
        pen = OwnerPen(recorder, spec.episode, lease.token)
        attempt = _Attempt(self._ports, pen, self._settings, spec=spec, lease=lease)
        started = attempt.past.started_seq or recorder.record(
            EpisodeStarted(spec.task_address, spec.pin_version), key=name, cause=claimed
        )
        begin_s = recorder.elapsed_s - attempt.past.spent_s
        terminal = await attempt.to_terminal()
        pen.require("transcript_sealed")
        pen.release()
        return self._sealer.seal(attempt.trace, terminal, recorder.elapsed_s - begin_s, started)

    def recall(self, past: AttemptPast) -> Sealed:
        """A sealed attempt, with the verdicts on it, from the journal."""
        return self._sealer.recall(past)


class _Attempt:
    """One running attempt: the loop of turns, with the wall limit around it."""

    def __init__(
        self,
        ports: EpisodePorts,
        recorder: OwnerPen,
        settings: EpisodeSettings,
        *,
        spec: EpisodeSpec,
        lease: Lease,
    ) -> None:
        self._ports = ports
        self._recorder = recorder
        self._timeouts = settings.timeouts
        self._policy_id = settings.policy_id
        self._has_wall_limit = settings.has_wall_limit
        self._spec = spec
        self._lease = lease
        self._name, self._group = str(spec.episode), str(spec.episode.group)
        self.trace = EpisodeTrace(spec.episode, spec.task, spec.task_address)
        self._budget = spec.task.budget
        self._loop = asyncio.get_running_loop()
        self.past = spec.past or _NO_PAST
        self._actions = ActionRunner(ports.environment, recorder, ports.environment_clock, self.past)
        can_go_on = ports.environment.effect.is_resumable and spec.in_flight == "resume"
        self._goes_on = not self.past.started_seq or can_go_on
        wall_left_s = self._budget.wall_s - self.past.spent_s
        self._wall_deadline_s = self._loop.time() + wall_left_s
        self._is_wall_over = self._has_wall_limit and wall_left_s <= 0
        self._is_open = False
        self._loss = "its environment with it"
        self._request_id: str | None = None
        self._interrupt: asyncio.Task[None] | None = None

    async def to_terminal(self) -> Terminal:
        """The terminal state; every failure of a boundary becomes one."""
        timer = self._loop.call_at(self._wall_deadline_s, self._end_wall) if self._has_wall_limit else None
        actions, environment = self._actions, self._ports.environment
        try:
            actions.handle = await self._open()
            terminal = await self._turns()
            self._look_ahead("its artifact was taken")
            self.trace.artifact = await environment.artifact(actions.handle, self._timeouts.environment_s)
        except BoundaryError as fault:
            if self.past.turns and not self.trace.segments:
                await self._look_back()
            # Whatever failed: a member that may have changed the world outside does not act again by itself.
            is_external = environment.effect is EffectClass.EXTERNAL
            is_unknown = isinstance(fault, UnknownEffect) or (is_external and actions.has_intended)
            terminal = InfraError(fault.boundary, str(fault), is_effect_unknown=is_unknown)
        finally:
            if timer is not None:
                timer.cancel()
            if self._interrupt is not None:
                await self._interrupt
            if self._is_open:
                await environment.close(actions.handle)
        if isinstance(terminal, Truncated):
            self.trace.limits_hit.append(terminal.limit)
        return terminal

    async def _open(self) -> Handle:
        """An environment that stands where the past ends, and knows its receipts; none is opened to look back only."""
        past, environment, timeout_s = self.past, self._ports.environment, self._timeouts.environment_s
        if not self._goes_on:
            return Handle(self._spec.episode, "")
        try:
            handle = await environment.open(self._spec.task, self._spec.episode, self._lease, timeout_s)
        except EnvironmentFault as fault:
            if fault.outcome is Outcome.LOST:
                # It may stand although nobody holds its handle; the episode's name is enough to end it.
                await environment.close(Handle(self._spec.episode, UNKNOWN_INCARNATION))
            raise
        self._actions.handle, self._is_open = handle, True
        if environment.effect is EffectClass.SNAPSHOT:
            if past.intents and not (handle := await self._restored(handle)):
                return Handle(self._spec.episode, "")
            self._actions.handle = handle
            self._actions.revision = await environment.snapshot(handle, timeout_s)
        if past.commits:
            done = [(past.intents[action_id].action, commit) for action_id, commit in past.commits.items()]
            receipts = [(action, stored_receipt(past, action, self._recorder.read)) for action, _ in done]
            await environment.adopt(handle, receipts, timeout_s)
        return handle

    async def _look_back(self) -> None:
        """Takes what the journal holds of an attempt into the trace, where no environment could be opened to go on."""
        self._goes_on = False
        with contextlib.suppress(RunInterrupted):
            await self._turns()

    async def _restored(self, handle: Handle) -> Handle | None:
        """The environment at the revision that the past ends with; None, and looking back only, when that is lost."""
        environment, timeout_s, past = self._ports.environment, self._timeouts.environment_s, self.past
        pending = [intent for action_id, intent in past.intents.items() if action_id not in past.commits]
        if pending:
            revision = pending[-1].revision
        else:
            last = past.intents[next(reversed(past.commits))].action
            revision = stored_receipt(past, last, self._recorder.read).revision
        try:
            if revision is not None:
                handle = await environment.restore(handle, revision, timeout_s)
                restored = EnvironmentRestored(revision, handle.incarnation, "the process of the attempt ended")
                self._recorder.record(restored, key=self._name)
                return handle
        except EnvironmentFault as fault:
            self._loss = f"its environment cannot be brought back: {fault}"
        await environment.close(handle)
        self._goes_on = self._is_open = False
        return None

    def _look_ahead(self, what: str | ActionId) -> None:
        """Raises RunInterrupted where the past of an attempt ends that may not go on."""
        if not self._goes_on:
            raise RunInterrupted(f"{self._spec.episode}: its process ended before {what}, and {self._loss}")

    async def _turns(self) -> Terminal:
        trace, budget = self.trace, self._budget
        trace.extend(self._ports.harness.open(self._spec.task))
        min_version = 0
        for step in range(budget.turns):
            room = min(budget.turn_tokens, budget.episode_tokens - trace.num_tokens)
            if room <= 0:
                return Truncated(Limit.EPISODE_TOKENS)
            segments = await self._generate(step, room, min_version)
            limit = self._limit_of(segments[-1], room)
            if limit is not None:
                return Truncated(limit)
            min_version = max([segment.policy.version for segment in segments if segment.policy])
            parsed = self._ports.harness.parse(_joined_ids(segments))
            if parsed.status is ParseStatus.FINAL:
                self._look_ahead("it was claimed")
                trace.final_text = parsed.text
                return await self._ports.environment.claim(
                    self._actions.handle, parsed.text, self._timeouts.environment_s
                )
            limit = await self._respond(step, parsed)
            if limit is not None:
                return Truncated(limit)
        return Truncated(Limit.TURNS)

    async def _generate(self, step: int, max_tokens: int, min_version: int) -> tuple[TokenSegment, ...]:
        """The turn's segments, checked at the port's boundary and recorded."""
        if (said := self.past.turns.get(step)) is not None:
            self._take_turn(said)
            return said.segments
        self._look_ahead(f"turn {step}")
        request = GenerateRequest(
            request_id=f"{self._name}/{step}",
            prefix=tuple(self.trace.segments),
            max_tokens=max_tokens,
            sampling=self._spec.sampling,
            stop_ids=self._ports.harness.stop_ids,
            policy_id=self._policy_id,
            min_version=min_version,
            pin_version=self._spec.pin_version,
            affinity=self._group,
            seed_key=stream_key_bytes(self._spec.seed, "sample", self._name, step),
        )
        try:
            turn = await self._sample(request, step)
        except InferenceError as lost:
            if lost.outcome is not Outcome.LOST or self._is_wall_over:
                raise
            # A turn is a function of its request, so asking again gives what was lost. Where the engine itself is gone the
            # run ends first, and its next process asks.
            await asyncio.sleep(_AGAIN_S)
            turn = await self._sample(request, step)
        self._take_turn(turn)
        self._recorder.record(turn, key=request.request_id)
        return turn.segments

    async def _sample(self, request: GenerateRequest, step: int) -> TurnGenerated:
        """The turn as the engine delivered it, whole. Raises InferenceError; what came of a part of it is dropped."""
        segments: list[TokenSegment] = []
        timing: TurnTiming | None = None
        self._request_id = request.request_id
        self._ports.inference_clock.enter()
        try:
            async for part in self._ports.inference.generate(request, self._timeouts.generate_s):
                if isinstance(part, TurnTiming):
                    timing = part
                else:
                    segments.append(_checked(part, request.min_version))
        finally:
            self._request_id = None
            self._ports.inference_clock.leave()
        if timing is None or not segments or segments[-1].finish is None:
            raise InferenceError(f"{request.request_id}: the engine ended a turn without a reason", Outcome.LOST)
        if timing.request_id != request.request_id:
            problem = f"asked for turn {request.request_id}; the answer is turn {timing.request_id}"
            self._recorder.record(AnswerRefused("inference", problem), key=request.request_id)
            raise InferenceError(problem, Outcome.LOST)
        return TurnGenerated(
            self._spec.episode, step, tuple(segments), timing.wait_s, timing.generate_s, timing.preemptions
        )

    def _take_turn(self, turn: TurnGenerated) -> None:
        self.trace.extend(turn.segments)
        self.trace.turns += 1
        self.trace.wait_s += turn.wait_s
        self.trace.generate_s += turn.generate_s
        self.trace.preemptions += turn.preemptions

    def _limit_of(self, last: TokenSegment, room: int) -> Limit | None:
        """Which limit ended the turn, if one did."""
        match last.finish:
            case FinishReason.STOP | None:
                return None
            case FinishReason.INTERRUPTED if self._is_wall_over:
                return Limit.WALL
            case FinishReason.INTERRUPTED:
                raise InferenceError(f"{self._spec.episode}: the engine gave the turn up", Outcome.LOST)
            case FinishReason.LENGTH:
                return Limit.TURN_TOKENS if room == self._budget.turn_tokens else Limit.EPISODE_TOKENS

    async def _respond(self, step: int, parsed: ParsedTurn) -> Limit | None:
        """Shows the policy what came of its turn; the limit that ends the episode, if one does."""
        trace, budget, harness = self.trace, self._budget, self._ports.harness
        if parsed.status is ParseStatus.MALFORMED:
            trace.malformed += 1
            self._extend(self._within(1, lambda room: harness.object_to(parsed.problem, room)))
            return Limit.MALFORMED_CALLS if trace.malformed >= budget.malformed_calls else None
        receipts: list[tuple[Action, Receipt, int]] = []
        is_over = self.past.has_observed(step)
        for ordinal, call in enumerate(parsed.calls):
            action = Action(ActionId(self._spec.episode, step, ordinal), call.tool, call.arguments)
            is_committed = action.id in self.past.commits
            if is_over and not is_committed:
                break
            if not is_committed:
                self._look_ahead(action.id)
            begin_s = self._loop.time()
            receipt, commit = await self._actions.run(action, self._lease, self._tool_timeout_s())
            trace.tool_s += receipt.metering.wall_s if is_committed else self._loop.time() - begin_s
            trace.metering = trace.metering + receipt.metering
            receipts.append((action, receipt, commit))
            if self._limit_reached(step):
                break
        outputs = [receipt.output for _, receipt, _ in receipts]
        self._observe(receipts, self._within(len(outputs), lambda room: harness.observe(outputs, room)))
        return self._limit_reached(step)

    def _within(self, count: int, observe: Callable[[int], ObservedTokens]) -> ObservedTokens:
        """Observations of one step that share what is left of `episode_tokens`, the template around them included.

        Where they make the template rewrite what is before them, the episode goes on as a new path first.
        Each keeps at least one token, so a step that finds no room left runs over by its template and one token a call;
        no further turn then follows.
        """
        budget = self._budget
        left = budget.episode_tokens - self.trace.num_tokens
        observed = observe(max(1, min(budget.observation_tokens, left // count)))
        rewritten = self._ports.harness.rewrite(self.trace.segments, observed.segments[0])
        if rewritten is not None:
            self.trace.fork(rewritten)
            left = budget.episode_tokens - self.trace.num_tokens
        over = num_tokens(observed.segments) - left
        if over <= 0:
            return observed
        shown = sum(len(observed.segments[index]) for index in observed.observation_indices)
        return observe(max(1, min(budget.observation_tokens, (shown - over) // count)))

    def _observe(self, receipts: list[tuple[Action, Receipt, int]], observed: ObservedTokens) -> None:
        """Records each observation, and where it stands in the sequence."""
        first = len(self.trace.segments) - self.trace.own_start
        for position, (action, receipt, commit) in enumerate(receipts):
            index = observed.observation_indices[position]
            shown = ActionObserved(
                action_id=action.id,
                output=address_of(receipt.output),
                ids=observed.segments[index].ids,
                revision=receipt.revision,
                is_cut=observed.is_cut[position],
                neutralized=observed.neutralized[position],
            )
            if (known := self.past.observed.get(action.id)) is None:
                self._recorder.record(shown, key=str(action.id), cause=commit)
            elif known != shown:
                raise IntegrityError(f"{action.id} was observed otherwise before; its episode cannot go on")
            self.trace.actions.append(
                ActionOutcome(
                    action=action,
                    status=receipt.status,
                    output=receipt.output,
                    output_bytes=receipt.output_bytes,
                    path=len(self.trace.left),
                    segment=first + index,
                    revision=receipt.revision,
                )
            )
        self._extend(observed)

    def _extend(self, observed: ObservedTokens) -> None:
        self.trace.extend(observed.segments)
        self.trace.neutralized += sum(observed.neutralized)
        if any(observed.is_cut):
            self.trace.limits_hit.append(Limit.OBSERVATION_TOKENS)

    def _tool_timeout_s(self) -> float:
        """The tool's deadline: its own, or what is left of the wall limit, at least a millisecond."""
        if not self._has_wall_limit:
            return self._timeouts.tool_s
        return max(1e-3, min(self._timeouts.tool_s, self._wall_deadline_s - self._loop.time()))

    def _limit_reached(self, step: int) -> Limit | None:
        """The limit that ends the episode after the step; none did where it went on."""
        if step + 1 in self.past.turns:
            return None
        if self.trace.metering.cpu_s > self._budget.environment_cpu_s:
            return Limit.ENVIRONMENT_CPU
        return Limit.WALL if self._is_wall_over else None

    def _end_wall(self) -> None:
        """The wall limit passed: a running generation is interrupted and keeps its tokens."""
        self._is_wall_over = True
        if self._request_id is not None:
            self._interrupt = asyncio.create_task(
                self._stop_generating(self._request_id), name=f"wall/{self._request_id}"
            )

    async def _stop_generating(self, request_id: str) -> None:
        try:
            await self._ports.inference.interrupt([request_id], self._timeouts.generate_s)
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
    if segment.origin is not Origin.POLICY or segment.policy is None:
        raise InferenceError(f"the engine delivered a segment of origin {segment.origin.value}", Outcome.LOST)
    if segment.policy.version < min_version:
        raise InferenceError(f"the engine sampled with {segment.policy}, older than {min_version}", Outcome.LOST)
    return segment


def _joined_ids(segments: tuple[TokenSegment, ...]) -> IntArray:
    if len(segments) == 1:
        return segments[0].ids_T
    return as_int32(type(segments[0].ids)(b"".join(segment.ids for segment in segments)))
