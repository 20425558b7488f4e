"""The Environment port over a folder: each call runs in a sandbox of its own, and files are all that stays.

Invariants: a call changes the workspace whole or not at all, and the revision after it is stored before its receipt is
given; between two calls no process of the episode lives, so a revision is the whole state; a workspace that was restored
cannot be told from one that never stopped.
"""

import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.environments.sandbox.artifact import ArtifactRefused, checked_artifact
from headrace.environments.sandbox.meters import MeterFactory
from headrace.environments.sandbox.options import Isolation
from headrace.environments.sessions import Session, SessionEnvironment
from headrace.environments.tools import WORKSPACE_SCHEMAS, BadArguments, code_of
from headrace.environments.workspace.calls import CallResult, refused
from headrace.environments.workspace.options import WorkspaceOptions
from headrace.environments.workspace.platform import Found, find_platform
from headrace.environments.workspace.store import RevisionLost
from headrace.environments.workspace.tree import (
    LINK,
    ChangesRefused,
    Entry,
    changed,
    revision_of,
    tree_of_files,
)
from headrace.errors import ConfigError, EnvironmentFault, Outcome, ProcessError
from headrace.ports import Handle
from headrace.processes.bubblewrap import bubblewrap_version
from headrace.records.action import Action, EffectClass
from headrace.records.execution import ExecutionStatus, Lease, Metering, Receipt
from headrace.records.harness import ToolSchema
from headrace.records.ids import Address
from headrace.records.provenance import content_version
from headrace.records.terminal import Failure, Success, Terminal

_lives = itertools.count(1)


class _Workspace:
    """State of one session.

    Attributes:
        tree: what lies in it.
        revision: its address.
        initial: that of the beginning.
        layers: folders that show it to a sandbox.
        lock: held by a call, since two would not see each other's changes.
    """

    def __init__(self, tree: dict[bytes, Entry], revision: Address, layers: tuple[Path, ...]) -> None:
        self.tree = tree
        self.revision = self.initial = revision
        self.layers = layers
        self.lock = asyncio.Lock()


