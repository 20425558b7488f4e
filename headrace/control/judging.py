"""What the trainer and the gate make of a selected batch: scores, rows that are left of it, their weights.

Invariant: every row of the result was scored and judged in one batch with all others. What the gate rejects is replaced once
at most, so judging ends. A batch whose plan is durable was judged before, and nothing is decided again.

* consumes: a `Batch`.
* waits for: the trainer.
* unblocked by: its scores.
* produces: `BatchScored`, `BatchGated`, `BatchRefilled`, `StrataWeighed`, `GroupRejected`; the rows of the plan.
"""

import dataclasses
from collections.abc import Sequence

import msgspec

from headrace.config import AlgorithmSection
from headrace.control.collecting import Collector
from headrace.control.context import RunContext
from headrace.control.gating import GateDecision, StatisticalGate
from headrace.control.past import UpdatePast
from headrace.control.scoring import batch_scored, signal_figures
from headrace.control.selecting import Batch, BatchSelector
from headrace.control.weighing import weighed_rows
from headrace.ports import Trainer
from headrace.records.batch import BatchRefilled, BatchRow
from headrace.records.ids import Address
from headrace.records.update import RowScore, SignalFigures


class BatchJudge:
    """Scores, gates and weighs batches."""

    def __init__(
        self,
        collector: Collector,
        selector: BatchSelector,
        trainer: Trainer,
        context: RunContext,
        *,
        algorithm: AlgorithmSection,
        timeout_s: float,
    ) -> None:
        self._ledger = collector.ledger
        self._selector = selector
        self._trainer = trainer
        self._context = context
        self._algorithm = algorithm
        self._gate = StatisticalGate(algorithm.gate)
        self._group_size = collector.group_size
        self._timeout_s = timeout_s

    async def rows(self, update: int, batch: Batch, past: UpdatePast | None, cause: int) -> tuple[BatchRow, ...]:
        """Rows of the plan, in batch order; groups of the batch that have none any more leave it with a record.

        Args:
            update: its number.
            batch: what was selected.
            past: what an earlier process did of this update.
            cause: sequence number of the selection.
        """
        recorder = self._context.recorder
        scores, figures = await self._scored(update, batch, (), set(), cause=cause)
        if past is not None and past.plan is not None:
            return batch.shaper.rows_after(scores)
        may_refill = self._algorithm.gate.on_reject == "replace" and not (past is not None and past.is_refilled)
        decision, without = self._judge(batch, scores, figures, set())
        recorder.record(decision.event(update, scores, batch.shaper.difficulties), key=str(update), cause=cause)
        rejected = len(without)
        if may_refill and rejected >= self._group_size and (came := self._selector.refill(batch, without)):
            recorder.record(BatchRefilled(update, rejected, came), key=str(update), cause=cause)
            left = [score for score in scores if score.transcript not in without]
            scores, figures = await self._scored(update, batch, left, without, cause=cause)
            decision, without = self._judge(batch, scores, figures, without)
            recorder.record(
                decision.event(update, scores, batch.shaper.difficulties), key=f"{update}/refilled", cause=cause
            )
        batch.shaper.count_rejected(without)
        rows = batch.shaper.rows_after(scores, without)
        if decision.factors:
            rows = tuple(
                msgspec.structs.replace(row, weight=row.weight * decision.factor((row.transcript, row.path)))
                for row in rows
            )
        return self._weighed(update, batch, rows)

    async def _scored(
        self, update: int, batch: Batch, known: Sequence[RowScore], without: set[Address], *, cause: int
    ) -> tuple[list[RowScore], SignalFigures]:
        """Scores of every row but those without, in batch order, and their figures; those not known yet are computed."""
        rows = [row for row in batch.shaper.rows() if row.transcript not in without]
        held = {(score.transcript, score.path) for score in known}
        missing = [row for row in rows if (row.transcript, row.path) not in held]
        scores = list(known)
        if missing:
            scores += await self._trainer.score(missing, self._context.versions.current, self._timeout_s)
        by_row = {(score.transcript, score.path): score for score in scores}
        scores = [by_row[row.transcript, row.path] for row in rows]
        figures = signal_figures(scores)
        scored = batch_scored(update, rows, scores, batch.shaper.difficulties, whole=figures)
        self._context.recorder.record(scored, key=f"{update}/refilled" if known else str(update), cause=cause)
        return scores, figures

    def _judge(
        self, batch: Batch, scores: Sequence[RowScore], figures: SignalFigures, without: set[Address]
    ) -> tuple[GateDecision, set[Address]]:
        """The gate's decision, and the transcripts without which the batch goes on; groups that lost all leave."""
        decision = self._gate.judge(scores, figures)
        if decision.action != "reject":
            return decision, without
        beyond = without | {transcript for transcript, _ in decision.factors}
        before, kept = batch.shaper.rows_after(scores, without), batch.shaper.rows_after(scores, beyond)
        if not kept:
            return dataclasses.replace(decision, action="mask"), without
        lost = {row.group for row in before} - {row.group for row in kept}
        for group in [group for group in batch.groups if group.id in lost]:
            self._selector.reject(group, f"statistical gate: {decision.breaches[0].figure}")
            batch.groups.remove(group)
        return decision, beyond

    def _weighed(self, update: int, batch: Batch, rows: tuple[BatchRow, ...]) -> tuple[BatchRow, ...]:
        """Rows weighed by the acceptance of their stratum, where the algorithm says so."""
        weights = self._algorithm.stratum_weights
        self._ledger.accept(group.task.difficulty for group in batch.groups)
        if weights.kind == "none":
            return rows
        weighed = self._ledger.weigh(update, weights)
        self._context.recorder.record(weighed, key=str(update))
        return weighed_rows(rows, weighed, batch.shaper.difficulties)
