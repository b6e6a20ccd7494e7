"""A small random world around one scheduler: it answers every command, in random order, and some things go wrong.

Finishes and rewards arrive in any order that is possible; aborts lose their race; messages come twice or a round too
late; engines die with or without last words and come back; the scheduler is replaced by its own snapshot, through JSON;
impossible events are tried on it. A second scheduler hears the same facts and is never replaced: both must always give
the same commands.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from hypothesis import strategies as st

from rollpacker.core.commands import Abort, Command, DrawPrompts, EndRound, EndRun, Launch, ScoreResponse
from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.events import (
    EngineJoined,
    EngineLost,
    Event,
    PromptsDrawn,
    ResponseAborted,
    ResponseFinished,
    RewardComputed,
    StepStarted,
)
from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import SchedulerSettings
from tests.core.judge import Judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that decides what happens in a world."""

    settings: SchedulerSettings
    num_keys: tuple[int, ...]
    """Prompts per epoch, for each domain."""
    num_epochs: int | None
    """None: the data never ends."""
    num_steps: int
    """Where a world stops whose data never ends."""
    num_engines: int
    trouble: float
    """Chance per tick of each thing that can go wrong; 0 is a world without trouble."""
    seed: int


@st.composite
def scenarios(draw: st.DrawFn, batching: str | None = None) -> Scenario:
    num_domains = draw(st.integers(1, 3))
    domains = tuple(Domain(name) for name in ("math", "code", "judge")[:num_domains])
    weights = draw(st.tuples(*[st.integers(1, 3)] * num_domains))
    batching = batching or draw(st.sampled_from(["tail", "tail", "plain"]))
    etas = st.sampled_from([Fraction(1), Fraction(9, 8), Fraction(5, 4), Fraction(3, 2), Fraction(2)])
    settings = SchedulerSettings(
        batching="tail" if batching == "tail" else "plain",
        num_prompts=draw(st.integers(sum(weights), 8 + sum(weights))),
        num_responses=draw(st.integers(1, 4)),
        eta_prompts=draw(etas),
        eta_responses=draw(etas),
        overlap_rewards=batching == "tail" or draw(st.booleans()),
        domain_weights=tuple(zip(domains, map(Fraction, weights), strict=True)),
    )
    return Scenario(
        settings=settings,
        num_keys=draw(st.tuples(*[st.integers(1, 30)] * num_domains)),
        num_epochs=draw(st.sampled_from([None, 1, 2, 3])),
        num_steps=draw(st.integers(1, 8)),
        num_engines=draw(st.integers(1, 4)),
        trouble=draw(st.sampled_from([0.0, 0.02, 0.1])),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


class World:
    """Everything that a scheduler cannot see but through events."""

    def __init__(self, scenario: Scenario, scheduler_class: type[Scheduler] = Scheduler) -> None:
        self.scenario = scenario
        self.settings = scenario.settings
        self.rng = random.Random(scenario.seed)
        self.scheduler = scheduler_class(self.settings)
        self.untouched = scheduler_class(self.settings)
        self.judge = Judge(self.settings)
        self.digest = hashlib.sha256()
        self.step = 0
        self.version = 0
        self.is_resting = True
        self.engines: list[EngineId] = []
        self.running: dict[tuple[EngineId, RequestId], int] = {}
        """What engines generate, with the policy version that they do it by."""
        self.inbox: list[Event] = []
        """Facts on their way."""
        self.told: list[Event] = []
        """Facts that may come a second time."""
        self.num_engines_ever = 0
        self.num_drawn: dict[Domain, int] = {domain: 0 for domain, _ in self.settings.domain_weights}
        for _ in range(scenario.num_engines):
            self.join_engine()

    # The run

    def run(self) -> Judge:
        while not self.judge.has_ended and (
            self.scenario.num_epochs is not None or self.step < self.scenario.num_steps
        ):
            self.run_step()
        if self.scenario.num_epochs is not None:
            everything = {
                PromptId(epoch, f"{domain}-{key}")
                for (domain, _), num_keys in zip(self.settings.domain_weights, self.scenario.num_keys, strict=True)
                for epoch in range(self.scenario.num_epochs)
                for key in range(num_keys)
            }
            assert sorted(self.judge.trained) == sorted(everything), "not every prompt was trained exactly once"
        return self.judge

    def run_step(self) -> None:
        self.version += self.rng.randint(1, 2)
        self.is_resting = False
        self.tell(StepStarted(step=self.step, policy_version=self.version))
        while not self.is_resting:
            self.tick()
        self.step += 1

    def tick(self) -> None:
        """Let one thing happen."""
        if self.rng.random() < self.scenario.trouble:
            self.rng.choice(
                [self.lose_engine, self.join_engine, self.repeat_fact, self.replace_scheduler, self.try_the_impossible]
            )()
        elif self.running and (not self.inbox or self.rng.random() < 0.5):
            self.finish(*self.rng.choice(list(self.running)))
        elif self.inbox:
            self.tell(self.inbox.pop(self.rng.randrange(len(self.inbox))))
        else:
            raise AssertionError("nothing is on its way, and the step has not ended")

    def tell(self, event: Event) -> None:
        is_late = self.judge.is_late(event)
        before = self.scheduler.snapshot() if is_late else None
        commands = self.scheduler.handle(event, 0.0)
        assert commands == self.untouched.handle(event, 0.0), "a restored scheduler decided otherwise"
        self.scheduler.check()
        if is_late:
            assert self.scheduler.snapshot() == before, f"a late fact changed something: {event}"
        self.digest.update(f"{event}{commands}".encode())
        self.judge.note(event, commands)
        if isinstance(event, ResponseFinished | RewardComputed | ResponseAborted):
            self.told.append(event)
        for command in commands:
            self.carry_out(command)

    # Commands

    def carry_out(self, command: Command) -> None:
        match command:
            case DrawPrompts():
                self.inbox.append(self.draw(command))
            case Launch(request=request, engine=engine):
                if engine in self.engines:
                    self.running[engine, request] = self.version
            case Abort(request=request, engine=engine):
                if (engine, request) in self.running:
                    self.abort(engine, request)
            case ScoreResponse(request=request):
                self.inbox.append(RewardComputed(request=request, reward=float(self.rng.random() < 0.5)))
            case EndRound() | EndRun():
                self.is_resting = True
            case _:
                pass

    def draw(self, command: DrawPrompts) -> PromptsDrawn:
        order = [domain for domain, _ in self.settings.domain_weights].index(command.domain)
        num_keys = self.scenario.num_keys[order]
        first = self.num_drawn[command.domain]
        last = first + command.num_prompts
        is_exhausted = False
        if self.scenario.num_epochs is not None:
            end = num_keys * self.scenario.num_epochs
            looks_ahead = self.scenario.seed % 2 == 0  # whether the last full draw already says that it was the last
            is_exhausted = last >= end if looks_ahead else last > end
            last = min(last, end)
        self.num_drawn[command.domain] = last
        prompts = tuple(
            PromptId(number // num_keys, f"{command.domain}-{number % num_keys}") for number in range(first, last)
        )
        return PromptsDrawn(domain=command.domain, prompts=prompts, is_exhausted=is_exhausted)

    def finish(self, engine: EngineId, request: RequestId) -> None:
        version = self.running.pop((engine, request))
        self.inbox.append(
            ResponseFinished(request=request, engine=engine, num_tokens=self.rng.randint(1, 99), policy_version=version)
        )

    def abort(self, engine: EngineId, request: RequestId) -> None:
        if self.rng.random() < 0.3:
            self.finish(engine, request)
        else:
            del self.running[engine, request]
            self.inbox.append(ResponseAborted(request=request, engine=engine, num_tokens=7))

    # Trouble

    def join_engine(self) -> None:
        self.num_engines_ever += 1
        engine = EngineId(f"engine-{self.num_engines_ever}")
        self.engines.append(engine)
        self.tell(EngineJoined(engine=engine))

    def lose_engine(self) -> None:
        """End an engine, or restart it; some of its finishes may be on their way, and some facts beat the news."""
        if len(self.engines) == 1:
            return
        engine = self.rng.choice(self.engines)
        for held_by, request in list(self.running):
            if held_by == engine:
                self.finish(engine, request)
                if self.rng.random() < 0.7:
                    self.inbox.pop()
        if self.rng.random() < 0.3:
            self.tell(EngineJoined(engine=engine))
        else:
            self.engines.remove(engine)
            self.tell(EngineLost(engine=engine))
            self.inbox.append(EngineLost(engine=engine))

    def repeat_fact(self) -> None:
        if self.told:
            self.tell(self.rng.choice(self.told[-50:]))

    def replace_scheduler(self) -> None:
        snapshot = self.scheduler.snapshot()
        text = json.dumps(snapshot, sort_keys=True)
        assert json.loads(text) == snapshot
        self.scheduler = type(self.scheduler).restore(self.settings, json.loads(text))
        assert self.scheduler.snapshot() == snapshot

    def try_the_impossible(self) -> None:
        for event in self.impossible_events():
            before = self.scheduler.snapshot()
            try:
                self.scheduler.handle(event, 0.0)
            except ImpossibleEvent:
                pass
            else:
                raise AssertionError(f"an impossible event was taken: {event}")
            assert self.scheduler.snapshot() == before, f"an impossible event changed something: {event}"

    def impossible_events(self) -> Iterator[Event]:
        """What cannot happen at this very moment."""
        some_engine = self.engines[0]
        nobody = EngineId("engine-of-nobody")
        stranger = PromptId(0, "stranger")
        yield EngineLost(engine=nobody)
        yield StepStarted(step=self.step + 1, policy_version=self.version)
        yield StepStarted(step=self.step, policy_version=self.version)  # only asked while a step is under way
        yield from (
            PromptsDrawn(domain=domain, prompts=(stranger,), is_exhausted=False)
            for domain, _ in self.settings.domain_weights
            if domain not in self.judge.awaited
        )
        for domain, asked in self.judge.awaited.items():
            strangers = tuple(PromptId(0, f"stranger-{number}") for number in range(asked))
            yield PromptsDrawn(domain=domain, prompts=(*strangers, stranger), is_exhausted=True)
            yield PromptsDrawn(domain=domain, prompts=strangers[1:], is_exhausted=False)
            if asked > 1:
                yield PromptsDrawn(domain=domain, prompts=(stranger, stranger), is_exhausted=True)
            if self.judge.long_queue:
                yield PromptsDrawn(domain=domain, prompts=tuple(self.judge.long_queue[:1]), is_exhausted=True)
        yield from self.impossible_about(RequestId(self.step + 1, stranger, 0), some_engine)
        if self.judge.round is None:
            return
        yield from self.impossible_about(RequestId(self.step, stranger, 0), some_engine)
        launched = next(iter(self.judge.launched))
        yield from self.impossible_about(RequestId(self.step, launched, 99), some_engine)
        yield from self.impossible_about(RequestId(self.step, launched, -1), some_engine)
        for request, holder in list(self.judge.holders.items())[:3]:
            yield RewardComputed(request=request, reward=1.0)
            yield ResponseAborted(request=request, engine=holder, num_tokens=0)
            yield finished(request, holder, self.version + 1)
            yield finished(request, holder, self.version - 1)
            yield finished(request, nobody, self.version)
            yield from (
                finished(request, engine, self.version)
                for engine in self.judge.loads
                if engine != holder and engine not in self.judge.fallen
            )
        if not self.settings.overlap_rewards and self.judge.holders:
            yield from (RewardComputed(request=request, reward=1.0) for request in sorted(self.judge.finished)[:1])

    def impossible_about(self, request: RequestId, engine: EngineId) -> Iterator[Event]:
        yield finished(request, engine, self.version)
        yield ResponseAborted(request=request, engine=engine, num_tokens=0)
        yield RewardComputed(request=request, reward=1.0)


def finished(request: RequestId, engine: EngineId, version: int) -> ResponseFinished:
    return ResponseFinished(request=request, engine=engine, num_tokens=1, policy_version=version)
