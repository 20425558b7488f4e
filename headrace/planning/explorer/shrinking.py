"""Makes a failing case as small as it stays failing: first its faults, then its size, then its interleaving.

Invariant: every case that is returned was run and broke one of the laws that the first one broke.
"""

from collections.abc import Callable, Iterator

import msgspec

from headrace.planning.explorer.cases import Case
from headrace.planning.explorer.judging import Found, run_case

Run = Callable[[Case], Found]
_MOST_RUNS = 200


def shrink(
    found: Found, run: Run = run_case, on_step: Callable[[Found, int], None] = lambda found, runs: None
) -> Found:
    """The smallest failing case that was found from a failing one.

    Args:
        found: what failed.
        run: runs a case.
        on_step: called with the smallest failing case so far and the number of runs, after each run.
    """
    laws = {violation.law for violation in found.violations}
    runs = 0
    while True:
        for smaller in _smaller(found.case):
            runs += 1
            tried = run(smaller)
            on_step(found, runs)
            if laws & {violation.law for violation in tried.violations}:
                found = tried
                break
            if runs >= _MOST_RUNS:
                return found
        else:
            return found


def _smaller(case: Case) -> Iterator[Case]:
    """Cases with less in them, the greatest step first."""
    if len(case.faults) > 1:
        for fault in case.faults:
            yield msgspec.structs.replace(case, faults=(fault,))
    for index in range(len(case.faults)):
        yield msgspec.structs.replace(case, faults=case.faults[:index] + case.faults[index + 1 :])
    for index, fault in enumerate(case.faults):
        if fault.times > 1:
            once = msgspec.structs.replace(fault, times=1)
            yield msgspec.structs.replace(case, faults=(*case.faults[:index], once, *case.faults[index + 1 :]))
    for name, least in (("updates", 1), ("batch_groups", 1), ("group_size", 2)):  # a group baseline takes two members
        if getattr(case, name) > least:
            yield msgspec.structs.replace(case, **{name: getattr(case, name) - 1})
    if case.shuffle is not None:
        yield msgspec.structs.replace(case, shuffle=None)
