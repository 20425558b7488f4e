"""The circuit breaker of an environment in whole simulated runs."""

import io

import pytest
from rich.console import Console
from simulated_runs import MODES, config, faultless, payloads, run, scenario, with_faults

from headrace.control.breaking import EnvironmentBroken
from headrace.errors import HeadraceError
from headrace.records.events import Event
from headrace.records.run import BreakerChanged, RunEnded
from headrace.records.trajectory import EpisodeStarted
from headrace.reporting.folds.guards import GuardFold
from headrace.reporting.folds.index import RunIndex
from headrace.reporting.progress import Progress
from headrace.runtime.simulated import Simulation, simulate
from headrace.simulation.faults import Fault, FaultKind


def unread(_address: str) -> bytes:
    raise KeyError


def test_an_environment_that_never_works_ends_the_run_with_what_it_waited_for_and_for_how_long() -> None:
    events: list[Event] = []
    broken = config(MODES["sync"] | {"infra_attempts": 1000}, timeouts={"broken_environment_s": 90.0})
    with pytest.raises(HeadraceError, match=r"environment \S+ is broken for 90 s: .* failed; the bound is") as error:
        simulate(Simulation(broken, scenario(open_failure=1.0)), observers=[events.append])
    assert isinstance(error.value, EnvironmentBroken)
    changes = [event for event in events if isinstance(event.payload, BreakerChanged)]
    probes = [event for event in changes if event.payload.state == "probing"]
    assert changes[0].payload == BreakerChanged("open", 8, 8)
    started = [event for event in events if isinstance(event.payload, EpisodeStarted) and event.seq > changes[0].seq]
    assert len(started) == len(probes) <= 8, "one at a time, ever more slowly, and no other attempt in vain"
    assert isinstance(events[-1].payload, RunEnded)
    assert "broken_environment_s" in events[-1].payload.reason


def test_a_run_waits_for_its_environment_says_so_and_goes_on_when_it_works_again() -> None:
    adapt, _ = with_faults(Fault(worker="environment", kind=FaultKind.REJECT, method="open", at_s=20.0, times=16))
    console = Console(record=True, width=200, file=io.StringIO())
    events: list[Event] = []
    schedule = MODES["sync"] | {"infra_attempts": 20}
    result = simulate(
        Simulation(config(schedule), faultless(), adapt=adapt), observers=[events.append, Progress(console)]
    )
    assert result.summary.updates == 4, "every law was checked after every event"
    assert [item.state for item in payloads(result, BreakerChanged)][-2:] == ["probing", "closed"]
    shown = console.export_text()
    assert "attempts failed, since 0:2" in shown
    assert "works again" in shown
    fold = GuardFold(RunIndex(unread))
    for event in events:
        fold.observe(event)
    (figures,) = fold.result().breakers
    assert (figures.openings, figures.is_shut) == (1, False)
    assert figures.shut_s > 2.0


def test_what_a_policy_causes_never_opens_it() -> None:
    result = run(MODES["sync"], of=faultless(tool_error=1.0, malformed=0.5))
    assert not payloads(result, BreakerChanged)
