"""Event logs written by hand, with known answers. Times are in seconds, and every row that an event names exists."""

from collections.abc import Sequence

from headrace.config import AlgorithmSection, Config, EvaluationSection, RunSection
from headrace.records.action import Action, ActionCommitted, ActionIntended, EffectClass
from headrace.records.arrays import float32_bytes, int32_bytes
from headrace.records.batch import (
    BatchPlan,
    BatchPlanned,
    BatchRow,
    BatchSelected,
    GroupAdmitted,
    GroupClosed,
    GroupRejected,
    MemberResult,
)
from headrace.records.events import Event, Payload
from headrace.records.execution import EpisodeClaimed, ExecutionStatus, Metering
from headrace.records.ids import ActionId, Address, EpisodeId, GroupId, LeaseToken, PolicyId, PolicyRef
from headrace.records.observation import ActionObserved
from headrace.records.provenance import PolicyVersion, Provenance, address_of, canonical_bytes, content_version
from headrace.records.run import RunEnded, RunStarted, WorkerState, WorkerStateChanged
from headrace.records.segment import FinishReason, Origin, Sampling, TokenSegment, TurnCompute, TurnGenerated
from headrace.records.task import Budget, Task, TaskDrawn
from headrace.records.terminal import Success, Terminal, Truncated, terminal_name
from headrace.records.trajectory import (
    ActionOutcome,
    EpisodeStarted,
    ForkCause,
    Path,
    PathParent,
    SideRecord,
    Transcript,
    TranscriptSealed,
)
from headrace.records.update import (
    BatchScored,
    CanaryChecked,
    UpdateCompleted,
    UpdateResult,
    WeightsActivated,
    WeightsCommitted,
    WeightsPrepared,
    WeightsStaged,
)
from headrace.records.verdict import Scored, Unscored, UnscoredCause, Verdict, VerdictSealed
from headrace.reporting.report import RunReport, report_run

POLICY = PolicyId("policy")
VERSION = content_version("any code")


def weights_of(version: int) -> Address:
    return content_version("weights", str(version))


