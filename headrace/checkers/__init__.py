"""Laws of a run as pure functions over its event log: what must hold after every event, and the event that broke it.

A checker keeps only what the events said, and asks nobody else; so the same one judges a simulation while it runs, a live
run as it goes, and a finished log.
"""

from headrace.checkers.actions import ActionOrder
from headrace.checkers.consumption import Consumption
from headrace.checkers.coverage import check_coverage
from headrace.checkers.effects import check_effects
from headrace.checkers.groups import GroupShape
from headrace.checkers.law import Bounds, Checker, Violation, bounds_of, lost_records
from headrace.checkers.leases import SingleOwner
from headrace.checkers.liveness import check_liveness
from headrace.checkers.log import LawChecker, check_log
from headrace.checkers.manifests import Look, Manifests
from headrace.checkers.resumption import check_resumed, state_hashes
from headrace.checkers.sealing import Sealing
from headrace.checkers.slots import Slots
from headrace.checkers.tasks import TaskConservation
from headrace.checkers.tokens import TokenAccount, TokenLedger
from headrace.checkers.turns import SharedTurns
from headrace.checkers.verdicts import Rewards
from headrace.checkers.versions import Versions, check_rescoring
from headrace.records.provenance import Read

__all__ = [
    "ActionOrder",
    "Bounds",
    "Checker",
    "Consumption",
    "GroupShape",
    "LawChecker",
    "Look",
    "Manifests",
    "Read",
    "Rewards",
    "Sealing",
    "SharedTurns",
    "SingleOwner",
    "Slots",
    "TaskConservation",
    "TokenAccount",
    "TokenLedger",
    "Versions",
    "Violation",
    "bounds_of",
    "check_coverage",
    "check_effects",
    "check_liveness",
    "check_log",
    "check_rescoring",
    "check_resumed",
    "lost_records",
    "state_hashes",
]
