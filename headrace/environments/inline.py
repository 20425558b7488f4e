"""The calculator in the caller's own process, with a duration that is given and not measured.

Invariant: no child, no clock of its own, no randomness: under a virtual-time loop the same calls give the same receipts at
the same times.
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from headrace.environments import sessions
from headrace.environments.calculator import CalculatorError, calculate
from headrace.environments.sessions import Judge, Session, SessionEnvironment, claim_last_result
from headrace.environments.tools import CALCULATOR, BadArguments, calculator_expression
from headrace.records.action import Action, EffectClass
from headrace.records.execution import ExecutionStatus, Lease, Metering, Receipt
from headrace.records.harness import ToolSchema
from headrace.records.ids import Address
from headrace.records.provenance import content_version


def no_duration(_action: Action) -> float:
    """0 s: the answer comes at once."""
    return 0.0


class InlineEnvironment(SessionEnvironment):
    """A pure environment whose actions take `duration_s(action)` seconds of loop time.

    `restart` loses what is running and every receipt, as the death of an executor does.
    """

    def __init__(
        self,
        *,
        duration_s: Callable[[Action], float] = no_duration,
        incarnation: str = "inline",
        judge: Judge = claim_last_result,
    ) -> None:
        super().__init__(incarnation, judge)
        self._duration_s = duration_s
        sources = [Path(calculate.__code__.co_filename), Path(__file__), Path(sessions.__file__)]
        self._version = content_version(sys.version, *(source.read_bytes() for source in sources))

    @property
    def effect(self) -> EffectClass:
        return EffectClass.PURE

    @property
    def version(self) -> Address:
        return self._version

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        return (CALCULATOR,)

    def restart(self) -> None:
        """Loses every running action and every receipt; sessions stay open under their handles."""
        for session in self._sessions.values():
            session.lose()
            session.interrupt("the executor was lost under it")
            session.taken.clear()

    async def _opened(self, session: Session, timeout_s: float) -> None:
        """Nothing has to be prepared."""

    async def _closed(self, session: Session) -> None:
        """Nothing is held."""

    async def _run(self, session: Session, action: Action, lease: Lease, timeout_s: float) -> Receipt:
        duration_s = self._duration_s(action)
        await asyncio.sleep(min(duration_s, timeout_s))
        if duration_s > timeout_s:
            text, status = f"no answer within {timeout_s} s", ExecutionStatus.TIMEOUT
        else:
            text, status = answer_calculator(action)
        output = text.encode("utf-8", "backslashreplace")
        metering = Metering(wall_s=min(duration_s, timeout_s), cpu_s=min(duration_s, timeout_s))
        return Receipt(action.id, lease.token, action.arguments_hash, status, output, len(output), metering=metering)


def answer_calculator(action: Action) -> tuple[str, ExecutionStatus]:
    """What the calculator says to the action."""
    if action.tool != CALCULATOR.name:
        return f"error: unknown tool {action.tool[:64]}", ExecutionStatus.TOOL_ERROR
    try:
        return calculate(calculator_expression(action.arguments)), ExecutionStatus.OK
    except (BadArguments, CalculatorError) as error:
        return f"error: {error}", ExecutionStatus.TOOL_ERROR