class Log:
    """Appends events and rows, and reads rows back as a journal does."""

    def __init__(self, *, updates: int = 2, cores: float = 2.0) -> None:
        self.events: list[Event] = []
        self.rows: dict[Address, bytes] = {}
        self._tokens = 0
        config = Config(
            run=RunSection(updates=updates),
            evaluation=EvaluationSection(success_bound=1.0),
            algorithm=AlgorithmSection(),
        )
        started = RunStarted("by-hand", 7, self.row(config), "local", "2031-01-02T03:04:05", {"cores": cores})
        self.add(0.0, started, "by-hand")

    def row(self, record: object) -> Address:
        data = canonical_bytes(record)
        self.rows[address_of(data)] = data
        return address_of(data)

    def read(self, address: Address) -> bytes:
        return self.rows[address]

    def add(self, t_s: float, payload: Payload, key: str, cause: int = 0) -> None:
        self.events.append(Event(len(self.events) + 1, 1, "hand", round(t_s * 1e9), key, cause, payload))

    def draw(
        self, t_s: float, ordinal: int, difficulty: str = "easy", *, task: Task | None = None, size: int = 2
    ) -> Task:
        found = task or make_task(ordinal, difficulty)
        key = f"train.{ordinal}"
        self.add(t_s, TaskDrawn(self.row(found), found.family, found.difficulty), key)
        self.add(t_s, GroupAdmitted(size, 0, 1), key)
        return found

    def start(self, t_s: float, episode: EpisodeId, task: Task, pin: int | None = None) -> None:
        self._tokens += 1
        self.add(t_s, EpisodeClaimed(LeaseToken(self._tokens), 60.0), f"{episode}#{self._tokens}")
        self.add(t_s, EpisodeStarted(self.row(task), pin), str(episode))

    def turn(self, t_s: float, episode: EpisodeId, step: int, *, wait_s: float = 0.0, generate_s: float = 0.5) -> None:
        compute = TurnCompute(40, 0.25 * generate_s, 0.5 * generate_s)
        turn = TurnGenerated(episode, step, (policy_segment(0, 4),), wait_s, generate_s, 0, compute)
        self.add(t_s, turn, f"{episode}/{step}")

    def call(self, t_s: float, seconds: float, episode: EpisodeId, step: int = 0) -> Action:
        action = Action(ActionId(episode, step, 0), "calculator", '{"expression":"1+1"}')
        self.add(t_s, ActionIntended(action, LeaseToken(1), EffectClass.PURE), str(action.id))
        self.add(t_s + seconds, ActionCommitted(action.id, VERSION), str(action.id))
        observed = ActionObserved(action.id, VERSION, int32_bytes([9]), None, is_cut=True, neutralized=2)
        self.add(t_s + seconds, observed, str(action.id))
        return action

    def seal(
        self,
        t_s: float,
        episode: EpisodeId,
        task: Task,
        *,
        terminal: Terminal | None = None,
        actions: Sequence[tuple[Action, ExecutionStatus]] = (),
        malformed: int = 0,
        forks: Sequence[ForkCause] = (),
        cpu_s: float = 0.25,
        version: int = 0,
        wait_s: float = 0.0,
    ) -> Address:
        transcript = make_transcript(
            episode, task, terminal or Success(), actions, malformed=malformed, forks=forks, version=version
        )
        side = SideRecord(
            transcript.address, 1, 0.5, 0.1, 0.0, wait_s, 1.0 + wait_s, 0, Metering(0.1, cpu_s), 2 * len(actions)
        )
        sealed = TranscriptSealed(
            self.row(transcript),
            self.row(side),
            transcript.task,
            terminal_name(transcript.terminal),
            transcript.num_sampled_tokens,
            transcript.num_tokens,
            transcript.versions,
        )
        self.add(t_s, sealed, str(episode))
        return transcript.address

    def judge(self, t_s: float, transcript: Address, score: float | None, try_number: int = 0) -> Address:
        outcome: Scored | Unscored = Unscored(UnscoredCause.GRADER_CRASH, "gone")
        if score is not None:
            outcome = Scored((("answer", score),), "the answer was compared")
        verdict = Verdict(transcript, VERSION, outcome)
        sealed = VerdictSealed(transcript, self.row(verdict), score is not None, try_number)
        self.add(t_s, sealed, f"{transcript}#{try_number}")
        return verdict.address

    def episode(
        self, begin_s: float, end_s: float, episode: EpisodeId, task: Task, score: float | None, *, version: int = 0
    ) -> MemberResult:
        """One turn that takes the whole time, sealed and judged at its end."""
        self.start(begin_s, episode, task)
        self.turn(end_s, episode, 0, generate_s=end_s - begin_s)
        transcript = self.seal(end_s, episode, task, version=version)
        return MemberResult(episode, transcript, self.judge(end_s, transcript, score), score)

    def group(
        self,
        begin_s: float,
        end_s: float,
        ordinal: int,
        scores: Sequence[float | None],
        difficulty: str = "easy",
        *,
        task: Task | None = None,
        version: int = 0,
    ) -> tuple[MemberResult, ...]:
        """A group whose members all run from begin to end."""
        found = self.draw(begin_s, ordinal, difficulty, task=task, size=len(scores))
        members = tuple(
            self.episode(begin_s, end_s, episode_id(ordinal, member), found, score, version=version)
            for member, score in enumerate(scores)
        )
        self.close(end_s, ordinal, members)
        return members

    def close(self, t_s: float, ordinal: int, members: tuple[MemberResult, ...]) -> None:
        self.add(t_s, GroupClosed(members), f"train.{ordinal}")

    def reject(
        self, t_s: float, ordinal: int, reason: str, *, state: str = "filtered", difficulty: str = "easy"
    ) -> None:
        rejected = GroupRejected(state, reason, 3, 2, 2.5, difficulty, 20.0, 2.0)
        self.add(t_s, rejected, f"train.{ordinal}")

    def commit(self, t_s: float, version: int, *, kl: float | None = None) -> None:
        policy = PolicyRef(POLICY, version)
        self.add(t_s, WeightsStaged(policy, weights_of(version), 1000), str(policy))
        self.add(t_s, WeightsPrepared(policy, "engine", 0.01), f"{policy}/engine")
        self.add(t_s, CanaryChecked(policy, "engine", 2e-6, 1e-3, is_accepted=True, score_s=0.25), f"{policy}/engine")
        self.add(t_s, WeightsCommitted(policy, weights_of(version), kl), str(policy))
        self.add(t_s, WeightsActivated(policy, "engine", 0.02, 30), f"{policy}/engine")

    def update(
        self,
        select_s: float,
        step_s: float,
        commit_s: float,
        update: int,
        groups: dict[int, tuple[MemberResult, ...]],
        *,
        ess: float = 1.0,
        lag: int = 0,
        paths: int = 1,
    ) -> None:
        """Selects, plans, steps and publishes; each path of a member with a reward is a row."""
        ids = tuple(GroupId("train", ordinal) for ordinal in groups)
        self.add(select_s, BatchSelected(update, ids), str(update))
        rows = tuple(
            BatchRow(m.transcript, path, GroupId("train", ordinal), place, 1, m.reward, m.reward - 0.5, 1.0)
            for ordinal, members in groups.items()
            for place, m in enumerate(members)
            if m.reward is not None and m.transcript is not None
            for path in range(paths)
        )
        rewards = [row.reward for row in rows]
        plan = BatchPlan(update, POLICY, update - 1, rows, VERSION, bytes(16))
        self.add(select_s, BatchScored(update, len(rows), 3e-6, 4e-6, ess, 1.0, 1e-5), str(update))
        self.add(
            select_s,
            BatchPlanned(update, self.row(plan), ids, len(rows), lag, lag / 2, 0, sum(rewards) / len(rewards)),
            str(update),
        )
        result = UpdateResult(update, update, weights_of(update), 1000, {"loss": 0.5, "grad_norm": 1.5}, 0.25)
        self.add(step_s, UpdateCompleted(result), str(update))
        self.commit(commit_s, update, kl=1e-3)

    def worker(self, t_s: float, worker: str, state: WorkerState) -> None:
        self.add(t_s, WorkerStateChanged(worker, state), worker)

    def end(self, t_s: float, reason: str = "completed", updates: int = 2) -> None:
        self.add(t_s, RunEnded(reason, updates), "by-hand")


