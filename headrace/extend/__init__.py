"""What a person writes to bring parts of their own: plain typed functions, or a class whose methods are tools.

Invariant: a user's code needs nothing else of Headrace than the names here, and runs in no process that holds weights: tools
and graders run in children of their own. `docs/tutorial.md` shows each part in less than twenty lines.
"""

from headrace.extend.problems import Call, Problem, Turn
from headrace.extend.signatures import ToolError

__all__ = ["Call", "Problem", "ToolError", "Turn"]
