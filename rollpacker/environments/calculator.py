"""A calculator as a tool: a turn may compute before it answers.

The prompt's line has the answer in `ground_truth`. A turn that contains `calc: EXPRESSION` gets the value; one that
contains `answer: NUMBER` ends the task, with reward 1 where the number is right. A turn with neither, or an expression
that cannot be computed, gets an observation that says so.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

_CALL = re.compile(r"(calc|answer):\s*([^\n]*)")

_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}

_MOST_DIGITS = 1000
"""Of a numerator or denominator."""


class Calculator:
    """One question."""

    def reset(self, *, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin; the prompt asks."""
        self._answer = compute(str((options or {})["ground_truth"]))
        return "", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Compute, or take the answer."""
        calls = _CALL.findall(action)
        if not calls:
            return "Write `calc: EXPRESSION` or `answer: NUMBER`.", 0.0, False, False, {}
        kind, text = calls[-1]
        try:
            value = compute(text)
        except (ValueError, SyntaxError, ZeroDivisionError) as error:
            return f"{text.strip()} cannot be computed: {error}", 0.0, kind == "answer", False, {}
        if kind == "answer":
            return "", float(value == self._answer), True, False, {}
        return str(value), 0.0, False, False, {}


def compute(text: str) -> Fraction:
    """Compute numbers with + - * / and parentheses, exactly.

    Raises:
        ValueError: There is something else in it, or the value is too long.
        SyntaxError: It is no expression.
        ZeroDivisionError: It divides by 0.
    """
    value = _value_of(ast.parse(text.strip(), mode="eval").body)
    if max(abs(value.numerator), value.denominator) >= 10**_MOST_DIGITS:
        raise ValueError("the value is too long")
    return value


def _value_of(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return Fraction(str(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value_of(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value_of(left), _value_of(right))
    raise ValueError("only numbers, + - * / and parentheses")
