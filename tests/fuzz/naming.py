"""Names violations, so that the same defect has the same name in every world."""

from __future__ import annotations

import linecache

from rollpacker.core.errors import InvariantViolated

RULES_RAISED_BY = "require"
"""The function of `tests.fuzz.invariants` whose errors are rules in words."""


def rule_of(error: BaseException) -> str:
    """The rule that did not hold, in words where somebody wrote them; else where the error came from."""
    if isinstance(error, InvariantViolated) and _place(error) == RULES_RAISED_BY:
        return error.problem
    if isinstance(error, AssertionError):
        return str(error).partition(":")[0] or _line(error)
    return f"{type(error).__name__} in {_place(error)}"


def description_of(error: BaseException) -> str:
    """What is known of an error, in two lines or more."""
    places = " > ".join(f"{name}:{number}" for _, number, name in _frames(error)[-6:])
    return f"{type(error).__name__}: {error}\nat {places}"


def _frames(error: BaseException) -> list[tuple[str, int, str]]:
    frames, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    return frames


def _place(error: BaseException) -> str:
    """The function that raised."""
    return _frames(error)[-1][2]


def _line(error: BaseException) -> str:
    """The line that raised."""
    file, number, _ = _frames(error)[-1]
    return linecache.getline(file, number).strip()
