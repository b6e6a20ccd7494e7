"""A calculator as a tool: `environment.tools=[rollpacker.environments.calculator:calculate]`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction

_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}

_MOST_DIGITS = 1000
"""Of a numerator or denominator."""


def calculate(expression: str) -> str:
    """Compute a number exactly, such as (2 + 3) / 6.

    Args:
        expression: Numbers with + - * / and parentheses.
    """
    return str(compute(expression))


def compute(text: str) -> Fraction:
    """Compute numbers with + - * / and parentheses, exactly.

    Raises:
        ValueError: There is something else in it, or the value is too long.
        SyntaxError: It is no expression.
        ZeroDivisionError: It divides by 0.
    """
    expression = text.strip()
    value = _value_of(ast.parse(expression, mode="eval").body, expression.encode().splitlines())
    if max(abs(value.numerator), value.denominator) >= 10**_MOST_DIGITS:
        raise ValueError("the value is too long")
    return value


def _value_of(node: ast.expr, lines: Sequence[bytes]) -> Fraction:
    """Compute a part of an expression; its columns count bytes of these lines."""
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return Fraction(number)
        case ast.Constant(value=float()):
            return _fraction_of(lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode())
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value_of(operand, lines)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value_of(operand, lines)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value_of(left, lines), _value_of(right, lines))
    raise ValueError("only numbers, + - * / and parentheses")


def _fraction_of(written: str) -> Fraction:
    """A number with a point or an exponent as it is written: a float would have 17 of its digits."""
    _, _, exponent = written.lower().partition("e")
    if abs(int(exponent or 0)) > _MOST_DIGITS:  # 1e999999999 would be computed for hours
        raise ValueError("the value is too long")
    return Fraction(written)
