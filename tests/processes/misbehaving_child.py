"""A real child for the tests: keeps the protocol, or breaks it in the way it is asked to."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from headrace.processes.serve import Call, ParentGone, Server


def channel_fd() -> int:
    return int(sys.argv[sys.argv.index("--channel-fd") + 1])


def main() -> None:
    mode = sys.argv[1]
    if mode == "silent_start":
        time.sleep(60)
    if mode == "dies_at_start":
        sys.stderr.write("no such model\n")
        sys.exit(3)
    server = Server(channel_fd(), b"ready")
    while True:
        for call in server.poll(None):
            METHODS[call.method](server, call)


def release(server: Server, call: Call) -> None:
    for call_id in reversed(WAITING):
        server.reply(call_id, str(call_id).encode())
    WAITING.clear()
    server.reply(call.call_id, b"")


def count(server: Server, call: Call) -> None:
    for number in range(int(call.payload)):
        server.item(call.call_id, str(number).encode())
    server.reply(call.call_id, b"")


def say(server: Server, call: Call) -> None:
    sys.stderr.write(call.payload.decode())
    sys.stderr.flush()
    server.reply(call.call_id, b"")


def answer_and_exit(server: Server, call: Call) -> None:
    server.reply(call.call_id, b"x" * 3_000_000)
    os._exit(4)


def compute(server: Server, call: Call) -> None:
    deadline = time.monotonic() + float(call.payload)
    while time.monotonic() < deadline:
        sum(range(1000))
    server.reply(call.call_id, b"")


def descendant(server: Server, call: Call) -> None:
    process = subprocess.Popen(["/bin/sleep", "600"])
    server.reply(call.call_id, str(process.pid).encode())


WAITING: list[int] = []
METHODS: dict[str, Callable[[Server, Call], object]] = {
    "echo": lambda server, call: server.reply(call.call_id, call.payload),
    "hold": lambda _server, call: WAITING.append(call.call_id),
    "release": release,
    "count": count,
    "reject": lambda server, call: server.reject(call.call_id, "not my version"),
    "fail": lambda server, call: server.fail(call.call_id, "half done"),
    "say": say,
    "environment": lambda server, call: server.reply(call.call_id, repr(sorted(os.environ)).encode()),
    "garbage": lambda _server, _call: os.write(channel_fd(), b"\x05\x00\x00\x00hello"),
    "huge": lambda _server, _call: os.write(channel_fd(), b"\xff\xff\xff\xff"),
    "exit": answer_and_exit,
    "compute": compute,
    "stop": lambda _server, _call: os.kill(os.getpid(), signal.SIGSTOP),
    "descendant": descendant,
}


if __name__ == "__main__":
    try:
        main()
    except ParentGone:
        sys.exit(0)
