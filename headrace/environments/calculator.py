"""Evaluates one calculator expression; no code is ever compiled or run.

The language is defined here alone, so that it is the same under every Python version:

    expression := term (("+" | "-") term)*
    term       := factor (("*" | "/" | "//" | "%") factor)*
    factor     := ("+" | "-") factor | power
    power      := atom ("**" factor)?                               right to left: 2**3**2 is 2**9, -2**2 is -4
    atom       := number | text | name "(" expression ("," expression)* ")" | "(" expression ")"
    number     := 12 | 3.50 | .5 | 5.                               no exponent, no underscore, no leading zero
    text       := '...' | "..."                                     digits for `convert`, nothing else
    name       := gcd | lcm (two or more integers) | popcount (one integer >= 0) | abs (one number)
                | convert(text or integer, from_base, to_base)      bases 2 to 36, lower-case digits

Arithmetic is exact over the rationals. `//`, `%` and the functions take integers, `**` an integer exponent. The result is
text: an integer in decimal; a ratio as `p/q` in lowest terms; when the expression holds a decimal fraction, a finite
decimal, or 12 significant digits where there is none; for `convert` its digits.

Invariant: any string gives a result or a `CalculatorError` in bounded time and space. Standard library only: this file
also runs inside the sandbox.
"""

import math
import re
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Final

MAX_CHARS: Final = 200
MAX_TOKENS: Final = 160
MAX_DEPTH: Final = 24
MAX_BITS: Final = 4096
MAX_EXPONENT: Final = 256
MAX_DECIMALS: Final = 100
MAX_TEXT_DIGITS: Final = 64
SIGNIFICANT_DIGITS: Final = 12

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_TOKEN: Final = re.compile(
    r"[ \t\r\n]*(?:(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<text>'[^'\\]*'|\"[^\"\\]*\")|(?P<symbol>\*\*|//|[-+*/%(),])|(?P<end>\Z))"
)

Value = Fraction | str


class CalculatorError(ValueError):
    """The expression is outside the language or its limits; the message is short and meant for the caller."""


def calculate(expression: str) -> str:
    """The value of the expression as text: `calculate("2 * (3 + 4)")` is `"14"`, `calculate("1/3 + 1/6")` is `"1/2"`.

    Raises:
        CalculatorError: when it is outside the language or its limits.
    """
    if not expression.strip():
        raise CalculatorError("empty expression")
    if len(expression) > MAX_CHARS:
        raise CalculatorError(f"expression longer than {MAX_CHARS} characters")
    parser = _Parser(_tokens(expression))
    value = parser.expression(0)
    parser.expect("end", "")
    return _as_text(value, parser.is_decimal)


def _tokens(expression: str) -> list[tuple[str, str]]:
    """Pairs of kind and text, the last one `("end", "")`."""
    tokens: list[tuple[str, str]] = []
    position = 0
    while not tokens or tokens[-1][0] != "end":
        match = _TOKEN.match(expression, position)
        if match is None:
            raise CalculatorError("invalid syntax")
        kind = match.lastgroup or "end"
        tokens.append((kind, match.group(kind)))
        position = match.end()
        # Neither 2x nor 1.2.3 is two tokens in a row that happen to touch.
        if kind == "number" and expression[position : position + 1] not in _AFTER_NUMBER:
            raise CalculatorError("invalid syntax")
        if len(tokens) > MAX_TOKENS:
            raise CalculatorError("expression too large")
    return tokens


_AFTER_NUMBER: Final = frozenset(["", *" \t\r\n+-*/%(),"])


class _Parser:
    """Recursive descent that evaluates as it reads.

    Attributes:
        is_decimal: whether a decimal fraction was read so far.
    """

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.is_decimal = False
        self._tokens = tokens
        self._position = 0

    def expression(self, depth: int) -> Value:
        if depth > MAX_DEPTH:
            raise CalculatorError("expression too deep")
        return self._chain(("+", "-"), self._term, depth)

    def expect(self, kind: str, text: str) -> None:
        """Moves on. Raises CalculatorError when another token stands there."""
        if self._tokens[self._position] != (kind, text):
            raise CalculatorError("invalid syntax")
        self._position += 1

    def _take(self, *symbols: str) -> str:
        """The symbol that stands here and is now behind; empty when another token does."""
        kind, text = self._tokens[self._position]
        if kind == "symbol" and text in symbols:
            self._position += 1
            return text
        return ""

    def _chain(self, symbols: tuple[str, ...], operand: Callable[[int], Value], depth: int) -> Value:
        value = operand(depth)
        while symbol := self._take(*symbols):
            value = _bounded(_OPERATORS[symbol](_number(value), _number(operand(depth))))
        return value

    def _term(self, depth: int) -> Value:
        return self._chain(("*", "/", "//", "%"), self._factor, depth)

    def _factor(self, depth: int) -> Value:
        if depth > MAX_DEPTH:
            raise CalculatorError("expression too deep")
        if sign := self._take("+", "-"):
            value = _number(self._factor(depth + 1))
            return -value if sign == "-" else value
        base = self._atom(depth)
        if self._take("**"):
            return _bounded(_power(_number(base), _number(self._factor(depth + 1))))
        return base

    def _atom(self, depth: int) -> Value:
        kind, text = self._tokens[self._position]
        self._position += 1
        if kind == "number":
            return self._literal(text)
        if kind == "text":
            return text[1:-1]
        if kind == "name":
            return self._call(text, depth)
        if (kind, text) == ("symbol", "("):
            value = self.expression(depth + 1)
            self.expect("symbol", ")")
            return value
        raise CalculatorError("invalid syntax")

    def _literal(self, text: str) -> Fraction:
        if "." in text:
            self.is_decimal = True
        elif text[0] == "0" and text.strip("0"):
            raise CalculatorError("invalid syntax")
        return _bounded(Fraction(text if text[-1] != "." else text + "0"))

    def _call(self, name: str, depth: int) -> Value:
        if not self._take("("):
            raise CalculatorError(f"unknown name {name[:16]}")
        function = _FUNCTIONS.get(name)
        if function is None:
            raise CalculatorError(f"unknown function {name[:16]}")
        arguments = [self.expression(depth + 1)]
        while self._take(","):
            arguments.append(self.expression(depth + 1))
        self.expect("symbol", ")")
        return function(arguments)


