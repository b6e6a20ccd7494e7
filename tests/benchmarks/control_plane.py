"""Measures the scheduler: `python -m tests.benchmarks.control_plane [CASE ...]`.

Prints events per second of CPU time through the whole scheduler, for each batching and size, without and with all the
other machines (`tail+`: 10 test cases per reward, half of the engines lent in each step), of asynchronous batching,
a batch ahead with a bound of 8, with engines that give back what is in flight at each update (`async`) or keep it
(`keep`), of tail batching that drops every second prompt and has half of a batch in flight (`dynamic`), of 32 workers
of two engines that come for each step, where most requests wait for room (`elastic`), and of trajectories of three
turns (`turns`).
Only `Scheduler.handle` is timed; the answers of the world are made between the timed stretches and shuffled by a seeded
generator, so that prompts race and groups fill in a random order. The last line of each batching compares the cost of
an event in the largest batch with that in the smallest, which has 64 times fewer requests: it should stay near 1; what
it grows by is Python's garbage collector and the processor's caches. The goal is 100,000 per second.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Mapping
from fractions import Fraction
from typing import Literal

from rollpacker.core.commands import (
    Abort,
    Command,
    DrawPrompts,
    EndRound,
    Evict,
    FetchPolicy,
    Launch,
    LendEngines,
    MeasureProgress,
    OpenEnvironment,
    ScoreResponse,
    StartMember,
    StepEnvironment,
)
from rollpacker.core.elastic_settings import BalanceSettings, ElasticSettings, SeedingSettings
from rollpacker.core.environment_events import EnvironmentStepped, TurnFinished
from rollpacker.core.events import (
    CaseRun,
    EngineJoined,
    EngineProgress,
    EngineStarted,
    EngineUpdated,
    Event,
    PolicyPublished,
    PolicyUpdated,
    ProgressMeasured,
    PromptsDrawn,
    ResponseAborted,
    ResponseEvicted,
    ResponseFinished,
    RewardComputed,
    RoundMeasured,
    RunningRequest,
    StepStarted,
    WorkerArrived,
)
from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId, VersionSpan, WorkerId
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import (
    AsyncSettings,
    DynamicSamplingSettings,
    EnvironmentSettings,
    ParallelismSettings,
    RewardBudgetSettings,
    SchedulerSettings,
    StreamSettings,
)

DOMAINS = (Domain("math"), Domain("code"), Domain("judge"))
NUM_ENGINES = 64
"""One engine per two GPUs of a 128-GPU cluster."""
NUM_TURNS = 3
SIZES = ((128, 8), (1024, 16), (4096, 16))
MIN_EVENTS = 150_000
RUNS = tuple(CaseRun(case, 0.1 * case, is_passed=True) for case in range(10))
ELASTIC = ElasticSettings(
    min_workers=0,
    max_workers=NUM_ENGINES,
    start_s=1.0,
    fetch_s=1.0,
    grace_s=1.0,
    least_stay_s=1.0,
    drain_lead_s=1.0,
    drain_margin_s=1.0,
    seeding=SeedingSettings(),
    balance=BalanceSettings(num_slots=32, max_pending=8),
)
TURNS = EnvironmentSettings(
    max_turns=NUM_TURNS,
    max_open=10**6,
    max_restarts=0,
    opening_timeout_s=1.0,
    reset_timeout_s=1.0,
    turn_timeout_s=1.0,
    episode_timeout_s=1.0,
)

Batching = Literal["plain", "tail", "async", "keep", "dynamic", "elastic", "turns"]


class Rollouts:
    """Runs steps that never go wrong, and times the scheduler in them."""

    def __init__(
        self,
        batching: Batching,
        num_prompts: int,
        num_responses: int,
        *,
        with_all: bool = False,
        num_engines: int = NUM_ENGINES,
    ) -> None:
        self.is_async = batching in {"async", "keep"}
        self.is_elastic = batching == "elastic"
        self.drops_prompts = batching == "dynamic"
        self.num_engines = num_engines
        self.scheduler = Scheduler(
            SchedulerSettings(
                batching="tail" if batching in {"tail", "dynamic"} else "plain",
                asynchronous=AsyncSettings(
                    max_staleness=8,
                    lookahead=Fraction(1),
                    num_steps=1000,
                    interrupt="keep" if batching == "keep" else "recompute",
                )
                if self.is_async
                else None,
                num_prompts=num_prompts,
                num_responses=num_responses,
                eta_prompts=Fraction(5, 4),
                eta_responses=Fraction(5, 4),
                overlap_rewards=True,
                domain_weights=tuple((domain, Fraction(1)) for domain in DOMAINS),
                reward_budget=RewardBudgetSettings() if with_all else None,
                parallelism=ParallelismSettings(degrees=(1,), initial=1) if with_all else None,
                stream=StreamSettings(
                    replicas=tuple((number, number + 1) for number in range(0, num_engines, 2)), max_response_tokens=9
                )
                if with_all or self.is_elastic
                else None,
                dynamic_sampling=DynamicSamplingSettings(max_active_requests=num_prompts * num_responses // 2)
                if self.drops_prompts
                else None,
                elastic=ELASTIC if self.is_elastic else None,
                environment=TURNS if batching == "turns" else None,
            )
        )
        self.stride = 500 if with_all or self.is_async else num_prompts * num_responses * 2
        """Answers told in one go; small enough that a measurement comes back while requests still run."""
        self.waiting: list[Event] = []
        """Answers that are not told yet."""
        self.running: dict[EngineId, dict[RequestId, None]] = {}
        self.leaving: set[RequestId] = set()
        self.num_turns: dict[RequestId, int] = {}
        """With environments: turns that each request has taken."""
        self.num_lendings = 0
        self.generator = random.Random(0)
        self.num_drawn = 0
        self.num_events = 0
        self.elapsed_s = 0.0
        for number in range(num_engines):
            self.scheduler.handle(
                EngineJoined(engine=EngineId(f"engine-{number}"), policy_version=0, gpus=(number,)), 0.0
            )
        if self.is_elastic:
            workers = [WorkerId(f"e0_{number}-r0") for number in range(num_engines // 2)]
            self.settle([WorkerArrived(worker=worker, num_engines=2) for worker in workers])

    def settle(self, events: list[Event]) -> None:
        """Tell some facts, and the answers to what follows from them."""
        while events:
            events = [answer for command in self.tell(events) if (answer := self.answer(command, 0))]

    def run_step(self, step: int) -> None:
        if self.is_async and step:
            self.update(step)
        if self.is_elastic:
            self.settle([PolicyPublished(policy_version=step)])
        pending: list[Event] = [
            EngineUpdated(engine=EngineId(f"engine-{number}"), policy_version=step)
            for number in range(self.num_engines)
        ]
        pending.append(StepStarted(step=step, policy_version=step))
        if step:
            pending.insert(0, RoundMeasured(round=step - 1, num_preemptions=1, rollout_time_s=1.0, num_tokens=1))
        has_ended = False
        while pending and not (self.is_async and has_ended):
            commands = self.tell(pending)
            has_ended |= any(isinstance(command, EndRound) for command in commands)
            self.leaving.update(command.request for command in commands if isinstance(command, Evict))
            self.num_lendings += sum(isinstance(command, LendEngines) for command in commands)
            answers = [answer for command in commands if (answer := self.answer(command, step))]
            measured = [answer for answer in answers if isinstance(answer, ProgressMeasured)]
            pending = self.waiting + [answer for answer in answers if not isinstance(answer, ProgressMeasured)]
            self.generator.shuffle(pending)
            self.waiting = pending[self.stride :]
            pending = measured + [self.overtaken(event) for event in pending[: self.stride]]
        self.waiting += pending
        if not has_ended or (not self.is_async and self.scheduler.snapshot()["router"]["in_flight"]):
            raise RuntimeError(f"Step {step} did not end.")

    def update(self, step: int) -> None:
        """Tell of the trainer's update, and what engines give back for it."""
        orders = self.tell([PolicyUpdated(step=step - 1, policy_version=step)])
        evictions = {order.request: order for order in orders if isinstance(order, Evict)}
        self.waiting = [
            event for event in self.waiting if not (isinstance(event, ResponseFinished) and event.request in evictions)
        ]
        answers: list[Event] = [
            ResponseEvicted(request=each.request, engine=each.engine, num_tokens=1) for each in evictions.values()
        ]
        self.tell(answers)

    def tell(self, events: list[Event]) -> list[Command]:
        """Tell some facts, and take the time."""
        commands: list[Command] = []
        start_s = time.process_time()
        for event in events:
            commands += self.scheduler.handle(event, 0.0)
        self.elapsed_s += time.process_time() - start_s
        self.num_events += len(events)
        return commands

    def answer(self, command: Command, step: int) -> Event | None:  # noqa: PLR0911 one case per command
        match command:
            case DrawPrompts(domain=domain, num_prompts=num_prompts):
                numbers = range(self.num_drawn, self.num_drawn + num_prompts)
                self.num_drawn += num_prompts
                prompts = tuple(PromptId(0, f"prompt-{number}") for number in numbers)
                return PromptsDrawn(domain=domain, prompts=prompts, is_exhausted=False)
            case Launch(request=request, engine=engine):
                self.running.setdefault(engine, {})[request] = None
                if self.num_turns.get(request, NUM_TURNS) < NUM_TURNS:
                    return TurnFinished(request=request, engine=engine, num_tokens=1, spans=(VersionSpan(step, 1),))
                return ResponseFinished(request=request, engine=engine, num_tokens=1, spans=(VersionSpan(step, 1),))
            case Abort(request=request, engine=engine):
                return ResponseAborted(request=request, engine=engine, num_tokens=1)
            case ScoreResponse(request=request):
                _, _, number = request.prompt.key.partition("-")
                has_failed = self.drops_prompts and int(number) % 2 and request.sample % 2
                return RewardComputed(request=request, reward=0.0 if has_failed else 1.0, case_runs=RUNS)
            case OpenEnvironment(request=request, call=call) | StepEnvironment(request=request, call=call):
                self.num_turns[request] = num_turns = self.num_turns.get(request, -1) + 1
                is_done = num_turns == NUM_TURNS
                return EnvironmentStepped(request=request, call=call, num_tokens_left=9, is_done=is_done)
            case StartMember(engine=engine):
                return EngineStarted(engine=engine)
            case FetchPolicy(engine=engine, policy_version=policy_version):
                return EngineUpdated(engine=engine, policy_version=policy_version)
            case MeasureProgress():
                return self.measure(step)
            case _:
                return None

    def overtaken(self, event: Event) -> Event:
        """What becomes of a finish whose request was told to leave before."""
        if isinstance(event, ResponseFinished | TurnFinished):
            self.running[event.engine].pop(event.request, None)
            if event.request in self.leaving:
                self.leaving.remove(event.request)
                return ResponseEvicted(request=event.request, engine=event.engine, num_tokens=1)
        return event

    def measure(self, step: int) -> ProgressMeasured:
        return ProgressMeasured(
            round=step,
            engines=tuple(
                EngineProgress(
                    EngineId(f"engine-{number}"),
                    10**9,
                    tuple(RunningRequest(request, 9, 0) for request in self.running[EngineId(f"engine-{number}")]),
                )
                for number in range(self.num_engines)
            ),
        )

    def events_per_second(self) -> float:
        step = 0
        while self.num_events < MIN_EVENTS:
            self.run_step(step)
            step += 1
        return self.num_events / self.elapsed_s


