"""The calculator as a confined process. It runs no code of the policy, so one process serves any number of episodes."""

from headrace.environments.calculator import CalculatorError, calculate
from headrace.environments.sandbox.inside import wire


def serve(fd: int) -> None:
    """Answers until the channel closes: one status letter, the text."""
    while (request := wire.receive(fd)) is not None:
        try:
            status, text = b"O", calculate(request.payload.decode("utf-8", "surrogatepass"))
        except CalculatorError as error:
            status, text = b"E", f"error: {error}"
        output = text.encode("utf-8", "backslashreplace")
        wire.send(fd, wire.REPLY, request.call_id, payload=status + output)
