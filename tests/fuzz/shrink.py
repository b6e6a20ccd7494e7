"""Makes failures small: fewer faults, prompts, engines and steps; then, if the machines alone fail, fewer events.

Invariant: what comes out breaks the same rule as what went in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from tests.fuzz.replays import Told, rule_broken_by, save_events, save_world, without_each
from tests.fuzz.scratch import scratch_folder
from tests.fuzz.session import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fuzz.session import Violation
    from tests.fuzz.world import World

MOST_TRIALS = 400
"""Worlds that are tried to make one smaller; at some 0.1 s each it takes less than a minute."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """A failure that is as small as we could make it."""

    world: World
    violation: Violation
    told: Told | None
    """What makes a scheduler alone fail; None when it takes the driver."""

    def save(self, folder: Path) -> tuple[Path, ...]:
        """Write replay tests; gives their files."""
        name, seed, rule = f"seed-{self.world.seed:06d}", self.world.seed, self.violation.rule
        files = [folder / f"{name}.json"]
        save_world(self.world, files[0], rule=rule, seed=seed)
        if self.told is not None:
            files.append(folder / f"{name}.jsonl")
            save_events(self.told, files[1], rule=rule, seed=seed)
        return tuple(files)


def shrink(world: World, violation: Violation) -> Shrunk:
    """Make a failure smaller, as long as it breaks the same rule."""
    num_trials = 0
    has_shrunk = True
    while has_shrunk and num_trials < MOST_TRIALS:
        has_shrunk = False
        for smaller in _smaller_worlds(world):
            num_trials += 1
            found = violation_of(smaller)
            if found is not None and found.rule == violation.rule:
                world, violation, has_shrunk = smaller, found, True
                break
            if num_trials >= MOST_TRIALS:
                break
    return Shrunk(world=world, violation=violation, told=_shrink_events(violation))


def violation_of(world: World) -> Violation | None:
    """Run a world, and forget everything but what did not hold."""
    with scratch_folder() as folder:
        return run_world(world, folder).violation


def _smaller_worlds(world: World) -> Iterator[World]:
    """Worlds with one thing less, those that lack most first."""
    for keep in without_each(world.faults):
        yield replace(world, faults=tuple(world.faults[index] for index in keep))
    simpler = [
        replace(world, held_out=()),
        replace(world, evaluate="alone"),
        replace(world, length_history=False),
        replace(world, escalates=False),
        replace(world, planner=False, escalates=False),
        replace(world, switch="sleep"),
        replace(world, draft_acceptance=None),
        replace(world, stream=False),
        replace(world, reward="async"),
        replace(world, tensor_parallel=1),
        *([] if world.num_epochs is None else [replace(world, num_epochs=1)]),
        replace(world, max_restarts=0),
        replace(world, num_responses=_FEWEST_RESPONSES),
        replace(world, eta_prompts=1.0),
        replace(world, eta_responses=1.0),
        replace(world, checkpoint_every_steps=min(1, world.checkpoint_every_steps)),
        *(replace(world, num_engines=num_engines) for num_engines in _fewer(world.num_engines)),
    ]
    if len(world.num_keys) > 1:
        simpler.append(replace(world, num_keys=world.num_keys[:-1], weights=world.weights[:-1]))
    for index, num_keys in enumerate(world.num_keys):
        before, after = world.num_keys[:index], world.num_keys[index + 1 :]
        simpler += [replace(world, num_keys=(*before, fewer, *after)) for fewer in _fewer(num_keys)]
    if world.num_epochs is None:
        simpler += [replace(world, num_steps=num_steps) for num_steps in _fewer(world.num_steps)]
    if world.num_prompts > sum(world.weights):
        simpler.append(replace(world, num_prompts=world.num_prompts - 1))
    yield from (each for each in simpler if each != world)


_FEWEST_RESPONSES = 2
"""A group of one has no advantage, and the schema refuses it."""


def _fewer(number: int) -> list[int]:
    """Smaller numbers from 1, the smallest first."""
    return sorted({1, number // 2, number - 1} - {0, number})


def _shrink_events(violation: Violation) -> Told | None:
    """Find few events that make a scheduler alone break the same rule."""
    history = violation.history
    if history is None:
        return None
    told = Told(settings=history.settings, events=tuple(history.events))
    if rule_broken_by(told) != violation.rule:
        return None

    def still_fails(events: list[tuple[float, object]]) -> bool:
        return rule_broken_by(replace(told, events=tuple(events))) == violation.rule  # type: ignore[arg-type]

    return replace(told, events=tuple(shortest(list(told.events), still_fails)))  # type: ignore[arg-type]


def shortest(items: list[Item], still_fails: Callable[[list[Item]], bool]) -> list[Item]:
    """Leave out as many items as possible: first from the end, then everywhere (delta debugging).

    Args:
        items: What fails as a whole.
        still_fails: Whether some of the items, in their order, fail too.
    """
    low, high = 0, len(items)
    while low < high:  # failures of a prefix are failures of every longer one, so that bisection finds the first
        middle = (low + high) // 2
        low, high = (low, middle) if still_fails(items[:middle]) else (middle + 1, high)
    if still_fails(items[:high]):
        items = items[:high]
    has_shrunk = True
    while has_shrunk:
        has_shrunk = False
        for keep in without_each(items):
            fewer = [items[index] for index in keep]
            if still_fails(fewer):
                items, has_shrunk = fewer, True
                break
    return items
