"""The scheduler's work for an event does not grow with the round, the line of waiting requests, or the fleet.

Work is counted in bytecode instructions: no other load on the machine changes their number. What they leave out, the
time within one instruction, is the least of several times.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from rollpacker.core.commands import Command
from rollpacker.core.environments import Environments
from rollpacker.core.events import Event
from rollpacker.core.filling import Filling
from rollpacker.core.ids import EngineId, PromptId, RequestId
from tests.benchmarks.control_plane import TURNS, Batching, Rollouts

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


def least_s(call: Callable[[], object]) -> float:
    """The shortest CPU time of five calls, in seconds."""
    times = []
    for _ in range(5):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return min(times)


def requests(number: int) -> list[RequestId]:
    return [RequestId(0, PromptId(0, f"q{index}"), 0) for index in range(number)]


def test_an_event_costs_no_more_when_many_trajectories_were_queued() -> None:
    def events_s(num_queued: int) -> float:
        environments = Environments(TURNS)
        environments.start(requests(num_queued))
        environments.act(0.0)
        return least_s(lambda: [environments.act(0.0) for _ in range(100)])

    assert events_s(50_000) < 5 * events_s(1)


def test_a_held_out_request_is_launched_at_no_more_cost_when_many_were_before_it() -> None:
    def launch_s(num_waiting: int) -> float:
        filling, waiting = Filling(), requests(num_waiting)

        def launch_all() -> None:
            filling.begin(waiting)
            filling.fill({EngineId("engine-0"): num_waiting})
            filling.lose(EngineId("engine-0"))

        return least_s(launch_all) / num_waiting

    assert launch_s(60_000) < 5 * launch_s(200)
