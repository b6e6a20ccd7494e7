"""Puts one deliberate bug into the package, and runs the worlds that must find it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from rollpacker.core.errors import InternalError
from rollpacker.core.scheduler import Scheduler
from tests.core.plans import run_plans
from tests.fuzz.async_elastic_world import AsyncElasticWorld
from tests.fuzz.async_world import AsyncWorld, async_scenarios
from tests.fuzz.elastic_world import ElasticWorld
from tests.fuzz.scheduler_world import Scenario, SchedulerWorld, scenarios, with_escalation, with_history
from tests.fuzz.scratch import scratch_folder
from tests.fuzz.session import Violation, run_world
from tests.fuzz.world import draw_world

NUM_SCENARIOS = 128
"""In the sample of each kind of scheduler worlds."""


class Worlds(StrEnum):
    """Where a bug shows."""

    TAIL = "a scheduler with tail batching"
    HISTORY = "a scheduler with a length history"
    SAMPLING = "a scheduler with dynamic sampling"
    LENDING = "a scheduler that lends engines"
    LENDING_AND_SAMPLING = "a scheduler that lends engines and drops prompts"
    ESCALATING = "a scheduler whose larger engines finish rounds"
    AHEAD = "a scheduler that admits prompts ahead of the trainer"
    AHEAD_AND_SAMPLING = "a scheduler that admits prompts ahead of the trainer, and drops some"
    ELASTIC = "a scheduler whose workers come and go"
    AHEAD_AND_ELASTIC = "a scheduler that admits prompts ahead of the trainer, and whose workers come and go"
    PLANS = "a planner and many rounds"
    RUNS = "whole modelled runs with faults"


Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One thing that is wrong."""

    name: str
    patch: Patch
    worlds: Worlds
    first: int = 0
    """Seed of the run, or number of the scenario, that finds it: there the search begins, so that it is short."""


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


def is_found(bug: Bug, *, num_worlds: int = 20) -> bool:
    """Run worlds until one shows the bug."""
    sample = scheduler_worlds(bug.worlds)  # drawn before the bug is there
    with with_bug(bug):
        if bug.worlds is Worlds.RUNS:
            return first_failure(range(bug.first, bug.first + num_worlds)) is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Scheduler, "check", lambda _: None)  # so that it is found from outside
            try:
                run_schedulers(bug.worlds, (*sample[bug.first :], *sample[: bug.first]))
            except (AssertionError, InternalError):
                return True
    return False


def run_schedulers(worlds: Worlds, sample: Sequence[Scenario | int]) -> None:
    """Run scheduler worlds of one kind; plans are always the same."""
    if worlds is Worlds.PLANS:
        run_plans()
    for scenario in sample:
        if isinstance(scenario, int):
            world = AsyncElasticWorld if worlds is Worlds.AHEAD_AND_ELASTIC else ElasticWorld
            world(scenario, has_workers=scenario % 5 != 0).run()
            continue
        (AsyncWorld if scenario.settings.asynchronous else SchedulerWorld)(scenario).run()


@functools.cache
def scheduler_worlds(worlds: Worlds) -> tuple[Scenario | int, ...]:
    """A fixed sample of scheduler worlds of one kind, small ones first, since a bug mostly shows in one of them.

    Drawn once in a process; elastic worlds are made from their seeds, and runs and plans are no such worlds.
    """
    if worlds in {Worlds.ELASTIC, Worlds.AHEAD_AND_ELASTIC}:
        return tuple(range(NUM_SCENARIOS))
    if worlds in {Worlds.RUNS, Worlds.PLANS}:
        return ()
    is_dynamic = worlds in {Worlds.SAMPLING, Worlds.LENDING_AND_SAMPLING, Worlds.AHEAD_AND_SAMPLING}
    has_stream = worlds in {Worlds.LENDING, Worlds.LENDING_AND_SAMPLING, Worlds.ESCALATING}
    kinds = (
        async_scenarios(is_dynamic=is_dynamic)
        if worlds in {Worlds.AHEAD, Worlds.AHEAD_AND_SAMPLING}
        else scenarios(batching="tail", is_dynamic=is_dynamic, has_stream=has_stream)
    )
    drawn: list[Scenario] = []

    @settings(
        max_examples=NUM_SCENARIOS,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(kinds)
    def keep(scenario: Scenario) -> None:
        drawn.append(scenario)

    keep()
    if worlds is Worlds.HISTORY:
        drawn = list(map(with_history, drawn))
    if worlds is Worlds.ESCALATING:
        drawn = [with_escalation(_without_race(scenario)) for scenario in drawn]
    return tuple(sorted(drawn, key=_num_responses))


def _without_race(scenario: Scenario) -> Scenario:
    """Of every other world plain rounds, whose end is that of all their responses."""
    batching: Literal["plain", "tail"] = "plain" if scenario.seed % 2 else "tail"
    return replace(scenario, settings=replace(scenario.settings, batching=batching))


def _num_responses(scenario: Scenario) -> int:
    """About how many responses a world generates."""
    settings = scenario.settings
    in_data = None if scenario.num_epochs is None else sum(scenario.num_keys) * scenario.num_epochs
    return settings.num_responses * (in_data or settings.num_prompts * scenario.num_steps)


def first_failure(seeds: range) -> tuple[int, Violation] | None:
    """Run the modelled runs of some seeds until one does not hold."""
    for seed in seeds:
        with scratch_folder() as folder:
            violation = run_world(draw_world(seed), folder).violation
        if violation is not None:
            return seed, violation
    return None
