"""Puts one deliberate bug into the package, and runs the worlds that must find it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from rollpacker.core.errors import InternalError
from rollpacker.core.scheduler import Scheduler
from tests.core.plans import run_plans
from tests.fuzz.scheduler_world import Scenario, SchedulerWorld, scenarios
from tests.fuzz.scratch import scratch_folder
from tests.fuzz.session import Violation, run_world
from tests.fuzz.world import draw_world

MOST_SCENARIOS = 400
"""That a bug may take to show; most take a few, and the first one that shows it ends the search."""


class Worlds(StrEnum):
    """Where a bug shows."""

    TAIL = "a scheduler with tail batching"
    SAMPLING = "a scheduler with dynamic sampling"
    LENDING = "a scheduler that lends engines"
    LENDING_AND_SAMPLING = "a scheduler that lends engines and drops prompts"
    PLANS = "a planner and many rounds"
    RUNS = "whole modelled runs with faults"


Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One thing that is wrong."""

    name: str
    patch: Patch
    worlds: Worlds
    first_seed: int = 0
    """Of runs, from which on a seed finds it soon."""


def around(owner: type, name: str, wrong: Callable[..., Any]) -> Patch:
    """Replace a method by `wrong(right, self, ...)`, where `right` is the method itself; also a class method."""

    def put_in(patch: pytest.MonkeyPatch) -> None:
        right = getattr(owner, name)
        if isinstance(owner.__dict__.get(name), classmethod):
            right = right.__func__

        @functools.wraps(right)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            return wrong(right, self, *args, **kwargs)

        is_class_method = isinstance(owner.__dict__.get(name), classmethod)
        patch.setattr(owner, name, classmethod(wrapped) if is_class_method else wrapped)

    return put_in


def instead(owner: type, name: str, wrong: Callable[[Any], Any]) -> Patch:
    """Replace a property."""
    return lambda patch: patch.setattr(owner, name, property(wrong))


def wherever(function: Callable[..., Any], wrong: Callable[..., Any]) -> Patch:
    """Replace a function in every module of the package that imported it by `wrong(right, ...)`."""

    def put_in(patch: pytest.MonkeyPatch) -> None:
        replacement = functools.partial(wrong, function)
        for module in [module for name, module in sys.modules.items() if name.startswith("rollpacker.")]:
            for name in [name for name, value in vars(module).items() if value is function]:
                patch.setattr(module, name, replacement)

    return put_in


def both(*patches: Patch) -> Patch:
    """Make several patches."""

    def put_in(patch: pytest.MonkeyPatch) -> None:
        for each in patches:
            each(patch)

    return put_in


@contextmanager
def with_bug(bug: Bug) -> Iterator[None]:
    """Have the bug in the package while the block runs."""
    with pytest.MonkeyPatch.context() as patch:
        bug.patch(patch)
        yield


def is_found(bug: Bug, *, num_seeds: int = 20) -> bool:
    """Run worlds until one shows the bug."""
    with with_bug(bug):
        if bug.worlds is Worlds.RUNS:
            return first_failure(range(bug.first_seed, bug.first_seed + num_seeds)) is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Scheduler, "check", lambda _: None)  # so that it is found from outside
            try:
                run_schedulers(bug.worlds)
            except (AssertionError, InternalError):
                return True
    return False


def run_schedulers(worlds: Worlds, *, num_scenarios: int = MOST_SCENARIOS) -> None:
    """Run the same fixed sample of scheduler worlds of one kind."""
    if worlds is Worlds.PLANS:
        run_plans(Scheduler)
        return
    is_dynamic = worlds in {Worlds.SAMPLING, Worlds.LENDING_AND_SAMPLING}
    has_stream = worlds in {Worlds.LENDING, Worlds.LENDING_AND_SAMPLING}

    @settings(
        max_examples=num_scenarios,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(scenarios(batching="tail", is_dynamic=is_dynamic, has_stream=has_stream))
    def every_world_is_in_order(scenario: Scenario) -> None:
        SchedulerWorld(scenario).run()

    every_world_is_in_order()


def first_failure(seeds: range) -> tuple[int, Violation] | None:
    """Run the modelled runs of some seeds until one does not hold."""
    for seed in seeds:
        with scratch_folder() as folder:
            violation = run_world(draw_world(seed), folder).violation
        if violation is not None:
            return seed, violation
    return None
