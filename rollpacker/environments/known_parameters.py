"""Calls of the `reset` of an environment, whichever parameters it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def taking_known(reset: Callable[..., Any]) -> Callable[..., Any]:
    """Let a `reset` be called with more than it takes: GEM's has a `seed` alone, gymnasium's `options` too.

    One with **kwargs, mostly a wrapper, gets these two.
    """
    parameters = inspect.signature(reset).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    taken = {*parameters, *(("seed", "options") if takes_any else ())}
    return lambda **given: reset(**{name: each for name, each in given.items() if name in taken})
