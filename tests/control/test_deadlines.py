"""Every wait for a worker has a deadline: read from the source, so that a call added tomorrow is looked at too."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import headrace.control
import headrace.ports

PORTS = ("Inference", "Environment", "Grader", "Trainer", "Journal")
WITHOUT = {
    ("Environment", "close"): "an adapter ends its processes by force after its own grace; asked twice it does nothing",
    ("Journal", "durable"): "a disk answers or fails; to go on without it would lose what was said to be safe",
}
"""Asynchronous methods that take no deadline, and why."""


def waits(port: str) -> dict[str, int | None]:
    """Position of `timeout_s` among the arguments after `self` of every method that is awaited; None where it takes none."""
    tree = ast.parse(inspect.getsource(getattr(headrace.ports, port)))
    (protocol,) = tree.body
    assert isinstance(protocol, ast.ClassDef)
    found: dict[str, int | None] = {}
    for node in protocol.body:
        is_stream = isinstance(node, ast.FunctionDef) and "AsyncIterator" in ast.unparse(node.returns or node)
        if isinstance(node, ast.AsyncFunctionDef) or is_stream:
            assert isinstance(node, (ast.AsyncFunctionDef, ast.FunctionDef))
            names = [argument.arg for argument in node.args.args[1:]]
            found[node.name] = names.index("timeout_s") if "timeout_s" in names else None
    return found


def calls(source: str) -> Iterator[tuple[str, str, ast.Call]]:
    """(port, method, call) of every call on something that is named after a port."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            holder = ast.unparse(node.func.value).rpartition(".")[2].lstrip("_")
            for port in PORTS:
                if holder == port.lower() and node.func.attr in waits(port):
                    yield port, node.func.attr, node


def without_deadline(source: str) -> list[str]:
    """Calls of a port that pass none, or a constant."""
    found: list[str] = []
    for port, method, call in calls(source):
        position = waits(port)[method]
        if position is None:
            continue
        named = [keyword.value for keyword in call.keywords if keyword.arg == "timeout_s"]
        given = named or call.args[position : position + 1]
        if not given or not ast.unparse(given[0]).rpartition(".")[2].lstrip("_").endswith("_s"):
            found.append(f"line {call.lineno}: {ast.unparse(call)}")
    return found


def sources() -> dict[str, str]:
    folder = Path(headrace.control.__file__).parent
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}


def test_every_awaited_method_of_a_port_takes_a_deadline_or_says_why_not() -> None:
    none = {(port, method) for port in PORTS for method, position in waits(port).items() if position is None}
    assert none == set(WITHOUT)


def test_the_control_plane_passes_a_deadline_of_its_own_with_every_call() -> None:
    missing = {name: found for name, source in sources().items() if (found := without_deadline(source))}
    assert missing == {}


def test_every_method_that_is_awaited_is_seen_by_the_audit() -> None:
    """A holder with another name would hide its calls; so each method has to turn up somewhere."""
    seen = {(port, method) for source in sources().values() for port, method, _ in calls(source)}
    assert seen == {(port, method) for port in PORTS for method in waits(port)}


def test_the_audit_notices_a_call_without_a_deadline_and_one_with_a_constant() -> None:
    assert without_deadline("await self._trainer.update(plan)") == ["line 1: self._trainer.update(plan)"]
    assert without_deadline("await ports.environment.probe(handle, action, 5.0)") != []
    assert without_deadline("await trainer.save(timeout_s=self._settings.timeout_s)") == []
