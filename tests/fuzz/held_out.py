"""What a world without faults trains, with and without evaluations: batches that nothing held out may change.

    python -m tests.fuzz.held_out FIRST:END

Of responses that end at one moment, such as those that reach the longest length, the rounding of the modelled clock
decides which is first, and a step that begins later is rounded otherwise. So batches are the same if each step trains
the same prompts with samples of the same tokens and rewards. Of the worlds 0 to 999 three take another one of several
such samples, or take such prompts in another order: 217, 342 and 979.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollpacker import pipeline
from rollpacker.core.commands import AcceptGroup, EndRound
from rollpacker.core.errors import DataError
from rollpacker.core.events import ResponseFinished, RewardComputed, StepStarted
from rollpacker.core.ids import RequestId, is_held_out
from rollpacker.sim.backend import ModelledBackend
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.fuzz.scratch import scratch_folder
from tests.fuzz.world import World, can_fill, config_of, draw_world, with_evaluations, write_prompts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rollpacker.core.commands import Command
    from rollpacker.core.events import Event
    from rollpacker.core.scheduler import Scheduler
    from rollpacker.core.settings import SchedulerSettings
    from rollpacker.runtime.rollout.listeners import OnEvent

Batches = list[tuple[Any, ...]]
"""Of each step: the policy version, then each prompt with the tokens and the reward of each of its samples, sorted."""


class _Notes:
    """Listens to a run."""

    def __init__(self) -> None:
        self.batches: Batches = []
        self.num_held_out = 0
        self._version = -1
        self._tokens: dict[RequestId, int] = {}
        self._rewards: dict[RequestId, float] = {}
        self._samples: dict[Any, Sequence[int]] = {}

    def watch(self, _scheduler: Scheduler, _settings: SchedulerSettings, _first_step: int) -> OnEvent:
        return self._note

    def _note(self, event: Event, _now: float, commands: tuple[Command, ...]) -> None:
        match event:
            case StepStarted():
                self._version = event.policy_version
            case ResponseFinished():
                self._tokens[event.request] = event.num_tokens
            case RewardComputed():
                self._rewards[event.request] = event.reward
                self.num_held_out += is_held_out(event.request)
            case _:
                pass
        for command in commands:
            if isinstance(command, AcceptGroup):
                self._samples[command.prompt] = command.samples
            elif isinstance(command, EndRound):
                groups = sorted(self._group(command.round, each) for each in command.prompts)
                self.batches.append((self._version, *groups))

    def _group(self, number: int, prompt: Any) -> tuple[Any, ...]:
        requests = [RequestId(number, prompt, sample) for sample in self._samples[prompt]]
        return prompt, tuple(sorted((self._tokens[each], self._rewards[each]) for each in requests))


def batches_of(world: World, folder: Path) -> tuple[Batches, int]:
    """Run a world; gives what it trained, and how many held-out responses it scored."""
    prompts = folder / "prompts.jsonl"
    write_prompts(world, prompts)
    config = config_of(world, folder / "run", prompts)
    notes = _Notes()
    try:
        run_in_virtual_time(pipeline.train(config, ModelledBackend(config), notes.watch))
    except DataError:
        notes.batches.append(("too few prompts differ",))
    return notes.batches, notes.num_held_out


def worlds_of(seed: int) -> tuple[World, World, World | None]:
    """The world of a seed without faults: with nothing held out, with evaluations alone, and with fill.

    None where no round can be filled. Without draft tokens: how many pay is learned from times, which an evaluation
    changes, so that in a later race others may end first.
    """
    world = replace(draw_world(seed), faults=(), held_out=(), draft_acceptance=None)
    evaluated = with_evaluations(world, random.Random(seed))
    filled = replace(evaluated, evaluate="fill") if can_fill(world) else None
    return world, replace(evaluated, evaluate="alone"), filled


def runs_of(seed: int) -> dict[str, tuple[Batches, int]]:
    """What `batches_of` gives of the world of a seed by each way of evaluating that it has, one of which is none."""
    result = {}
    for name, world in zip(("none", "alone", "fill"), worlds_of(seed), strict=True):
        if world is not None:
            with scratch_folder() as folder:
                result[name] = batches_of(world, folder)
    return result


def changed(runs: dict[str, tuple[Batches, int]]) -> dict[str, bool]:
    """Which ways of evaluating change what a world trains; ways that it does not have are left out."""
    return {way: batches != runs["none"][0] for way, (batches, _) in runs.items() if way != "none"}


def main(arguments: Sequence[str]) -> int:
    """Compare the worlds of some seeds, `FIRST:END`, and print which differ."""
    first, end = map(int, arguments[0].split(":"))
    counts: Counter[str] = Counter()
    for seed in range(first, end):
        for way, is_changed in changed(runs_of(seed)).items():
            counts[f"{way} {'differs' if is_changed else 'is the same'}"] += 1
            if is_changed:
                print(f"seed {seed}: {way} changes what is trained", flush=True)
    print(f"worlds {first} to {end - 1}: {dict(counts)}")
    return any(name.endswith("differs") for name in counts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