class WorkspaceEnvironment(SessionEnvironment):
    """A shell and Python on a folder with revisions.

    Args:
        options: bounds, tools, and what every workspace starts from.
        folder: where revisions lie; a temporary folder, removed at the end, when None.
        meters: makes meters.

    Attributes:
        artifacts_refused: artifacts that were no plain files and became empty.
    """

    def __init__(
        self, options: WorkspaceOptions, folder: Path | None = None, *, meters: MeterFactory | None = None
    ) -> None:
        super().__init__(f"workspace-{os.getpid()}-{next(_lives)}-{time.time_ns():x}")
        self.artifacts_refused = 0
        self._options = options
        self._meters = meters or MeterFactory(options.sandbox)
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="headrace-workspaces-")
        self._folder = folder or Path(self._temporary.name if self._temporary else "")
        self._starting = asyncio.Lock()
        self._found: Found | None = None
        self._workspaces: dict[Session, _Workspace] = {}

    @property
    def effect(self) -> EffectClass:
        return EffectClass.SNAPSHOT

    @property
    def version(self) -> Address:
        found = self._platform
        described = msgspec.json.encode(self._options, order="deterministic")
        base, _ = revision_of(found.store.base)
        programs = found.programs.digest
        return content_version(sys.version, bubblewrap_version(), described, base, programs, *_sources())

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        return tuple(WORKSPACE_SCHEMAS[name] for name in self._options.tools)

    @property
    def isolation(self) -> Isolation:
        """How strong the walls are, and how workspaces are shown to a sandbox; known after `start`."""
        return self._platform.isolation

    async def start(self) -> None:
        """Finds what works here; `open` does it where nobody did.

        Raises:
            ConfigError: when the base folder cannot be used.
            EnvironmentFault: REJECTED when no sandbox works here.
        """
        async with self._starting:
            if self._found is None:
                try:
                    self._found = await find_platform(self._options, self._folder, self._meters)
                except ProcessError as error:
                    raise EnvironmentFault(str(error), Outcome.REJECTED) from error

    async def stop(self) -> None:
        await super().stop()
        if self._found is not None:
            await asyncio.to_thread(self._found.store.stop)
        if self._temporary is not None:
            self._temporary.cleanup()

    async def adopt(self, handle: Handle, done: Sequence[tuple[Action, Receipt]], timeout_s: float) -> None:
        session, workspace = self._session(handle), self._workspace(handle)
        assert session is not None
        if done and done[-1][1].revision != workspace.revision:
            raise EnvironmentFault(
                f"{handle.episode} stands at {workspace.revision[:12]}, its last receipt at {done[-1][1].revision}",
                Outcome.REJECTED,
            )
        self._remember(session, done)

    async def snapshot(self, handle: Handle, timeout_s: float) -> Address | None:
        workspace = self._workspace(handle)
        async with asyncio.timeout(timeout_s), workspace.lock:
            return workspace.revision

    async def restore(self, handle: Handle, revision: Address, timeout_s: float) -> Handle:
        session, workspace = self._session(handle), self._workspace(handle)
        assert session is not None
        store, episode = self._platform.store, handle.episode
        try:
            async with asyncio.timeout(timeout_s):
                await self._end_running(session)
                tree = await asyncio.to_thread(store.get, episode, revision)
                await self._show(session, workspace, tree, revision)
        except RevisionLost as error:
            raise EnvironmentFault(f"{episode} is not resumable: {error}", Outcome.REJECTED) from error
        except TimeoutError:
            raise EnvironmentFault(f"{episode}: revision {revision[:12]} not restored in {timeout_s:g} s") from None
        return self._renew(session, revision)

    async def artifact(self, handle: Handle, timeout_s: float) -> bytes:
        """Files of the artifact folder, from the last revision; empty when there are none or they are refused."""
        workspace = self._workspace(handle)
        try:
            async with asyncio.timeout(timeout_s), workspace.lock:
                return await asyncio.to_thread(self._pack_artifact, handle, workspace.tree)
        except ArtifactRefused:
            self.artifacts_refused += 1
            return b""
        except RevisionLost as error:
            raise EnvironmentFault(str(error)) from error
        except TimeoutError:
            raise EnvironmentFault(f"{handle.episode}: no artifact within {timeout_s:g} s") from None

    async def claim(self, handle: Handle, final_text: str, timeout_s: float) -> Terminal:
        """Success once the workspace is another than at the beginning: nothing more is known of the task here."""
        workspace = self._workspace(handle)
        return Failure("the workspace is as it began") if workspace.revision == workspace.initial else Success()

    @property
    def _platform(self) -> Found:
        if self._found is None:
            raise ConfigError("the workspace environment was not started; what works here is known after `start`")
        return self._found

    def _workspace(self, handle: Handle) -> _Workspace:
        """Raises EnvironmentFault."""
        session = self._session(handle)
        if session is None:
            raise EnvironmentFault(f"{handle.episode} is not open as {handle.incarnation}", Outcome.REJECTED)
        return self._workspaces[session]

    async def _opened(self, session: Session, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self.start()
                self._workspaces[session] = await asyncio.to_thread(self._begin, session)
        except TimeoutError:
            raise EnvironmentFault(f"the workspace did not open within {timeout_s:g} s", Outcome.REJECTED) from None
        except (OSError, ValueError, msgspec.ValidationError) as error:
            raise EnvironmentFault(
                f"{session.episode}: its workspace cannot be made: {error}", Outcome.REJECTED
            ) from error

    def _begin(self, session: Session) -> _Workspace:
        """The base folder with the task's own files over it."""
        found, episode = self._platform, session.episode
        parameters = msgspec.json.decode(session.task.parameters, type=dict[str, Any])
        files = msgspec.convert(parameters.get("files", {}), dict[str, str])
        own, contents = tree_of_files(files)
        tree = {**found.store.base, **own}
        found.store.open(episode)
        revision = found.store.put(episode, tree, contents)
        return _Workspace(tree, revision, found.store.layers(episode, tree, found.is_overlay))

    async def _closed(self, session: Session) -> None:
        workspace = self._workspaces.pop(session, None)
        if workspace is not None:
            store = self._platform.store
            await asyncio.to_thread(store.drop, workspace.layers)
            store.close(session.episode)

    async def _run(self, session: Session, action: Action, lease: Lease, timeout_s: float) -> Receipt:
        workspace = self._workspaces[session]
        timeout_s = min(timeout_s, self._options.wall_s)
        async with workspace.lock:
            try:
                if action.tool not in self._options.tools:
                    raise BadArguments(f"unknown tool {action.tool[:64]}")
                code = code_of(action.arguments, action.tool)
                result = await self._call(session, workspace, action.tool, code=code, timeout_s=timeout_s)
            except BadArguments as error:
                output = f"error: {error}".encode("utf-8", "backslashreplace")
                result = CallResult(ExecutionStatus.TOOL_ERROR, output, len(output), Metering(), None)
            return result.receipt(action, lease, workspace.revision)

    async def _call(
        self, session: Session, workspace: _Workspace, tool: str, *, code: str, timeout_s: float
    ) -> CallResult:
        caller = self._platform.caller
        size_bytes = sum(entry.size_bytes for entry in workspace.tree.values())
        try:
            process = await caller.start(workspace.layers, self._platform.is_overlay, size_bytes)
        except ProcessError as error:
            raise EnvironmentFault(str(error), Outcome.REJECTED) from error
        try:
            result = await caller.run(process, tool, code, timeout_s)
        except EnvironmentFault:
            session.lose()
            raise
        if result.records is None:
            return result
        try:
            tree = changed(
                workspace.tree,
                result.records,
                max_bytes=self._options.workspace_bytes,
                max_entries=self._options.workspace_files,
            )
        except ChangesRefused as error:
            return refused(result, str(error))
        contents = {r.entry.content: r.data for r in result.records if r.entry is not None and r.entry.is_file}
        if tree != workspace.tree:
            try:
                revision = await asyncio.to_thread(self._platform.store.put, session.episode, tree, contents)
                await self._show(session, workspace, tree, revision)
            except OSError as error:
                session.lose()
                raise EnvironmentFault(f"{session.episode}: the revision cannot be stored: {error}") from error
        return result

    async def _show(self, session: Session, workspace: _Workspace, tree: dict[bytes, Entry], revision: Address) -> None:
        """Makes the tree what the next call sees."""
        store, old = self._platform.store, workspace.layers
        layers = await asyncio.to_thread(store.layers, session.episode, tree, self._platform.is_overlay)
        workspace.tree, workspace.revision, workspace.layers = tree, revision, layers
        await asyncio.to_thread(store.drop, old)

    def _pack_artifact(self, handle: Handle, tree: dict[bytes, Entry]) -> bytes:
        """Raises ArtifactRefused or RevisionLost."""
        prefix = b"" if self._options.artifact == "." else os.fsencode(self._options.artifact.strip("/")) + b"/"
        parts: list[bytes] = []
        size_bytes = 0
        for path, entry in sorted(tree.items()):
            if not path.startswith(prefix):
                continue
            if entry.kind == LINK:
                raise ArtifactRefused(f"{path[:64]!r} is a link")
            if entry.is_file:
                size_bytes += entry.size_bytes
                if size_bytes > self._options.artifact_bytes:
                    raise ArtifactRefused(f"more than {self._options.artifact_bytes} bytes")
                data = self._platform.store.contents(handle.episode, entry, path)
                name = path[len(prefix) :]
                parts += [len(name).to_bytes(4, "little"), name, len(data).to_bytes(4, "little"), data]
        return checked_artifact(b"".join(parts), self._options.artifact_bytes)


def _sources() -> list[bytes]:
    """The code that decides what a tool answers."""
    here = Path(__file__).parent
    files = [
        *sorted(here.glob("*.py")),
        *sorted((here.parent / "sandbox").rglob("*.py")),
        *sorted(here.parent.glob("*.py")),
    ]
    return [file.read_bytes() for file in files]
