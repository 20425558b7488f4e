"""What `check`, `eval`, `replay` and `ls` print. Each returns the exit status that its finding means."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from headrace.reporting.quantities import ABSENT, size

if TYPE_CHECKING:  # `ls` prints at once: what plays or scores an episode loads torch
    from headrace.runtime.checking import CheckReport
    from headrace.runtime.evaluating import EvalReport, ModelScore
    from headrace.runtime.listing import RunLine
    from headrace.runtime.replaying import ReplayReport


def print_check(report: "CheckReport") -> int:
    """0 when the task set may be trained on, else 1."""
    console = Console(highlight=False, markup=False)
    table = Table("policy", "tasks", "full", "partial", "zero", "unscored", "infra", "turns", "tokens")
    for policy in report.policies:
        counts = (policy.episodes, policy.full, policy.partial, policy.zero, policy.unscored, policy.infra)
        table.add_row(policy.name, *map(str, counts), str(policy.turns), str(policy.tokens))
    console.print(table)
    if report.fits:
        console.print(f"fits: {report.fits}", soft_wrap=True)
    if report.fits is None:
        console.print("fits: not asked, since `policy` is not configured; `headrace train` needs it", soft_wrap=True)
    console.print(
        "full, partial, zero: marks that the grader gave; unscored: it gave none; infra: the platform failed; turns, "
        "tokens: the most of one episode"
    )
    console.print(
        "what the environment claims at the end, without knowing the answer; the marks above are what counts:"
    )
    for policy in report.policies:
        ends = ", ".join(f"{count} {name}" for name, count in policy.terminals.items())
        console.print(f"  {policy.name}: {ends}", soft_wrap=True)
    for problem in report.problems:
        console.print(f"PROBLEM {problem}", soft_wrap=True)
    console.print(
        f"NOT SOUND: {len(report.problems)} problems" if report.problems else "sound: train on it", soft_wrap=True
    )
    return 1 if report.problems else 0


def print_eval(report: "EvalReport") -> int:
    """0."""
    console = Console(highlight=False, markup=False)
    for score in report.scores:
        _print_score(console, score)
    if report.comparison is not None:
        found, (first, second) = report.comparison, (score.model for score in report.scores)
        console.print(
            f"\n{first} minus {second} on the same {found.tasks} tasks: {found.difference:+.3f}, 95% from "
            f"{found.interval.low:+.3f} to {found.interval.high:+.3f} (paired bootstrap over tasks)",
            soft_wrap=True,
        )
        if found.p_value is not None:
            console.print(
                f"only {first} solves {found.first_only}, only {second} {found.second_only}: "
                f"p = {found.p_value:.3g} (exact McNemar test)",
                soft_wrap=True,
            )
    return 0


def print_replay(report: "ReplayReport") -> int:
    """0 when everything came out as recorded, else 1."""
    console = Console(highlight=False, markup=False)
    for version in report.versions:
        told = "the same" if version.is_same else f"differs: now {version.present[:12] or 'gone'}"
        console.print(f"{version.name:12} {version.recorded[:12]}  {told}")
    if report.divergences is None:
        console.print("not executed: a version differs; install what the run had, or give --anyway", soft_wrap=True)
        return 1
    for divergence in report.divergences:
        console.print(f"DIVERGES {divergence}", soft_wrap=True)
    if report.has_same_address:
        console.print("the transcript came out byte for byte")
    elif not report.divergences:
        console.print(
            "tokens, calls, outputs, terminal state and verdict came out the same; only attempt or limits differ"
        )
    scores = report.rescored
    if scores is None:
        console.print("log-probs were not scored again: the recorded weights are not at hand")
    elif scores.fresh_abs_max is None:
        console.print(f"log-probs: none of {scores.tokens} sampled tokens saw a cache of its own version alone")
    else:
        console.print(
            f"log-probs under the recorded weights: {scores.fresh} of {scores.tokens} sampled tokens compared, largest "
            f"difference {scores.fresh_abs_max:.2g} nats at (path, segment, token) {scores.at}, "
            f"{report.tolerance:g} is allowed",
            soft_wrap=True,
        )
    if scores is not None and scores.old_cache_abs_max is not None:
        console.print(
            f"{scores.tokens - scores.fresh} tokens saw a cache that an older version had a part in; they differ by up to "
            f"{scores.old_cache_abs_max:.2g} nats and are held to nothing",
            soft_wrap=True,
        )
    console.print("the same" if report.is_same else "NOT the same")
    return 0 if report.is_same else 1


def print_runs(lines: "Sequence[RunLine]", where: str) -> int:
    """0."""
    console = Console(highlight=False, markup=False)
    if not lines:
        console.print(f"no run below {where}/; start one with `headrace train CONFIG`", soft_wrap=True)
        return 0
    rows = [("run", "started", "updates", "held-out success", "size", "state"), *map(_run_cells, lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        console.print("  ".join(cells).rstrip(), soft_wrap=True)
    for line in lines:
        if line.note:
            console.print(f"{line.name} {line.state}: {line.note}", soft_wrap=True)
    return 0


def _run_cells(line: "RunLine") -> tuple[str, ...]:
    """One run, narrow enough for a terminal of 80 columns; T is the sampling temperature."""
    success = ", ".join(
        f"{item.successes / item.graded:.1%} T={item.temperature:g}" for item in line.held_out if item.graded
    )
    started = line.started[:16].replace("T", " ")
    updates = f"{line.updates}/{line.planned}" if line.planned else ABSENT
    return (line.name, started or ABSENT, updates, success or ABSENT, size(line.size_bytes), line.state)


def _print_score(console: Console, score: "ModelScore") -> None:
    scored = sum(task.scored for task in score.tasks)
    console.print(f"fits: {score.fits}", soft_wrap=True)
    console.print(
        f"{score.model}: {len(score.tasks)} tasks, {scored} scored attempts, {score.unscored} without a score, mean reward "
        f"{score.mean_reward:.3f}",
        soft_wrap=True,
    )
    for item in score.passes:
        low, high = item.interval.low, item.interval.high
        console.print(f"  pass@{item.k}: {item.value:.3f}, 95% from {low:.3f} to {high:.3f} ({item.method})")
    strata: dict[tuple[str, str], tuple[int, int]] = {}
    for task in score.tasks:
        key = (task.task.family, task.task.difficulty)
        successes, attempts = strata.get(key, (0, 0))
        strata[key] = (successes + task.successes, attempts + task.scored)
    table = Table("family", "difficulty", "successes", "scored")
    for (family, difficulty), (successes, attempts) in sorted(strata.items()):
        table.add_row(family, difficulty, str(successes), str(attempts))
    console.print(table)
