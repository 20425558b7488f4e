"""The calculator's language: exact, bounded, and the same as Python's arithmetic where the two overlap."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.environments.calculator import CalculatorError, calculate

INTEGERS = st.integers(min_value=0, max_value=10_000)


def expressions() -> st.SearchStrategy[str]:
    def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        binary = st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(" ".join)
        return binary | inner.map("({})".format) | inner.map("-{}".format)

    return st.recursive(INTEGERS.map(str), extend, max_leaves=12)


@given(expressions().filter(lambda text: len(text) <= 200))
@settings(max_examples=300)
def test_integer_expressions_agree_with_python(expression: str) -> None:
    try:
        expected = str(eval(expression))
    except ZeroDivisionError:
        expected = "division by zero"
    try:
        result = calculate(expression)
    except CalculatorError as error:
        result = str(error)
    assert result in (expected, "expression too deep")


@given(INTEGERS, INTEGERS.filter(bool), INTEGERS, INTEGERS.filter(bool))
def test_ratios_are_exact_and_in_lowest_terms(a: int, b: int, c: int, d: int) -> None:
    assert Fraction(calculate(f"{a}/{b} - {c}/{d}")) == Fraction(a, b) - Fraction(c, d)


@given(st.integers(0, 36**20), st.integers(2, 36), st.integers(2, 36))
def test_base_conversion_there_and_back_changes_nothing(value: int, base: int, other: int) -> None:
    digits = calculate(f"convert({value}, 10, {base})")
    assert int(digits, base) == value
    try:
        assert calculate(f"convert('{calculate(f'convert({digits!r}, {base}, {other})')}', {other}, {base})") == digits
    except CalculatorError as error:
        assert str(error).startswith("not a base-")  # longer than the bound on digits


@given(st.text(max_size=220) | st.text("0123456789+-*/%().,'abcdefgl \t\n", max_size=220))
@settings(max_examples=500)
def test_any_text_gives_a_result_or_a_short_objection(text: str) -> None:
    try:
        assert len(calculate(text)) <= 2 * 1234 + 1
    except CalculatorError as error:
        assert 0 < len(str(error)) <= 60


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("2**3**2", "512"),
        ("-2**2", "-4"),
        ("2**-1", "1/2"),
        ("1/3 + 1/6", "1/2"),
        ("0.1 + 0.2", "0.3"),
        ("1.0 / 3", "0.333333333333"),
        ("-0.25", "-0.25"),
        ("0.5 * 2", "1"),
        ("7 // 2 - -7 // 2", "7"),
        ("-7 % 3", "2"),
        ("gcd(12, 18, 27)", "3"),
        ("lcm(4, 6)", "12"),
        ("popcount(255)", "8"),
        ("abs(-3/4)", "3/4"),
        ("convert('ff', 16, 2)", "11111111"),
        ('convert("z", 36, 10)', "35"),
        ("convert(0, 10, 7)", "0"),
    ],
)
def test_known_values(expression: str, result: str) -> None:
    assert calculate(expression) == result


@pytest.mark.parametrize(
    ("expression", "objection"),
    [
        ("", "empty"),
        ("1" * 201, "longer than 200"),
        ("1+" * 99 + "1", "too large"),
        ("(" * 90 + "1" + ")" * 90, "too (deep|large)"),
        ("-" * 90 + "1", "too deep"),
        ("2**" * 20 + "2", "exponent too large"),
        ("9**256**9", "exponent too large"),
        ("9" * 60 + "**256", "number too large"),
        ("9**256*" * 9 + "9**256", "number too large"),
        ("1/0", "division by zero"),
        ("0**-1", "division by zero"),
        ("1e999", "invalid syntax"),
        ("1_000", "invalid syntax"),
        ("0x10", "invalid syntax"),
        ("1.2.3", "invalid syntax"),
        ("12 34", "invalid syntax"),
        ("2(3)", "invalid syntax"),
        ("١٢", "invalid syntax"),
        ("1.5 // 1", "an integer is needed"),
        ("__import__('os')", "unknown function"),
        ("x + 1", "unknown name"),
        ("().__class__", "invalid syntax"),
        ("convert('12', 2, 10)", "not a base-2"),
        ("convert(5, 10, 1)", "bases"),
        ("'a' + 1", "text where a number"),
        ("lambda: 1", "invalid syntax"),
    ],
)
def test_what_is_outside_the_language_is_named(expression: str, objection: str) -> None:
    with pytest.raises(CalculatorError, match=objection):
        calculate(expression)
