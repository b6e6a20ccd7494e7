"""The scheduler's work for an event does not grow with the round, the line of waiting requests, or the fleet.

Work is counted in bytecode instructions: no other load on the machine changes their number.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from rollpacker.core.commands import Command
from rollpacker.core.events import Event
from tests.benchmarks.control_plane import Batching, Rollouts

MOST_GROWTH = 1.4
"""With 8 times as many prompts or engines: sorting engines once a step is part of it."""


class CountedRollouts(Rollouts):
    """Counts the instructions of the scheduler."""

    num_instructions = 0

    def tell(self, events: list[Event]) -> list[Command]:
        before = sys.gettrace()
        sys.settrace(self.trace)
        try:
            return super().tell(events)
        finally:
            sys.settrace(before)

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        self.num_instructions += event == "opcode"
        return self.trace


def work(batching: Batching, num_prompts: int, num_engines: int) -> float:
    """Instructions per event of a step."""
    rollouts = CountedRollouts(batching, num_prompts, num_responses=4, num_engines=num_engines)
    rollouts.num_instructions = rollouts.num_events = 0
    rollouts.run_step(0)
    return rollouts.num_instructions / rollouts.num_events


@pytest.mark.parametrize("batching", ["dynamic", "elastic"])
def test_an_event_of_a_larger_round_costs_no_more(batching: Batching) -> None:
    small, large = (work(batching, num_prompts, num_engines=2) for num_prompts in (64, 512))
    assert large < MOST_GROWTH * small


@pytest.mark.parametrize("batching", ["elastic", "turns"])
def test_an_event_in_a_larger_fleet_costs_no_more(batching: Batching) -> None:
    small, large = (work(batching, 64, num_engines) for num_engines in (4, 32))
    assert large < MOST_GROWTH * small
