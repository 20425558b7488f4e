"""The workspace's options."""

from typing import Literal

from headrace.environments.sandbox.options import ProcessBounds, SandboxOptions

WorkspaceTool = Literal["shell", "python"]

PROGRAMS = (
    *("sh", "cat", "cp", "mv", "rm", "ls", "ln", "mkdir", "rmdir", "touch", "chmod", "head", "tail", "wc", "sort"),
    *("uniq", "cut", "tr", "tee", "grep", "sed", "awk", "find", "xargs", "diff", "sleep", "env", "printf", "test"),
)
"""What a shell command may call, where the machine has it."""


class WorkspaceOptions(ProcessBounds, frozen=True, kw_only=True):
    """Tools, bounds and base of one workspace; every call has a sandbox of its own.

    Attributes:
        tools: which tools are offered.
        base: folder that every workspace starts from; empty for none.
        programs: programs of this machine that are shown inside; those that it lacks are left out and named.
        artifact: folder of the workspace whose files are handed to the grader; `.` for all of it.
        by: `overlay` lays what a call writes over folders that it cannot change, `copy` copies them for each call; `measure`
            tries both when the environment starts and takes the faster one.
        call_bytes: what one call may write, and the size of one file.
        workspace_bytes: size of all files together.
        workspace_files: files and folders.
        level: strongest walls to try, `bubblewrap_root` or `bubblewrap`; there is no workspace without name spaces.
    """

    tools: tuple[WorkspaceTool, ...] = ("shell", "python")
    base: str = ""
    programs: tuple[str, ...] = PROGRAMS
    artifact: str = "."
    by: Literal["measure", "overlay", "copy"] = "measure"
    wall_s: float = 10.0
    memory_bytes: int = 512 * 1024 * 1024
    processes: int = 32
    open_files: int = 256
    call_bytes: int = 32 * 1024 * 1024
    workspace_bytes: int = 256 * 1024 * 1024
    workspace_files: int = 16_384
    level: Literal["bubblewrap_root", "bubblewrap"] = "bubblewrap_root"

    def __post_init__(self) -> None:
        if not self.tools or len(set(self.tools)) != len(self.tools):
            raise ValueError(f"environment.options.tools is {self.tools}; name each of shell and python at most once")
        if "shell" in self.tools and "sh" not in self.programs:
            raise ValueError("environment.options.programs lacks sh, which the tool shell needs")
        least = {"processes": 4, "open_files": 160, "output_bytes": 256, "memory_bytes": 64 * 1024 * 1024}
        self.check_bounds(least)

    @property
    def sandbox(self) -> SandboxOptions:
        """The bounds as those of one sandbox."""
        shared = {name: getattr(self, name) for name in ProcessBounds.__struct_fields__}
        return SandboxOptions(
            tools=("python",),
            file_bytes=self.call_bytes,
            scratch_bytes=self.call_bytes,
            scratch_files=self.workspace_files,
            level=self.level,
            **shared,
        )
