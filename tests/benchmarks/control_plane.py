"""Events per second through the whole scheduler on one core.

    python tests/benchmarks/control_plane.py

Each line runs some steps of one batching and size. Only `Scheduler.handle` is timed; the answers of the world are made
between the timed stretches, shuffled by a seeded generator, so that prompts race and groups fill in a random order.
Every finish, abort and reward is one event. The last lines compare the cost of an event in a large batch with that in
a small one: it should not grow with the number of requests (some growth is the processor's caches).
"""

from __future__ import annotations

import random
import time
from fractions import Fraction

from rollpacker.core.commands import Abort, Command, DrawPrompts, EndRound, Launch, ScoreResponse
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


def events_per_second(batching: str, num_prompts: int, num_responses: int) -> float:
    """Run steps until enough events have passed, and divide."""
    settings = SchedulerSettings(
        batching="tail" if batching == "tail" else "plain",
        num_prompts=num_prompts,
        num_responses=num_responses,
        eta_prompts=Fraction(5, 4),
        eta_responses=Fraction(5, 4),
        overlap_rewards=True,
        domain_weights=tuple((domain, Fraction(1)) for domain in DOMAINS),
    )
    scheduler = Scheduler(settings)
    rng = random.Random(0)
    num_drawn = 0
    num_events = 0
    elapsed_s = 0.0
    step = 0
    for number in range(NUM_ENGINES):
        scheduler.handle(EngineJoined(engine=EngineId(f"engine-{number}")), 0.0)
    while num_events < MIN_EVENTS:
        pending: list[Event] = [StepStarted(step=step, policy_version=step)]
        has_ended = False
        while pending:
            commands: list[Command] = []
            start_s = time.perf_counter()
            for event in pending:
                commands += scheduler.handle(event, 0.0)
            elapsed_s += time.perf_counter() - start_s
            num_events += len(pending)
            pending = []
            for command in commands:
                match command:
                    case DrawPrompts():
                        numbers = range(num_drawn, num_drawn + command.num_prompts)
                        num_drawn += command.num_prompts
                        prompts = tuple(PromptId(0, f"prompt-{number}") for number in numbers)
                        pending.append(PromptsDrawn(domain=command.domain, prompts=prompts, is_exhausted=False))
                    case Launch(request=request, engine=engine):
                        pending.append(
                            ResponseFinished(request=request, engine=engine, num_tokens=1, policy_version=step)
                        )
                    case Abort(request=request, engine=engine):
                        pending.append(ResponseAborted(request=request, engine=engine, num_tokens=1))
                    case ScoreResponse(request=request):
                        pending.append(RewardComputed(request=request, reward=1.0))
                    case EndRound():
                        has_ended = True
                    case _:
                        pass
            rng.shuffle(pending)
        if not has_ended:
            raise RuntimeError(f"Step {step} did not end.")
        step += 1
    return num_events / elapsed_s


def main() -> None:
    for batching in ("plain", "tail"):
        rates = {}
        for num_prompts, num_responses in SIZES:
            rate = events_per_second(batching, num_prompts, num_responses)
            rates[num_prompts] = rate
            print(f"{batching:5} {num_prompts:5} prompts x {num_responses:2} responses: {rate:9,.0f} events/s")
        smallest, largest = SIZES[0][0], SIZES[-1][0]
        print(f"{batching:5} cost of an event at {largest} prompts against {smallest}: {rates[smallest] / rates[largest]:.2f} x")


if __name__ == "__main__":
    main()
