"""A grader child for tests: the real service loop around the real core, or around one that breaks on purpose."""

import argparse
import os
import signal
from typing import Literal

import msgspec

from headrace.graders import GraderCore, grader_service, open_grader_core
from headrace.processes.serve import Server
from headrace.records.ids import Address
from headrace.records.verdict import Scored, Submission, Verdict


class BreakingCore:
    """Knows one right answer and breaks on submissions whose text names a fault; needs no package, so it starts fast."""

    scope: Literal["episode"] = "episode"

    def __init__(self, digit: str) -> None:
        self.version = Address(digit * 64)

    def grade(self, submission: Submission) -> Verdict:
        wrong = {
            "nan": self._verdict(submission, float("nan")),
            "large": self._verdict(submission, 2.0),
            "text": self._verdict(submission, "1.0"),
            "none": None,
            "empty": Verdict(submission.transcript, self.version, Scored((), "")),
            "other grader": Verdict(submission.transcript, Address("0" * 64), Scored((("answer", 1.0),), "")),
            "other transcript": Verdict(Address("0" * 64), self.version, Scored((("answer", 1.0),), "")),
        }
        if submission.final_text in wrong:
            return wrong[submission.final_text]  # type: ignore[return-value]
        match submission.final_text:
            case "raise":
                raise RuntimeError("broken on purpose")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                while True:
                    signal.pause()
        return self._verdict(submission, float(submission.final_text == "right"))

    def _verdict(self, submission: Submission, value: object) -> Verdict:
        return Verdict(submission.transcript, self.version, Scored((("answer", value),), ""))  # type: ignore[arg-type]


class FloodingServer(Server):
    """Says every item three times, once of an unasked transcript and once as bytes that mean nothing."""

    def item(self, call_id: int, payload: bytes) -> None:
        super().item(call_id, b"\xc1 no msgpack")
        transcript, verdict = msgspec.msgpack.decode(payload)
        verdict["transcript"] = "f" * 64
        super().item(call_id, msgspec.msgpack.encode(["f" * 64, verdict]))
        super().item(call_id, payload)
        verdict["transcript"] = transcript
        verdict["outcome"] = {"type": "scored", "components": [["answer", 0.5]], "evidence": "changed its mind"}
        super().item(call_id, msgspec.msgpack.encode([transcript, verdict]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--channel-fd", type=int, required=True)
    parser.add_argument("--breaking", default="", help="digit that the version consists of")
    parser.add_argument("--flooding", action="store_true")
    args = parser.parse_args()
    core: GraderCore = BreakingCore(args.breaking) if args.breaking else open_grader_core("reasoning_gym", {})
    server = (FloodingServer if args.flooding else Server)(args.channel_fd, core.version.encode())
    grader_service(core, server)


if __name__ == "__main__":
    main()
