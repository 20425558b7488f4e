"""The ports: what the control plane asks of the world. All async ones take a deadline; large data goes by address.

An adapter raises `BoundaryError` of its own boundary, with the outcome that it knows. Whatever the policy caused is a
value (a receipt, a truncated turn), never an exception. One contract suite per port (`tests/contracts/`) runs against
every implementation, the simulated ones included.
"""

from headrace.ports.environment import UNKNOWN_INCARNATION, Environment, Handle
from headrace.ports.grader import Grader
from headrace.ports.harness import Harness, ObservedTokens, Rewritten
from headrace.ports.inference import Inference, TurnTiming
from headrace.ports.leases import Leases
from headrace.ports.storage import Blobs, Journal, Row
from headrace.ports.tasks import TaskSource
from headrace.ports.trainer import Trainer

__all__ = [
    "UNKNOWN_INCARNATION",
    "Blobs",
    "Environment",
    "Grader",
    "Handle",
    "Harness",
    "Inference",
    "Journal",
    "Leases",
    "ObservedTokens",
    "Rewritten",
    "Row",
    "TaskSource",
    "Trainer",
    "TurnTiming",
]
