"""Measures the scheduler: `python tests/benchmarks/control_plane.py`.

Prints events per second of CPU time through the whole scheduler, for each batching and size. Only `Scheduler.handle` is
timed; the answers of the world are made between the timed stretches and shuffled by a seeded generator, so that prompts
race and groups fill in a random order. The last line of each batching compares the cost of an event in the largest
batch with that in the smallest, which has 64 times fewer requests: it should stay near 1; what it grows by is Python's
garbage collector and the processor's caches. The goal is 100,000 per second.
"""

from __future__ import annotations

import random
import time
from fractions import Fraction
from typing import Literal

from rollpacker.core.commands import Abort, Command, DrawPrompts, Launch, ScoreResponse
from rollpacker.core.events import (
    EngineJoined,
    Event,
    PromptsDrawn,
    ResponseAborted,
    ResponseFinished,
    RewardComputed,
    StepStarted,
)
from rollpacker.core.ids import Domain, EngineId, PromptId
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import SchedulerSettings

DOMAINS = (Domain("math"), Domain("code"), Domain("judge"))
NUM_ENGINES = 64
"""One engine per two GPUs of a 128-GPU cluster."""
SIZES = ((128, 8), (1024, 16), (4096, 16))
MIN_EVENTS = 150_000


class Rollouts:
    """Runs steps that never go wrong, and times the scheduler in them."""

    def __init__(self, batching: Literal["plain", "tail"], num_prompts: int, num_responses: int) -> None:
        self.scheduler = Scheduler(
            SchedulerSettings(
                batching=batching,
                num_prompts=num_prompts,
                num_responses=num_responses,
                eta_prompts=Fraction(5, 4),
                eta_responses=Fraction(5, 4),
                overlap_rewards=True,
                domain_weights=tuple((domain, Fraction(1)) for domain in DOMAINS),
            )
        )
        self.generator = random.Random(0)
        self.num_drawn = 0
        self.num_events = 0
        self.elapsed_s = 0.0
        for number in range(NUM_ENGINES):
            self.scheduler.handle(EngineJoined(engine=EngineId(f"engine-{number}")), 0.0)

    def run_step(self, step: int) -> None:
        pending: list[Event] = [StepStarted(step=step, policy_version=step)]
        commands: list[Command] = []
        while pending:
            commands = []
            start_s = time.process_time()
            for event in pending:
                commands += self.scheduler.handle(event, 0.0)
            self.elapsed_s += time.process_time() - start_s
            self.num_events += len(pending)
            pending = [answer for command in commands if (answer := self.answer(command, step))]
            self.generator.shuffle(pending)
        if self.scheduler.snapshot()["router"]["in_flight"]:
            raise RuntimeError(f"Step {step} did not end.")

    def answer(self, command: Command, step: int) -> Event | None:
        match command:
            case DrawPrompts(domain=domain, num_prompts=num_prompts):
                numbers = range(self.num_drawn, self.num_drawn + num_prompts)
                self.num_drawn += num_prompts
                prompts = tuple(PromptId(0, f"prompt-{number}") for number in numbers)
                return PromptsDrawn(domain=domain, prompts=prompts, is_exhausted=False)
            case Launch(request=request, engine=engine):
                return ResponseFinished(request=request, engine=engine, num_tokens=1, policy_version=step)
            case Abort(request=request, engine=engine):
                return ResponseAborted(request=request, engine=engine, num_tokens=1)
            case ScoreResponse(request=request):
                return RewardComputed(request=request, reward=1.0)
            case _:
                return None

    def events_per_second(self) -> float:
        step = 0
        while self.num_events < MIN_EVENTS:
            self.run_step(step)
            step += 1
        return self.num_events / self.elapsed_s


def main() -> None:
    batchings: tuple[Literal["plain", "tail"], ...] = ("plain", "tail")
    for batching in batchings:
        rates = []
        for num_prompts, num_responses in SIZES:
            rates.append(Rollouts(batching, num_prompts, num_responses).events_per_second())
            print(f"{batching:5} {num_prompts:5} prompts x {num_responses:2} responses: {rates[-1]:9,.0f} events/s")
        growth = rates[0] / rates[-1]
        print(f"{batching:5} cost of an event at {SIZES[-1][0]} prompts against {SIZES[0][0]}: {growth:.2f} x")


if __name__ == "__main__":
    main()
