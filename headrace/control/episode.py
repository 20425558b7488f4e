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
from typing import Final

import msgspec

from headrace.config import TimeoutSection
from headrace.control.acting import ActionRunner, UnknownEffect
from headrace.control.generating import TurnGenerator
from headrace.control.opening import EnvironmentOpener, RunInterrupted
from headrace.control.pacing import ServiceTurns
from headrace.control.past import AttemptPast
from headrace.control.recorder import OwnerPen, Recorder, WorkerClock
from headrace.control.sealing import EpisodeTrace, Sealed, Sealer
from headrace.errors import BoundaryError, InferenceError, IntegrityError, Outcome
from headrace.ports import Environment, Harness, Inference, ObservedTokens
from headrace.records.action import Action, EffectClass
from headrace.records.checkpoint import InFlight
from headrace.records.execution import EpisodeClaimed, Lease, Receipt
from headrace.records.harness import ParsedTurn, ParseStatus
from headrace.records.ids import ActionId, Address, EpisodeId, GroupId, PolicyId
from headrace.records.observation import ActionObserved
from headrace.records.provenance import address_of
from headrace.records.segment import (
    FinishReason,
    GenerateRequest,
    Sampling,
    TokenSegment,
    joined_ids,
    num_tokens,
)
from headrace.records.streams import stream_key_bytes
from headrace.records.task import Task
from headrace.records.terminal import InfraError, Limit, Terminal, Truncated
from headrace.records.trajectory import ActionOutcome, EpisodeStarted

_STOP: Final = FinishReason.STOP
_FINAL: Final = ParseStatus.FINAL
_MALFORMED: Final = ParseStatus.MALFORMED
_NO_PAST = AttemptPast(EpisodeId(GroupId("", 0), 0, 0))
"""What every new attempt has behind it: one record for all of them, which nobody writes to."""


class EpisodeSpec(msgspec.Struct, frozen=True):
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
    """What a driver acts through, with the clocks that time it, and the queue before the service behind the tools."""

    harness: Harness
    inference: Inference
    environment: Environment
    inference_clock: WorkerClock
    environment_clock: WorkerClock
    service: ServiceTurns


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
        self._opener = EnvironmentOpener(
            ports.environment,
            recorder,
            episode=spec.episode,
            past=self.past,
            actions=self._actions,
            timeout_s=self._timeouts.environment_s,
            is_resumed=spec.in_flight == "resume",
        )
        wall_left_s = self._budget.wall_s - self.past.spent_s
        self._wall_deadline_s = self._loop.time() + wall_left_s
        self._generator = TurnGenerator(
            ports.inference,
            ports.inference_clock,
            recorder,
            episode=spec.episode,
            timeout_s=self._timeouts.generate_s,
            is_stopped=self._has_wall_limit and wall_left_s <= 0,
        )

    async def to_terminal(self) -> Terminal:
        """The terminal state; every failure of a boundary becomes one."""
        timer = self._loop.call_at(self._wall_deadline_s, self._generator.stop) if self._has_wall_limit else None
        actions, environment = self._actions, self._ports.environment
        try:
            await self._opener.open(self._spec.task, self._lease)
            terminal = await self._turns()
            self._opener.look_ahead("its artifact was taken")
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
            await self._generator.settle()
            await self._opener.close()
        if isinstance(terminal, Truncated):
            self.trace.limits_hit.append(terminal.limit)
        return terminal

    async def _look_back(self) -> None:
        """Takes what the journal holds of an attempt into the trace, where no environment could be opened to go on."""
        self._opener.only_look_back()
        with contextlib.suppress(RunInterrupted):
            await self._turns()

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
            parsed = self._ports.harness.parse(joined_ids(segments))
            if parsed.status is _FINAL:
                self._opener.look_ahead("it was claimed")
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
            self.trace.take_turn(said)
            return said.segments
        self._opener.look_ahead(f"turn {step}")
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
        turn = await self._generator.turn(request, step)
        self.trace.take_turn(turn)
        self._recorder.record(turn, key=request.request_id)
        return turn.segments

    def _limit_of(self, last: TokenSegment, room: int) -> Limit | None:
        """Which limit ended the turn, if one did."""
        if last.finish is None or last.finish is _STOP:
            return None
        match last.finish:
            case FinishReason.INTERRUPTED if self._generator.is_stopped:
                return Limit.WALL
            case FinishReason.INTERRUPTED:
                raise InferenceError(f"{self._spec.episode}: the engine gave the turn up", Outcome.LOST)
            case FinishReason.LENGTH:
                return Limit.TURN_TOKENS if room == self._budget.turn_tokens else Limit.EPISODE_TOKENS

    async def _respond(self, step: int, parsed: ParsedTurn) -> Limit | None:
        """Shows the policy what came of its turn; the limit that ends the episode, if one does."""
        trace, budget, harness = self.trace, self._budget, self._ports.harness
        if parsed.status is _MALFORMED:
            trace.malformed += 1
            self.trace.take_observed(self._within(1, lambda room: harness.object_to(parsed.problem, room)))
            return Limit.MALFORMED_CALLS if trace.malformed >= budget.malformed_calls else None
        receipts: list[tuple[Action, Receipt, int]] = []
        is_over = self.past.has_observed(step)
        for ordinal, call in enumerate(parsed.calls):
            action = Action(ActionId(self._spec.episode, step, ordinal), call.tool, call.arguments)
            is_committed = action.id in self.past.commits
            if is_over and not is_committed:
                break
            wait_s: float | None = 0.0
            if not is_committed:
                self._opener.look_ahead(action.id)
                if self._ports.service.is_limited:
                    wait_s = await self._service_turn()
                if wait_s is None:
                    break
            begin_s, held_s = self._loop.time(), trace.service_s
            receipt, commit = await self._actions.run(
                action, self._lease, self._tool_timeout_s(begin_s), wait_s=wait_s, turn=self._service_turn
            )
            elapsed_s = self._loop.time() - begin_s - (trace.service_s - held_s)
            trace.tool_s += receipt.metering.wall_s if is_committed else elapsed_s
            trace.metering = trace.metering + receipt.metering
            receipts.append((action, receipt, commit))
            if self._limit_reached(step):
                break
        if not receipts:
            return Limit.WALL
        outputs = [receipt.output for _, receipt, _ in receipts]
        self._observe(receipts, self._within(len(outputs), lambda room: harness.observe(outputs, room)))
        return self._limit_reached(step)

    async def _service_turn(self) -> float | None:
        """Seconds that the next call waited for its turn at the service; None where the wall limit came first."""
        begin_s = self._loop.time()
        left_s = self._wall_deadline_s - begin_s if self._has_wall_limit else None
        wait_s = await self._ports.service.turn(left_s)
        self.trace.service_s += self._loop.time() - begin_s
        if wait_s is None:
            self._generator.stop()
        return wait_s

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
        self.trace.take_observed(observed)

    def _tool_timeout_s(self, now_s: float) -> float:
        """The tool's deadline: its own, or what is left of the wall limit, at least a millisecond."""
        if not self._has_wall_limit:
            return self._timeouts.tool_s
        return max(1e-3, min(self._timeouts.tool_s, self._wall_deadline_s - now_s))

    def _limit_reached(self, step: int) -> Limit | None:
        """The limit that ends the episode after the step; none did where it went on."""
        if step + 1 in self.past.turns:
            return None
        if self.trace.metering.cpu_s > self._budget.environment_cpu_s:
            return Limit.ENVIRONMENT_CPU
        return Limit.WALL if self._generator.is_stopped else None
