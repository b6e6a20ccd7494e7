"""Checks that an answer which math-verify finds right claims nothing else than the truth.

Of what stands on the sides of an arrow or of a chain of equations math-verify alone would accept a part. It takes
numbers for equal that agree to six decimals, a set for a point, and digits of any base for the same number.
"""

from __future__ import annotations

import re
from typing import Any

from math_verify import verify
from sympy import (
    And,
    Eq,
    Expr,
    FiniteSet,
    Ge,
    Gt,
    Interval,
    Le,
    Lt,
    Number,
    Symbol,
    Tuple,
    cancel,
    expand,
    preorder_traversal,
)
from sympy.core.function import AppliedUndef

from rollpacker.data.math_boxes import closings

_ARROW = re.compile(r"\\(?:long)?(?:left)?(?:right)?arrow\b|\\(?:to|mapsto|implies|iff|lor|vee)\b", re.IGNORECASE)
"""Of what stands on its sides, math-verify reads one."""
_SUBSCRIPT_BEGINS = re.compile(r"(?:[A-Za-z}]\s*_|\\underset)\s*\{")
"""Of a letter or a command; the arrow in it says where a variable goes, as in that of a limit."""

_BASE = re.compile(r"\d\s*_\s*\{?\s*(\d+|[ap]m)")
"""Or the half of the day of a time."""
_STARTS_A_SET = re.compile(r"(?:^|=|\\in)\s*\\\{")

_WITHOUT_ROOTS = Eq(Symbol("x", real=True) ** 2, -1, evaluate=False)
"""For math-verify equal to any other equation without real ones."""
_LEAST_AGREEMENT = 1e-3
"""Of two numbers, relative."""


def are_close(truth: list[Any], answer: list[Any]) -> bool:
    """Whether numbers that are equal to six decimals also agree relative to their size."""
    values, others = ([each.evalf() for each in parsed if is_number(each)] for parsed in (truth, answer))
    pairs = [(value, other) for value in values for other in others if abs(value - other).is_comparable]
    return not pairs or any(
        abs(value - other) <= _LEAST_AGREEMENT * max(abs(value), abs(other)) for value, other in pairs
    )


def is_number(parsed: Any) -> bool:
    """Whether a formula has a finite value without any letter."""
    return isinstance(parsed, Expr) and bool(parsed.is_number) and bool(parsed.is_finite)


def is_one_claim(truth: list[Any], answer: list[Any]) -> bool:
    """Whether an answer that math-verify finds right claims nothing else."""
    if _has_arrow(answer):
        return _has_arrow(truth)
    if _takes_set_for_point(truth, answer) or _drops_repeated(truth, answer[0]) or _are_in_other_bases(truth, answer):
        return False
    formula = answer[0]
    if isinstance(truth[0], Eq) and isinstance(formula, Eq) and not _share_roots(truth[0], formula):
        return False
    if isinstance(truth[0], Eq | And) or not isinstance(formula, Eq | And) or gives_bounds(truth, answer):
        return True
    return all(isinstance(each, Eq) and _is_sound(each, truth) for each in _relations(formula))


def gives_bounds(truth: list[Any], answer: list[Any]) -> bool:
    """Whether the truth is an interval, and the answer compares a letter, or `f(x)`, with a number, once or in a chain.

    math-verify would solve any other inequality, too, so that one copied from the prompt would be right.
    """
    bounded = truth[0].rhs if isinstance(truth[0], Eq) else truth[0]
    return isinstance(bounded, Interval) and all(_is_bound(each) for each in _relations(answer[0]))


def _relations(formula: Any) -> tuple[Any, ...]:
    return formula.args if isinstance(formula, And) else (formula,)


def _is_bound(relation: Any) -> bool:
    if not isinstance(relation, Ge | Gt | Le | Lt):
        return False
    pairs = (relation.args, relation.args[::-1])
    return any(isinstance(one, Symbol | AppliedUndef) and other.is_number for one, other in pairs)


