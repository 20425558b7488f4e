"""The multi-turn tool tasks of BFCL v4 (`bfcl-eval`): file systems, travel, trading, vehicles and more, with their oracles.

A user makes several requests in turn. The policy calls functions of the desk, moves on with `next_request`, and ends with a
text once there is none left. The grader replays the calls in fresh instances with the package's own checker: after each
request the state has to be that of the reference calls, and what these return has to have been seen.
"""

import ast
import copy
import importlib
import inspect
import itertools
import json
import keyword
from importlib import resources
from typing import Any

from bfcl_eval.constants.executable_backend_config import (
    CLASS_FILE_PATH_MAPPING,
    MULTI_TURN_FUNC_DOC_FILE_MAPPING,
    STATELESS_CLASSES,
)
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

from headrace.extend import Call, Problem, ToolError, Turn

DATA = resources.files("bfcl_eval") / "data"
MORE_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"
INTRODUCTION = (
    "You work at a desk with functions. `call` runs one of them, `describe` explains one. When the request below is done, "
    "`next_request` gives you the next one; once there is none left, say so in a final text.\n\nFunctions:\n"
)
_runs = itertools.count()


def multi_turn_base() -> list[Problem]:
    """Requests that can be served as they come."""
    return _problems("base")


def multi_turn_miss_func() -> list[Problem]:
    """A function is missing until a later request."""
    return _problems("miss_func")


def multi_turn_miss_param() -> list[Problem]:
    """A request lacks what a call needs until a later one says it."""
    return _problems("miss_param")


def multi_turn_long_context() -> list[Problem]:
    """The same as base, among long lists and files."""
    return _problems("long_context")


class Desk:
    """The functions of a task, in instances of their own."""

    effect = "resettable"

    def __init__(self, problem: Problem) -> None:
        entry = problem.data
        self._requests = iter(entry["requests"][1:])
        self._num_requests = len(entry["requests"])
        self._held_back: dict[str, list[str]] = dict(entry["held_back"])
        self._functions = _functions(entry["classes"], entry["excluded"])
        self._methods: dict[str, Any] = {}
        for name in entry["classes"]:
            instance = _class(name)()
            if name not in STATELESS_CLASSES:
                instance._load_scenario(json.loads(entry["config"]).get(name, {}), long_context=entry["is_long"])
            self._methods |= dict(inspect.getmembers(instance, inspect.ismethod))
        self._turns: list[list[dict[str, Any]]] = [[]]

    def call(self, function: str, arguments: dict[str, Any]) -> str:
        """Runs a function of the desk and says what it returned.

        Args:
            function: its name.
            arguments: by name.
        """
        self._known(function)
        wrong = [name for name in arguments if not name.isidentifier() or keyword.iskeyword(name)]
        if wrong:
            raise ToolError(f"{wrong[0][:40]!r} cannot be the name of an argument")
        self._turns[-1].append({"function": function, "arguments": arguments})
        try:
            # Some functions keep what they are given and change it later.
            value = self._methods[function](**copy.deepcopy(arguments))
        except Exception as error:  # the package shows every exception of its functions
            return f"Error during execution: {error}"
        return value if isinstance(value, str) else json.dumps(value, default=str)

    def describe(self, function: str) -> str:
        """Explains a function of the desk and its arguments.

        Args:
            function: its name.
        """
        return json.dumps(self._known(function))

    def next_request(self) -> str:
        """Says that the present request is done; gives the next one."""
        request = next(self._requests, None)
        if request is None:
            return "There is no further request."
        more = self._held_back.pop(str(len(self._turns)), [])
        self._turns.append([])
        return request if not more else "\n".join([request, *(_line(self._functions[name]) for name in more)])

    def claim(self, final_text: str) -> bool:
        del final_text
        return len(self._turns) == self._num_requests

    def artifact(self) -> dict[str, Any]:
        return {"turns": self._turns}

    def _known(self, function: str) -> dict[str, Any]:
        later = {name for names in self._held_back.values() for name in names}
        if function not in self._functions or function in later or function not in self._methods:
            raise ToolError(f"there is no function {function[:40]!r} here")
        return self._functions[function]


