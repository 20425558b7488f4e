"""The workspace's options."""

from typing import Literal

import msgspec

from headrace.environments.sandbox.options import SandboxOptions, check_bounds

WorkspaceTool = Literal["shell", "python"]

PROGRAMS = (
    *("sh", "cat", "cp", "mv", "rm", "ls", "ln", "mkdir", "rmdir", "touch", "chmod", "head", "tail", "wc", "sort"),
    *("uniq", "cut", "tr", "tee", "grep", "sed", "awk", "find", "xargs", "diff", "sleep", "env", "printf", "test"),
)
"""What a shell command may call, where the machine has it."""


class WorkspaceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bounds of one workspace; a policy that reaches one gets a receipt that says so.

    Attributes:
        tools: which tools are offered.
        base: folder that every workspace starts from; empty for none.
        programs: programs of this machine that are shown inside; those that it lacks are left out and named.
        artifact: folder of the workspace whose files are handed to the grader; `.` for all of it.
        by: `overlay` lays what a call writes over folders that it cannot change, `copy` copies them for each call; `measure`
            tries both when the environment starts and takes the faster one.
        wall_s: seconds of one call.
        cpu_s: CPU seconds of one process.
        memory_bytes: address space of one process, and of a whole call where control groups can be written.
        processes: processes and threads of one call.
        open_files: open files of one process.
        output_bytes: bytes of output shown; the middle of a longer one is cut.
        call_bytes: what one call may write, and the size of one file.
        workspace_bytes: size of all files together.
        workspace_files: files and folders.
        artifact_bytes: size of what is handed to the grader.
        start_s: seconds in which a sandbox has to come up.
        level: strongest walls to try, `bubblewrap_root` or `bubblewrap`; there is no workspace without name spaces.
    """

    tools: tuple[WorkspaceTool, ...] = ("shell", "python")
    base: str = ""
    programs: tuple[str, ...] = PROGRAMS
    artifact: str = "."
    by: Literal["measure", "overlay", "copy"] = "measure"
    wall_s: float = 10.0
    cpu_s: int = 10
    memory_bytes: int = 512 * 1024 * 1024
    processes: int = 32
    open_files: int = 256
    output_bytes: int = 16_384
    call_bytes: int = 32 * 1024 * 1024
    workspace_bytes: int = 256 * 1024 * 1024
    workspace_files: int = 16_384
    artifact_bytes: int = 1024 * 1024
    start_s: float = 20.0
    level: Literal["bubblewrap_root", "bubblewrap"] = "bubblewrap_root"

    def __post_init__(self) -> None:
        if not self.tools or len(set(self.tools)) != len(self.tools):
            raise ValueError(f"environment.options.tools is {self.tools}; name each of shell and python at most once")
        if "shell" in self.tools and "sh" not in self.programs:
            raise ValueError("environment.options.programs lacks sh, which the tool shell needs")
        least = {"processes": 4, "open_files": 160, "output_bytes": 256, "memory_bytes": 64 * 1024 * 1024}
        check_bounds(self, least)

    @property
    def sandbox(self) -> SandboxOptions:
        """The bounds as those of one sandbox."""
        return SandboxOptions(
            tools=("python",),
            wall_s=self.wall_s,
            cpu_s=self.cpu_s,
            memory_bytes=self.memory_bytes,
            processes=self.processes,
            open_files=self.open_files,
            output_bytes=self.output_bytes,
            file_bytes=self.call_bytes,
            scratch_bytes=self.call_bytes,
            scratch_files=self.workspace_files,
            artifact_bytes=self.artifact_bytes,
            start_s=self.start_s,
            level=self.level,
        )
