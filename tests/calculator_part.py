"""A calculator as a person would write it."""

from headrace.environments.calculator import CalculatorError, calculate
from headrace.extend import ToolError


def calculator(expression: str) -> str:
    """Evaluates an arithmetic expression exactly."""
    try:
        return calculate(expression)
    except CalculatorError as error:
        raise ToolError(str(error)) from error
