"""The map of the cluster names every port and every simulated role, and nothing else."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import headrace.simulation
from headrace import ports
from headrace.simulation.scenario import Scenario

DOCUMENT = Path(__file__).parents[2] / "docs" / "cluster.md"
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines()
    if line.startswith("| `")
]


def classes_of(package: ModuleType) -> dict[str, type]:
    found: dict[str, type] = {}
    for module in pkgutil.iter_modules(package.__path__):
        loaded = importlib.import_module(f"{package.__name__}.{module.name}")
        found.update(dict(inspect.getmembers(loaded, inspect.isclass)))
    return found


def protocols() -> set[str]:
    return {
        name
        for name, kind in classes_of(ports).items()
        if getattr(kind, "_is_protocol", False) and kind.__module__.startswith(f"{ports.__name__}.")
    }


def test_every_port_has_exactly_one_row() -> None:
    named = [row[0].strip("`") for row in ROWS]
    assert sorted(named) == sorted(protocols())


def test_every_simulated_role_exists_and_has_the_methods_of_its_port() -> None:
    classes = classes_of(headrace.simulation)
    for row in ROWS:
        port, role = getattr(ports, row[0].strip("`")), row[1].strip("`")
        if role in ("–", "WeightShelf"):  # weights of a simulation are a few bytes: no files, and no path to them
            continue
        missing = {name for name in vars(port) if not name.startswith("_")} - set(dir(classes[role]))
        assert not missing - instance_attributes(classes[role]), f"{role} lacks {missing} of {row[0]}"


def instance_attributes(kind: type) -> set[str]:
    return set(re.findall(r"self\.(\w+)", inspect.getsource(kind)))


def test_every_cost_is_a_field_of_a_scenario() -> None:
    fields = set(Scenario.__struct_fields__)
    for row in ROWS:
        for cost in re.findall(r"`([^`]+)`", row[5]):
            section, _, field = cost.partition(".")
            assert section in fields, cost
            if field:
                kind = {"engine": "EngineCost", "trainer": "TrainerCost", "workload": "Workload"}[section]
                assert field in classes_of(headrace.simulation)[kind].__struct_fields__, cost
