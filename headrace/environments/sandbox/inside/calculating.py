"""The calculator as a confined process. It runs no code of the policy, so one process serves any number of episodes."""

import time

from headrace.environments.calculator import CalculatorError, calculate
from headrace.environments.sandbox.inside import wire


def serve(fd: int) -> None:
    """Answers until the channel closes: one status letter, CPU nanoseconds in 8 bytes, the text."""
    while (request := wire.receive(fd)) is not None:
        start_ns = time.process_time_ns()
        try:
            status, text = b"O", calculate(request.payload.decode("utf-8", "surrogatepass"))
        except CalculatorError as error:
            status, text = b"E", f"error: {error}"
        output = text.encode("utf-8", "backslashreplace")
        cpu = (time.process_time_ns() - start_ns).to_bytes(8, "little")
        wire.send(fd, wire.REPLY, request.call_id, payload=status + cpu + output)