def replayed(problem: Problem, artifact: bytes) -> dict[str, float]:
    """1 when every request was served as the reference serves it."""
    turns: list[list[dict[str, Any]]] = json.loads(artifact)["turns"] if artifact else []
    truth = problem.answer
    if len(turns) < len(truth):
        return {"success": 0.0}
    said = [[[_written(call)] for call in turn] for turn in turns]
    entry = {
        "id": problem.data["id"],
        "initial_config": json.loads(problem.data["config"]),
        "involved_classes": problem.data["classes"],
    }
    run = f"run{next(_runs)}"
    try:
        verdict = multi_turn_checker(said, truth, entry, problem.data["id"].rsplit("_", 1)[0], run)
    finally:
        # The package keeps its instances as globals, by this name.
        for name in [name for name in vars(multi_turn_utils) if name.startswith(run)]:
            delattr(multi_turn_utils, name)
    return {"success": float(verdict["valid"])}


def _problems(category: str) -> list[Problem]:
    answers = {
        entry["id"]: entry["ground_truth"] for entry in _lines(f"possible_answer/BFCL_v4_multi_turn_{category}.json")
    }
    return [
        _problem(entry, answers[entry["id"]], is_long=category == "long_context")
        for entry in _lines(f"BFCL_v4_multi_turn_{category}.json")
    ]


def _problem(entry: dict[str, Any], truth: list[list[str]], *, is_long: bool) -> Problem:
    classes, excluded = entry["involved_classes"], entry.get("excluded_function", [])
    held_back = _held_back(entry, truth)
    later = {name for names in held_back.values() for name in names}
    functions = _functions(classes, excluded)
    requests = [turn[0]["content"] if turn else MORE_FUNCTIONS for turn in entry["question"]]
    lines = [_line(function) for name, function in functions.items() if name not in later]
    calls = sum(map(len, truth))
    return Problem(
        INTRODUCTION + "\n".join(lines) + "\n\nRequest: " + requests[0],
        truth,
        difficulty="short" if calls <= 4 else "medium" if calls <= 7 else "long",
        data={
            "id": entry["id"],
            "classes": classes,
            "excluded": excluded,
            "held_back": held_back,
            # As text, in its own order: some functions list what they hold in the order of insertion.
            "config": json.dumps(entry["initial_config"]),
            "requests": requests,
            "is_long": is_long,
        },
        oracle=_oracle(classes, truth),
    )


def _held_back(entry: dict[str, Any], truth: list[list[str]]) -> dict[str, list[str]]:
    """Functions by the request with which they appear; one that a reference calls before stays (`miss_func_49`'s `tail`)."""
    held_back: dict[str, list[str]] = {}
    for place, names in entry.get("missed_function", {}).items():
        used = {text.partition("(")[0] for calls in truth[: int(place)] for text in calls}
        held_back[place] = [name for name in names if name not in used]
    return held_back


def _oracle(classes: list[str], truth: list[list[str]]) -> list[Turn | str]:
    turns: list[Turn | str] = []
    for place, calls in enumerate(truth):
        if place:
            turns.append(Turn(calls=[Call("next_request")]))
        turns += [Turn(calls=[_as_call(classes, text)]) for text in calls]
    return [*turns, "All requests are done."]


def _as_call(classes: list[str], text: str) -> Call:
    """A reference call, such as `sort('report.pdf')`, as a call of the desk."""
    node = ast.parse(text, mode="eval").body
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name), text
    method = next(getattr(_class(name), node.func.id) for name in classes if hasattr(_class(name), node.func.id))
    names = list(inspect.signature(method).parameters)[1:]
    arguments = {name: ast.literal_eval(value) for name, value in zip(names, node.args, strict=False)}
    arguments |= {str(named.arg): ast.literal_eval(named.value) for named in node.keywords}
    return Call("call", function=node.func.id, arguments=arguments)


def _written(call: dict[str, Any]) -> str:
    """The call as the package's checker reads it: a name of its own, and literals."""
    return f"{call['function']}({', '.join(f'{name}={value!r}' for name, value in call['arguments'].items())})"


def _functions(classes: list[str], excluded: list[str]) -> dict[str, dict[str, Any]]:
    """What the package documents of the functions of some classes, by name."""
    documented = [
        function
        for name in classes
        for function in _lines(f"multi_turn_func_doc/{MULTI_TURN_FUNC_DOC_FILE_MAPPING[name]}")
    ]
    return {function["name"]: function for function in documented if function["name"] not in excluded}


def _line(function: dict[str, Any]) -> str:
    """A function in one line: arguments with types, optional ones with `?`, and what it does."""
    parameters = function["parameters"]
    required = parameters.get("required", [])
    arguments = ", ".join(
        f"{name}{'' if name in required else '?'}: {of_name['type']}"
        for name, of_name in parameters["properties"].items()
    )
    does = function["description"].rpartition("Tool description: ")[2].partition(". ")[0].rstrip(".")
    return f"- {function['name']}({arguments}): {does}"


def _class(name: str) -> Any:
    return getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name)


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines() if line]
