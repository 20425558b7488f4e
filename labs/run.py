"""`python3 -m labs.run --experiment rollout --seed 7`: synchronous waiting against asynchronous consumption.

Runs the real control plane on simulated workers under virtual time. It measures scheduling behaviour, not hardware.
"""

import argparse
import os
import sys
import time
from pathlib import Path

STATEMENT = (
    "Discrete-event simulation of the real control plane under virtual time: scheduling behaviour, not hardware.\n"
    "It starts no Ray, no GPU, no inference engine, no container and no tensor library."
)
_LEGEND = """\
groups/ks  groups accepted for training per 1000 simulated seconds     lag   updates between an update's oldest token
idle       share of time in which the trainer had nothing to do              and its gradient, mean and largest
token lag  the same lag, mean over trained tokens                      span  versions inside one trajectory, largest
rejected   groups that a rule dropped, of those drawn                  bound share of the fluid bound that keeps all tasks"""


def main() -> int:
    """Exit status: 0 done, 2 wrong usage."""
    _use_environment()
    parser = argparse.ArgumentParser(
        prog="python3 -m labs.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--experiment", choices=["rollout"], required=True, help="which experiment")
    parser.add_argument("--seed", type=int, default=7, help="root of every draw (default 7)")
    parser.add_argument("--updates", type=int, default=None, help="policy updates of each arm (default 30)")
    parser.add_argument("--full", action="store_true", help="the scenario's own number of updates; minutes")
    parser.add_argument("--scenario", default="ten_times", help="name of a packaged scenario or a TOML file")
    parser.add_argument("--out", type=Path, default=None, help="also write the figures there as JSON")
    options = parser.parse_args()
    return _rollout(options)


def _use_environment() -> None:
    """Goes on in the project's environment when this interpreter lacks the dependencies and that one exists."""
    try:
        import msgspec  # noqa: F401
    except ModuleNotFoundError:
        own = Path(__file__).resolve().parent.parent / ".venv" / "bin" / "python"
        if not own.exists() or Path(sys.executable) == own:
            sys.exit("labs.run: the dependencies are not installed; run `make install` first")
        os.execv(own, [str(own), "-m", "labs.run", *sys.argv[1:]])


def _rollout(options: argparse.Namespace) -> int:
    from headrace.errors import ConfigError
    from headrace.planning.experiment import ARMS, run_arms
    from headrace.simulation.scenario import load_scenario

    try:
        name = options.scenario
        scenario = load_scenario(Path(name) if name.endswith(".toml") else name)
        updates = scenario.updates if options.full else (30 if options.updates is None else options.updates)
        if updates < 1:
            raise ConfigError(f"--updates is {updates}; it must be at least 1")
    except ConfigError as error:
        print(f"labs.run: {error}", file=sys.stderr)
        return 2
    print(STATEMENT)
    print(_law(scenario, options.seed, updates))
    begin_s = time.monotonic()
    outcomes = run_arms(ARMS, scenario, options.seed, updates)
    print(_table(outcomes))
    print(_LEGEND)
    print(f"\n{len(outcomes)} arms in {time.monotonic() - begin_s:.0f} s; the same seed gives the same figures.")
    if options.out is not None:
        _write(options.out, options.seed, updates, outcomes)
    return 0


def _law(scenario: object, seed: int, updates: int) -> str:
    from headrace.simulation.scenario import Scenario

    assert isinstance(scenario, Scenario)
    workload = scenario.workload
    strata = ", ".join(f"{s.share:.0%} {s.name} (x{s.scale:g})" for s in workload.strata)
    return (
        f"\nWorkload `{workload.name}`: {workload.source}.\n"
        f"  difficulties: {strata}; groups of {scenario.group_size}, batches of {scenario.batch_groups} groups, "
        f"{scenario.engine.slots} slots, update {scenario.trainer.update_s.mean:g} s, {updates} updates, seed {seed}.\n"
        f"  fluid bound, all tasks kept: {1000 * scenario.fluid_groups_per_s:.0f} groups per 1000 s.\n"
    )


def _table(outcomes: "list[object]") -> str:
    from headrace.planning.experiment import ArmOutcome

    head = (
        f"{'arm':<22}{'makespan s':>11}{'accepted':>9}{'groups/ks':>10}{'bound':>7}{'idle':>6}"
        f"{'lag':>11}{'token lag':>10}{'span':>5}  rejected by difficulty"
    )
    lines = [head, "-" * (len(head) + 6)]
    for outcome in outcomes:
        assert isinstance(outcome, ArmOutcome)
        rejected = ", ".join(f"{name} {s.rejected}/{s.drawn}" for name, s in outcome.strata.items())
        lag = f"{outcome.oldest_lag_mean:.1f}/{outcome.oldest_lag_max}"
        lines.append(
            f"{outcome.arm:<22}{outcome.makespan_s:>11.0f}{outcome.accepted_samples:>9}{outcome.groups_per_ks:>10.1f}"
            f"{outcome.fluid_fraction:>7.0%}{outcome.trainer_idle:>6.0%}{lag:>11}{outcome.token_lag_mean:>10.2f}"
            f"{outcome.span_max:>5}  {rejected}"
        )
    return "\n".join(lines) + "\n"


def _write(path: Path, seed: int, updates: int, outcomes: "list[object]") -> None:
    import msgspec

    record = {"experiment": "rollout", "measures": "scheduling, not hardware", "seed": seed, "updates": updates}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode({**record, "arms": outcomes}), indent=1))
    print(f"figures: {path}")


if __name__ == "__main__":
    sys.exit(main())
