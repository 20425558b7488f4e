"""C11, resumption: after a crash and its recovery a run stands, at every version, where the undisturbed run stood.

The state of a version is what made it: its weights, every row that was ever trained for it in order, with its advantage and
weight, and what became of the tasks. It holds where arithmetic and order are fixed: deterministic, synchronous, no attempt
started again.
"""

import hashlib
from collections.abc import Iterable, Mapping

from headrace.checkers.law import Violation
from headrace.checkers.tasks import Bumps
from headrace.records.batch import BatchPlan, BatchPlanned
from headrace.records.events import Event
from headrace.records.provenance import Read, canonical_bytes, read_record
from headrace.records.update import WeightsCommitted


def state_hashes(events: Iterable[Event], read: Read) -> dict[int, str]:
    """Hash of the state at each committed version, as hexadecimal digits.

    Raises:
        KeyError: when a batch plan is not there.
        IntegrityError: when one cannot be decoded.
    """
    state, bumps = hashlib.sha256(), Bumps()
    plans: dict[int, BatchPlan] = {}
    found: dict[int, str] = {}
    for event in events:
        consumed = bumps.consumed(event)
        match event.payload:
            case BatchPlanned(update=update, plan=plan):
                plans[update] = read_record(read, plan, BatchPlan)
            case WeightsCommitted(policy=policy, weights=weights):
                rows = plans[policy.version].rows if policy.version in plans else ()
                groups = [str(group) for group in consumed]
                state.update(canonical_bytes((policy.version, weights, groups, rows)))
                found[policy.version] = state.hexdigest()
            case _:
                pass
    return found


def check_resumed(events: Iterable[Event], read: Read, undisturbed: Mapping[int, str]) -> list[Violation]:
    """Where a run that was disturbed stands elsewhere than the undisturbed one.

    Args:
        events: the log of the disturbed run.
        read: looks up its batch plans.
        undisturbed: `state_hashes` of the other run.
    """
    log = list(events)
    found = state_hashes(log, read)
    commits = {event.payload.policy.version: event.seq for event in log if isinstance(event.payload, WeightsCommitted)}
    differing = [version for version, state in found.items() if undisturbed.get(version, state) != state]
    if differing:
        version = min(differing)
        return [
            Violation(
                "C11",
                commits[version],
                f"version {version} has state {found[version][:12]}, undisturbed it had {undisturbed[version][:12]}",
            )
        ]
    missing = sorted(undisturbed.keys() - found.keys())
    if missing:
        return [Violation("C11", log[-1].seq if log else 0, f"version {missing[0]} was never committed")]
    return []
