"""Checkpoints and resumes as text: what was saved, from where each process went on, and what became of actions under way."""

from collections.abc import Iterator

from headrace.reporting.grids import Grid
from headrace.reporting.quantities import duration, size
from headrace.reporting.report import RunReport


def recoveries(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    """Checkpoints in a line, resumes in tables."""
    found = report.recovery
    if not found.checkpoints:
        yield "no checkpoint was written; a resume would compute every update again"
    else:
        yield (
            f"{found.checkpoints} checkpoints, the last after update {found.last_update} ({size(found.last_bytes)}); "
            f"saving took {duration(found.save_s)} in all, {duration(found.stall_s)} of it kept the next update waiting"
        )
    if not found.resumes:
        yield "never resumed: one process did it all"
        return
    yield Grid(
        ("resumed after", "at version", "checkpoint", "updates redone", "bit for bit", "attempts go on", "start again"),
        tuple(
            (
                duration(item.t_s),
                str(item.resumed.version),
                "none" if item.resumed.checkpoint is None else f"update {item.resumed.checkpoint}",
                str(item.resumed.replayed),
                str(item.resumed.identical),
                str(item.resumed.resumed),
                str(item.resumed.reissued),
            )
            for item in found.resumes
        ),
    )
    yield Grid(
        ("tool calls under way", "observed: kept", "committed: shown", "intended: run again", "intended: given up"),
        tuple(
            (
                f"at {duration(item.t_s)}",
                str(item.actions.observed),
                str(item.actions.committed),
                str(item.actions.run_again),
                str(item.actions.parked),
            )
            for item in found.resumes
        ),
    )
    yield (
        "Each call of an unsealed attempt by what was durable of it when the process ended. observed: the policy had seen "
        "the result; committed: the stored result is shown, nothing runs; intended: run again under the same id where no "
        "effect outside is possible, otherwise given up with its attempt."
    )
