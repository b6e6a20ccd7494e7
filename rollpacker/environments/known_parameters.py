"""Calls of the `reset` of an environment, whichever parameters it takes."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from rollpacker.config.python_names import UnusableFunction, parameters_of
from rollpacker.protocols.environment import EnvironmentReset

_KNOWN = tuple(each.name for each in dataclasses.fields(EnvironmentReset))


def taking_known(reset: Callable[..., Any]) -> Callable[..., Any]:
    """Let a `reset` be called with more than it takes: GEM's has a `seed` alone, gymnasium's `options` too.

    One with **kwargs, mostly a wrapper, gets these two.

    Raises:
        UnusableFunction: It has a parameter without a default that nothing is given for.
    """
    try:
        parameters_of(reset, _KNOWN)
    except UnusableFunction as error:
        raise UnusableFunction(f"its reset cannot be called: {error}") from error
    parameters = inspect.signature(reset).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    taken = {*parameters, *(("seed", "options") if takes_any else ())}
    return lambda **given: reset(**{name: each for name, each in given.items() if name in taken})
