"""The trainer's process: answers the calls of `headrace.training.child`.

Invariant: calls are answered one after another, and an error carries the outcome that is known.
"""

import msgspec

from headrace.errors import BoundaryError, HeadraceError, Outcome, TrainerError
from headrace.processes.serve import ParentGone, Server
from headrace.records.arrays import as_int32
from headrace.records.batch import BatchPlan
from headrace.records.checkpoint import Manifest
from headrace.records.ids import Address
from headrace.training.child import CanaryCall, ReplayCall, ScoreCall, TrainerHello
from headrace.training.core import TrainerCore


def hello_of(core: TrainerCore) -> bytes:
    """The hello of a child that holds this core; stores its weights."""
    return msgspec.msgpack.encode(TrainerHello(core.policy_id, core.version, core.export(), core.copies))


def serve_trainer(core: TrainerCore, server: Server) -> None:
    """Answers calls one after another until the parent is gone."""
    while True:
        try:
            calls = server.poll(None)
        except ParentGone:
            return
        for call in calls:
            try:
                answer = _answer(core, call.method, call.payload)
            except BoundaryError as error:
                end = server.reject if error.outcome is Outcome.REJECTED else server.fail
                end(call.call_id, str(error))
            except (HeadraceError, msgspec.DecodeError, OSError) as error:
                server.fail(call.call_id, f"{type(error).__name__}: {error}")
            else:
                server.reply(call.call_id, answer)


def _answer(core: TrainerCore, method: str, payload: bytes) -> bytes:
    result: object
    match method:
        case "score":
            scored = msgspec.msgpack.decode(payload, type=ScoreCall)
            result = core.score(scored.rows, scored.version)
        case "update":
            result = core.update(msgspec.msgpack.decode(payload, type=BatchPlan))
        case "canary":
            result = core.canary([as_int32(ids) for ids in msgspec.msgpack.decode(payload, type=CanaryCall).ids])
        case "export":
            result = core.export()
        case "save":
            result = core.save()
        case "load":
            result = core.load(msgspec.msgpack.decode(payload, type=Manifest))
        case "replay":
            call = msgspec.msgpack.decode(payload, type=ReplayCall)
            result = core.replay(call.plan, call.weights)
        case "forget":
            result = core.forget(msgspec.msgpack.decode(payload, type=list[Address]))
        case _:
            raise TrainerError(f"a trainer has no method {method!r}", Outcome.REJECTED)
    return msgspec.msgpack.encode(result)