CASES: Mapping[str, tuple[Batching, bool]] = {
    "plain": ("plain", False),
    "tail": ("tail", False),
    "tail+": ("tail", True),
    "async": ("async", False),
    "keep": ("keep", False),
    "dynamic": ("dynamic", False),
    "elastic": ("elastic", False),
    "turns": ("turns", False),
}
"""What decides which responses make a batch, and whether all other machines work, too."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", metavar="CASE", nargs="*", help=", ".join(CASES))
    cases = parser.parse_args().cases or [*CASES]
    if unknown := [name for name in cases if name not in CASES]:
        parser.error(f"There is no case {unknown[0]!r}; cases are {', '.join(CASES)}.")
    for name in cases:
        batching, with_all = CASES[name]
        rates = []
        for num_prompts, num_responses in SIZES:
            rollouts = Rollouts(batching, num_prompts, num_responses, with_all=with_all)
            rates.append(rollouts.events_per_second())
            if with_all and not rollouts.num_lendings:
                raise RuntimeError("No engine was ever lent.")
            print(f"{name:8} {num_prompts:5} prompts x {num_responses:2} responses: {rates[-1]:9,.0f} events/s")
        growth = rates[0] / rates[-1]
        print(f"{name:8} cost of an event at {SIZES[-1][0]} prompts against {SIZES[0][0]}: {growth:.2f} x")


if __name__ == "__main__":
    main()
