"""What `ports.Journal` promises, on every implementation."""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from lawful_run import Step, lawful_steps, row_of, task_of, write_run

from headrace.errors import IntegrityError, Outcome, StoreError
from headrace.ports import Row
from headrace.records.ids import Address
from headrace.records.provenance import address_of
from headrace.records.run import RunEnded, WorkerState, WorkerStateChanged
from headrace.records.task import SourceExhausted, TaskDrawn
from headrace.store import (
    CommitPolicy,
    GroupCommitJournal,
    InlineCommit,
    MemoryJournal,
    MemoryStorage,
    SqliteJournal,
    WriterThread,
)

Make = Callable[..., GroupCommitJournal]
IDLE = WorkerStateChanged("engine", WorkerState.IDLE)


@pytest.fixture(params=["memory inline", "memory delayed", "memory thread", "sqlite thread", "sqlite inline"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Opens the same journal, again and again if need be."""
    kind, mode = request.param.split()
    runners = {"inline": InlineCommit, "delayed": lambda: InlineCommit(1e-3), "thread": WriterThread}
    storage = MemoryStorage()

    def open_journal(**options: Any) -> GroupCommitJournal:
        runner = options.pop("runner", None) or runners[mode]()
        if kind == "memory":
            return MemoryJournal(storage, incarnation="life", runner=runner, **options)
        return SqliteJournal(tmp_path / "run", incarnation="life", runner=runner, **options)

    yield open_journal


def run(work: Coroutine[Any, Any, None]) -> None:
    async def within() -> None:
        async with asyncio.timeout(20):
            await work

    asyncio.run(within())


def drawn(ordinal: int) -> tuple[TaskDrawn, Row]:
    row = row_of("task", task_of(ordinal))
    return TaskDrawn(row.address, "sums", "easy"), row


def test_sequence_numbers_rise_from_one_without_gaps(make: Make) -> None:
    async def work() -> None:
        journal = make()
        assert [journal.append(IDLE, key="engine") for _ in range(1200)] == list(range(1, 1201))
        await journal.durable(1200)
        assert [event.seq for event in journal.events()] == list(range(1, 1201))
        assert [event.seq for event in journal.events(after=1190)] == list(range(1191, 1201))
        await journal.close()

    run(work())


def test_an_event_is_in_the_order_at_once_and_durable_later(make: Make) -> None:
    async def work() -> None:
        journal = make()
        seq = journal.append(IDLE, key="engine")
        assert list(journal.events()) == []
        await journal.durable(seq)
        assert [event.payload for event in journal.events()] == [IDLE]
        await journal.close()

    run(work())


def test_a_durable_event_implies_all_before_it_with_their_rows(make: Make) -> None:
    async def work() -> None:
        journal = make()
        seqs = []
        for ordinal in range(20):
            payload, row = drawn(ordinal)
            seqs.append(journal.append(payload, key=f"train.{ordinal}", rows=[row]))
        await journal.durable(seqs[11])
        assert [event.seq for event in journal.events()][:12] == seqs[:12]
        for event in journal.events():
            assert isinstance(event.payload, TaskDrawn)
            assert address_of(journal.read(event.payload.task)) == event.payload.task
        await journal.close()

    run(work())


def test_a_row_can_be_read_before_it_is_durable_and_after(make: Make) -> None:
    async def work() -> None:
        journal = make()
        payload, row = drawn(0)
        seq = journal.append(payload, key="train.0", rows=[row])
        assert journal.read(row.address) == row.data
        await journal.durable(seq)
        assert journal.read(row.address) == row.data
        with pytest.raises(KeyError):
            journal.read(address_of(b"never appended"))
        await journal.close()

    run(work())


def test_a_row_lies_under_the_address_of_its_own_bytes_and_under_no_other() -> None:
    _, row = drawn(0)
    assert row.address == hashlib.sha256(row.data).hexdigest()
    assert Row("task", row.data + b"!").address != row.address
    with pytest.raises(TypeError):
        Row("task", row.data + b"!", address=row.address)  # type: ignore[call-arg]


def test_a_row_that_is_appended_again_is_kept_once(make: Make) -> None:
    async def work() -> None:
        journal = make()
        payload, row = drawn(0)
        for ordinal in range(3):
            journal.append(payload, key=f"train.{ordinal}", rows=[row, row])
        await journal.durable(3)
        journal.append(payload, key="train.3", rows=[row])
        await journal.durable(4)
        assert journal.read(row.address) == row.data
        await journal.close()

    run(work())


def test_a_second_once_only_event_fails_loudly_and_nothing_is_accepted_after_it(make: Make) -> None:
    async def work() -> None:
        journal = make()
        payload, row = drawn(0)
        await journal.durable(journal.append(payload, key="train.0", rows=[row]))
        second = journal.append(payload, key="train.0")
        other = journal.append(IDLE, key="engine")
        for seq in (second, other):
            with pytest.raises(StoreError, match=r"task_drawn 'train\.0' is in the journal already") as refused:
                await journal.durable(seq)
            assert refused.value.outcome is Outcome.REJECTED
        with pytest.raises(StoreError, match="already"):
            journal.append(IDLE, key="engine")
        await journal.durable(1)
        assert [event.seq for event in journal.events()] == [1]
        await journal.close()

    run(work())


def test_two_once_only_events_of_one_batch_fail_as_well(make: Make) -> None:
    async def work() -> None:
        journal = make()
        payload, _ = drawn(0)
        journal.append(payload, key="train.0")
        with pytest.raises(StoreError, match="already"):
            await journal.durable(journal.append(payload, key="train.0"))
        assert list(journal.events()) == []
        await journal.close()

    run(work())


def test_events_that_may_repeat_may_repeat(make: Make) -> None:
    async def work() -> None:
        journal = make()
        for _ in range(3):
            journal.append(SourceExhausted(3), key="source")
            journal.append(IDLE, key="engine")
        await journal.durable(6)
        await journal.close()

    run(work())


class Announcing:
    """Tells after each commit that there was one."""

    def __init__(self, runner: InlineCommit | WriterThread) -> None:
        self._runner = runner
        self.committed = asyncio.Semaphore(0)

    async def __call__(self, commit: Callable[[], None]) -> None:
        await self._runner(commit)
        asyncio.get_running_loop().call_soon(self.committed.release)

    def close(self) -> None:
        self._runner.close()


def test_a_batched_event_becomes_durable_although_nobody_waits(make: Make) -> None:
    async def work() -> None:
        runner = Announcing(WriterThread())
        journal = make(runner=runner, policy=CommitPolicy(max_delay_s=0.01))
        for seq in (1, 2):
            journal.append(IDLE, key="engine")
            await runner.committed.acquire()
            assert journal.durable_seq == seq
        await journal.close()

    run(work())


def test_a_full_batch_and_a_durable_event_do_not_wait_for_the_delay(make: Make) -> None:
    async def work() -> None:
        runner = Announcing(InlineCommit())
        journal = make(runner=runner, policy=CommitPolicy(max_delay_s=3600.0, max_pending=4))
        for _ in range(4):
            journal.append(IDLE, key="engine")
        await runner.committed.acquire()
        assert journal.durable_seq == 4
        journal.append(RunEnded("completed", 0), key="run")
        await runner.committed.acquire()
        assert journal.durable_seq == 5
        await journal.close()

    run(work())


def test_waiting_for_an_event_that_was_never_appended_is_an_error(make: Make) -> None:
    async def work() -> None:
        journal = make()
        with pytest.raises(StoreError, match="never appended"):
            await journal.durable(1)
        await journal.close()

    run(work())


def test_a_cause_comes_before_its_effect(make: Make) -> None:
    async def work() -> None:
        journal = make()
        journal.append(IDLE, key="engine")
        journal.append(IDLE, key="engine", cause=1)
        with pytest.raises(IntegrityError, match="a cause comes before"):
            journal.append(IDLE, key="engine", cause=3)
        await journal.close()

    run(work())


def test_many_waiters_are_served_and_a_cancelled_one_harms_nobody(make: Make) -> None:
    async def work() -> None:
        journal = make()
        seqs = [journal.append(IDLE, key="engine") for _ in range(50)]
        waiters = [asyncio.create_task(journal.durable(seq)) for seq in seqs]
        await asyncio.sleep(0)
        waiters[7].cancel()
        results = await asyncio.gather(*waiters, return_exceptions=True)
        assert [type(item) for item in results if item is not None] in ([], [asyncio.CancelledError])
        assert journal.durable_seq == 50
        await journal.close()

    run(work())


def test_a_reopened_journal_goes_on_where_it_ended(make: Make) -> None:
    heads: list[str] = []

    async def first() -> None:
        journal = make(clock_s=iter(range(100)).__next__)
        for _ in range(3):
            journal.append(IDLE, key="engine")
        heads.append(journal.head())
        await journal.close()

    async def second() -> None:
        journal = make(clock_s=iter(range(100)).__next__)
        assert journal.head() == heads[0]
        assert journal.append(IDLE, key="engine") == 4
        await journal.durable(4)
        events = list(journal.events())
        assert [event.seq for event in events] == [1, 2, 3, 4]
        assert [event.epoch for event in events] == [1, 1, 1, 2]
        assert [event.t_ns for event in events] == [0, 10**9, 2 * 10**9, 2 * 10**9]
        await journal.close()

    run(first())
    run(second())


def test_what_was_not_durable_is_gone_after_a_crash_and_its_numbers_are_used_again(make: Make) -> None:
    never = asyncio.Event

    class Stuck:
        """A disk that never finishes."""

        async def __call__(self, commit: Callable[[], None]) -> None:
            await never().wait()

        def close(self) -> None:
            pass

    async def crash() -> None:
        journal = make()
        await journal.durable(journal.append(IDLE, key="engine"))
        await journal.close()
        lost = make(runner=Stuck())
        waiter = asyncio.create_task(lost.durable(lost.append(RunEnded("completed", 0), key="run")))
        await asyncio.sleep(0)
        waiter.cancel()
        lost.abandon()

    async def restart() -> None:
        journal = make()
        assert [event.seq for event in journal.events()] == [1]
        assert journal.append(RunEnded("stopped", 0), key="run") == 2
        await journal.durable(2)
        await journal.close()

    run(crash())
    run(restart())


def test_nothing_is_accepted_after_close(make: Make) -> None:
    async def work() -> None:
        journal = make()
        journal.append(IDLE, key="engine")
        await journal.close()
        await journal.close()
        with pytest.raises(StoreError, match="closed"):
            journal.append(IDLE, key="engine")

    run(work())


def test_the_same_steps_give_the_same_head_in_every_journal(make: Make) -> None:
    """The reference is the one in memory, whatever runs its commits."""

    async def head_of(journal: GroupCommitJournal, steps: list[Step]) -> str:
        await journal.durable(write_run(journal, steps))
        head = journal.head()
        await journal.close()
        return head

    async def work() -> None:
        steps = lawful_steps()
        head = await head_of(make(clock_s=lambda: 0.0), steps)
        assert head == await head_of(MemoryJournal(incarnation="life", clock_s=lambda: 0.0), steps)
        assert head != await head_of(MemoryJournal(incarnation="life", clock_s=lambda: 0.0), steps[:-1])
        assert head != await head_of(MemoryJournal(incarnation="another", clock_s=lambda: 0.0), steps)

    run(work())


def test_events_come_back_as_they_went_in(make: Make) -> None:
    async def work() -> None:
        journal, steps = make(), lawful_steps()
        await journal.durable(write_run(journal, steps))
        assert [(event.payload, event.key) for event in journal.events()] == [(s.payload, s.key) for s in steps]
        rows = {row.address: row.data for step in steps for row in step.rows}
        assert {Address(address): journal.read(address) for address in rows} == rows
        await journal.close()

    run(work())


@pytest.mark.parametrize(
    "error", [StoreError("the disk is full"), OSError(28, "No space left"), ValueError("a defect")]
)
def test_a_failed_commit_reaches_every_waiter_and_every_later_append(make: Make, error: Exception) -> None:
    class Broken:
        """A disk that fails."""

        async def __call__(self, commit: Callable[[], None]) -> None:
            await asyncio.sleep(0)
            raise error

        def close(self) -> None:
            pass

    async def work() -> None:
        journal = make(runner=Broken())
        seqs = [journal.append(IDLE, key="engine") for _ in range(3)]
        waiters = [asyncio.create_task(journal.durable(seq)) for seq in seqs]
        await asyncio.sleep(0)
        seqs.append(journal.append(IDLE, key="engine"))
        results = await asyncio.gather(*waiters, journal.durable(seqs[-1]), return_exceptions=True)
        assert [type(result) for result in results] == [StoreError] * 4
        with pytest.raises(StoreError, match=r"disk is full|No space left|a defect"):
            journal.append(IDLE, key="engine")
        with pytest.raises(StoreError):
            await journal.durable(1)
        assert list(journal.events()) == []
        await journal.close()

    run(work())
