"""Entry point of a sandboxed process: confine first, then say hello, then serve until the channel closes."""

import json
import os
import sys

from headrace.environments.sandbox.inside import wire
from headrace.environments.sandbox.inside.confine import confine


def main(arguments: list[str]) -> None:
    """Arguments: tool, limits as JSON, size of shown output in bytes, workspace as JSON, `--channel-fd`, its number."""
    tool, encoded, output_bytes, place, _, channel = arguments
    fd, limits = int(channel), json.loads(encoded)
    os.set_inheritable(fd, False)
    if tool == "python":
        from headrace.environments.sandbox.inside.interpreter import Interpreter

        # Its pipe and its thread come before the limits and the filter.
        interpreter = Interpreter(int(output_bytes), is_alone=limits["has_mounts"])
        serve = interpreter.serve
    elif tool == "workspace":
        from headrace.environments.sandbox.inside.workspace import Workspace

        # Its mounts need the rights that are given up.
        serve = Workspace(json.loads(place), int(output_bytes)).serve
    else:
        from headrace.environments.sandbox.inside.calculating import serve
    missing = confine(limits)
    hide_self()
    wire.send(fd, wire.HELLO, payload=json.dumps(missing).encode())
    serve(fd)


def hide_self() -> None:
    """Takes this package out of reach of `import`, so that its name is as unknown as that of any other."""
    del sys.path[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == "headrace"]:
        del sys.modules[name]