def episode_id(ordinal: int, member: int, attempt: int = 0, purpose: str = "train") -> EpisodeId:
    return EpisodeId(GroupId(purpose, ordinal), member, attempt)


def make_task(ordinal: int, difficulty: str = "easy", question: str = "") -> Task:
    return Task("sums", difficulty, 1, ordinal, question or f"What is {ordinal} + 1?", Budget(), "sandbox")


def policy_segment(version: int, num_tokens: int) -> TokenSegment:
    return TokenSegment(
        Origin.POLICY,
        int32_bytes(range(num_tokens)),
        float32_bytes([-0.5] * num_tokens),
        PolicyRef(POLICY, version),
        version,
        Sampling(1.0),
        FinishReason.STOP,
    )


def make_transcript(
    episode: EpisodeId,
    task: Task,
    terminal: Terminal,
    actions: Sequence[tuple[Action, ExecutionStatus]] = (),
    *,
    malformed: int = 0,
    forks: Sequence[ForkCause] = (),
    version: int = 0,
) -> Transcript:
    """A prompt of 6 tokens, one policy turn of 4, then one observation for each action and each malformed turn."""
    segments = [
        TokenSegment(Origin.TEMPLATE, int32_bytes([1])),
        TokenSegment(Origin.ENVIRONMENT, int32_bytes([2, 3, 4, 5, 6])),
        policy_segment(version, 4),
    ]
    outcomes: list[ActionOutcome] = []
    for action, status in actions:
        outcomes.append(ActionOutcome(action, status, b"2", 1, 0, len(segments)))
        segments.append(TokenSegment(Origin.ENVIRONMENT, int32_bytes([7])))
    segments += [TokenSegment(Origin.ENVIRONMENT, int32_bytes([8]))] * malformed
    transcript = Transcript(
        episode=episode,
        task=task.address,
        provenance=Provenance(task.address, (PolicyVersion(POLICY, version, weights_of(version)),), VERSION, VERSION),
        paths=(
            Path("policy", tuple(segments)),
            *(Path("policy", (policy_segment(version, 2),), PathParent(0, 2, cause)) for cause in forks),
        ),
        actions=tuple(outcomes),
        terminal=terminal,
        limits_hit=(terminal.limit,) if isinstance(terminal, Truncated) else (),
        final_text="2",
    )
    transcript.check()
    return transcript


def report_of(log: Log) -> RunReport:
    return report_run(log.events, log.read)


def two_updates() -> Log:
    """Groups 0 (easy; 1, 0) and 1 (hard; 1, absent, 1, 0) train; group 2 is filtered; 3 is open at the end."""
    log = Log(cores=2.0)
    log.worker(0.0, "trainer", WorkerState.IDLE)
    log.commit(1.0, 0)
    first = log.group(1.0, 3.0, 0, (1.0, 0.0))
    log.update(4.0, 5.0, 6.0, 1, {0: first}, ess=0.5)
    second = log.group(6.0, 10.0, 1, (1.0, None, 1.0, 0.0), "hard", version=1)
    log.group(6.0, 10.0, 2, (1.0, 1.0), "hard")
    log.reject(10.0, 2, "stale: lag 3 > 2", difficulty="hard")
    log.draw(10.0, 3)
    log.update(12.0, 14.0, 16.0, 2, {1: second}, ess=0.9, lag=2)
    log.end(36.0)
    return log
