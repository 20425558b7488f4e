"""The port of the world that tools act on: an action runs at most once, and every outcome of it is a receipt."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from headrace.records.action import Action, EffectClass
from headrace.records.execution import IncarnationLost, Lease, Receipt
from headrace.records.harness import ToolSchema
from headrace.records.ids import ActionId, Address, EpisodeId
from headrace.records.task import Task
from headrace.records.terminal import Terminal

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