def _as_text(value: Value, is_decimal: bool) -> str:
    if isinstance(value, str):
        return value
    if value.denominator == 1:
        return str(value.numerator)
    if not is_decimal:
        return f"{value.numerator}/{value.denominator}"
    places = next((k for k in range(1, MAX_DECIMALS + 1) if 10**k % value.denominator == 0), None)
    if places is not None:
        digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
        return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"
    with localcontext() as context:
        context.prec = SIGNIFICANT_DIGITS
        return format(Decimal(value.numerator) / Decimal(value.denominator), "f")


def _number(value: Value) -> Fraction:
    if isinstance(value, str):
        raise CalculatorError("text where a number is needed")
    return value


def _integer(value: Value) -> int:
    number = _number(value)
    if number.denominator != 1:
        raise CalculatorError("an integer is needed")
    return number.numerator


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise CalculatorError("number too large")
    return value


def _divide(left: Fraction, right: Fraction) -> Fraction:
    if right == 0:
        raise CalculatorError("division by zero")
    return left / right


def _floor_divide(left: Fraction, right: Fraction) -> Fraction:
    if right == 0:
        raise CalculatorError("division by zero")
    return Fraction(_integer(left) // _integer(right))


def _modulo(left: Fraction, right: Fraction) -> Fraction:
    if right == 0:
        raise CalculatorError("division by zero")
    return Fraction(_integer(left) % _integer(right))


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    power = _integer(exponent)
    if abs(power) > MAX_EXPONENT:
        raise CalculatorError("exponent too large")
    if base == 0 and power < 0:
        raise CalculatorError("division by zero")
    # Before the work, not after: the bit lengths bound the size of what would be computed.
    if max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(power) > 2 * MAX_BITS:
        raise CalculatorError("number too large")
    return Fraction(base**power)


def _integers(arguments: list[Value], name: str) -> list[int]:
    if len(arguments) < 2:
        raise CalculatorError(f"{name} needs 2 or more integers")
    return [_integer(argument) for argument in arguments]


def _gcd(arguments: list[Value]) -> Value:
    return Fraction(math.gcd(*_integers(arguments, "gcd")))


def _lcm(arguments: list[Value]) -> Value:
    return _bounded(Fraction(math.lcm(*_integers(arguments, "lcm"))))


def _popcount(arguments: list[Value]) -> Value:
    if len(arguments) != 1:
        raise CalculatorError("popcount needs 1 integer")
    value = _integer(arguments[0])
    if value < 0:
        raise CalculatorError("popcount needs an integer >= 0")
    return Fraction(value.bit_count())


def _abs(arguments: list[Value]) -> Value:
    if len(arguments) != 1:
        raise CalculatorError("abs needs 1 number")
    return abs(_number(arguments[0]))


def _convert(arguments: list[Value]) -> Value:
    if len(arguments) != 3:
        raise CalculatorError("convert needs (digits, from_base, to_base)")
    digits = arguments[0] if isinstance(arguments[0], str) else str(_integer(arguments[0]))
    source, target = _integer(arguments[1]), _integer(arguments[2])
    if not (2 <= source <= 36 and 2 <= target <= 36):
        raise CalculatorError("bases must be 2 to 36")
    allowed = _DIGITS[:source]
    if not 0 < len(digits) <= MAX_TEXT_DIGITS or any(digit not in allowed for digit in digits):
        raise CalculatorError(f"not a base-{source} number")
    value, converted = int(digits, source), ""
    while value:
        value, digit = divmod(value, target)
        converted = _DIGITS[digit] + converted
    return converted or "0"


_OPERATORS: Final[dict[str, Callable[[Fraction, Fraction], Fraction]]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": _divide,
    "//": _floor_divide,
    "%": _modulo,
}
_FUNCTIONS: Final[dict[str, Callable[[list[Value]], Value]]] = {
    "gcd": _gcd,
    "lcm": _lcm,
    "popcount": _popcount,
    "abs": _abs,
    "convert": _convert,
}