def _share_roots(truth: Eq, answer: Eq) -> bool:
    """Whether equations that have the same roots have any, or are multiples of each other."""
    if truth == answer or not (_is_of_expressions(truth) and _is_of_expressions(answer)):
        return True
    factor = cancel((truth.lhs - truth.rhs) / (answer.lhs - answer.rhs))
    is_multiple = is_number(factor) and factor != 0
    return is_multiple or not verify(truth, _WITHOUT_ROOTS, timeout_seconds=None)


def _is_of_expressions(equation: Eq) -> bool:
    return all(isinstance(side, Expr) and not side.is_Matrix for side in equation.args)


def _takes_set_for_point(truth: list[Any], answer: list[Any]) -> bool:
    """Whether one has a set in braces where the other has a point or an interval; also of their elements."""
    one, other = (parsed[0].rhs if isinstance(parsed[0], Eq) else parsed[0] for parsed in (truth, answer))
    if (
        isinstance(one, FiniteSet | Tuple)
        and isinstance(other, FiniteSet | Tuple)
        and _num_sets(one) != _num_sets(other)
    ):
        return True
    pairs = ((one, truth, other), (other, answer, one))
    return any(
        isinstance(formula, FiniteSet) and isinstance(instead, Interval | Tuple) and _is_in_braces(parsed)
        for formula, parsed, instead in pairs
    )


def _drops_repeated(truth: list[Any], answer: Any) -> bool:
    """Whether a value that the truth lists several times, not in braces, is not listed as often."""
    numbers = _numbers_listed(truth[0])
    return max(numbers) > 1 and not _is_in_braces(truth) and numbers != _numbers_listed(answer)


def _numbers_listed(values: Any) -> list[int]:
    """How often each value of a list stands there, in the order of the values."""
    values = values.rhs if isinstance(values, Eq) else values
    if not isinstance(values, FiniteSet):
        return [1]
    return [values._unsorted_args.count(each) for each in values.args]  # noqa: SLF001 math-verify's own set


def _are_in_other_bases(truth: list[Any], answer: list[Any]) -> bool:
    """Whether both name bases of their numbers, which math-verify does not read, and not the same."""
    bases, others = (
        {base for part in parsed if isinstance(part, str) for base in _BASE.findall(part)} for parsed in (truth, answer)
    )
    return bool(bases and others) and bases != others


def _num_sets(collection: FiniteSet | Tuple) -> int:
    """Inside of it, where they were in braces."""
    return sum(isinstance(each, FiniteSet) for arg in collection.args for each in preorder_traversal(arg))


def _is_in_braces(parsed: list[Any]) -> bool:
    return any(_STARTS_A_SET.search(part) for part in parsed if isinstance(part, str))


def _has_arrow(parsed: list[Any]) -> bool:
    """Whether a text has an arrow outside of subscripts."""
    return any(_ARROW.search(_without_subscripts(part)) for part in parsed if isinstance(part, str))


def _without_subscripts(text: str) -> str:
    kept, begins, closed_at = "", 0, closings(text)
    for match in _SUBSCRIPT_BEGINS.finditer(text):
        if match.start() >= begins:
            kept += text[begins : match.start()]
            begins = closed_at.get(match.end(), len(text))
    return kept + text[begins:]


def _is_sound(equation: Eq, truth: list[Any]) -> bool:
    """Whether each side names the unknown or is the truth; two bare numbers say nothing."""
    if all(isinstance(side, Number) for side in equation.args):
        return False
    for side in equation.args:
        is_named = bool(side.free_symbols or side.atoms(AppliedUndef)) or not isinstance(side, Expr)
        if not is_named and not verify(truth, [side], timeout_seconds=None):
            return False
    if not _is_of_expressions(equation):
        return True
    difference = expand(equation.lhs - equation.rhs)
    return difference == 0 or not isinstance(difference, Number)
