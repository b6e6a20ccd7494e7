"""A random world around one scheduler of an asynchronous run: the trainer updates, and generation goes on around it.

    python -m tests.fuzz.async_world NUM_WORLDS

Between two steps facts go on for a while; then the policy is updated, engines give back what they have, slowly, unless
it finishes first; they get the new weights one by one, with an evaluation after it now and then; and the next step
starts. Or engines keep what they have, and go on with it as soon as they have the weights. All that can go wrong in
other worlds goes wrong here too, also while engines are suspended. Without bound and lead a scheduler of plain batching
hears the same facts and must decide the same.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rollpacker.core.commands import BeginRound, Command, Evict, Launch, RoundKind
from rollpacker.core.events import (
    EngineJoined,
    EngineLost,
    EngineUpdated,
    EvaluationOffered,
    Event,
    PolicyUpdated,
    PromptsDrawn,
    ResponseAborted,
    ResponseEvicted,
    ResponseFinished,
    RewardComputed,
    StepStarted,
)
from rollpacker.core.ids import EngineId, PromptId, RequestId, VersionSpan
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import (
    AsyncSettings,
    DynamicSamplingSettings,
    EvaluationSettings,
    HeldOutSet,
    SchedulerSettings,
    StreamSettings,
)
from tests.fuzz.oracle.asynchronous import AsynchronousModel
from tests.fuzz.scheduler_world import Scenario, SchedulerWorld, scenarios

ENDLESS = 1000
"""Steps: more than a world makes."""


def async_scenarios(*, is_dynamic: bool = False) -> st.SearchStrategy[Scenario]:
    return scenarios(batching="plain", is_dynamic=is_dynamic).map(with_lead)


def with_lead(scenario: Scenario) -> Scenario:
    """The world with prompts admitted ahead of its trainer."""
    rng = random.Random(scenario.seed)
    before = scenario.settings
    bound = rng.choice([0, 1, 1, 2, 3, 4])
    num_steps = scenario.num_steps + bound
    rules = AsyncSettings(
        max_staleness=bound,
        lookahead=Fraction(rng.choice([0, rng.randint(0, 4 * bound), rng.randint(0, 4 * bound), 4 * bound]), 4),
        num_steps=rng.choice([num_steps, ENDLESS]),
        order=rng.choice(["ready", "ready", "fifo"]),
        interrupt=rng.choice(["recompute", "keep"]),
    )
    held_out = HeldOutSet(name="new", keys=("1", "2"), num_samples=rng.randint(1, 2))
    evaluation = EvaluationSettings(sets=(held_out,), every_steps=rng.randint(1, 2), at_start=True, at_end=False)
    sampling = before.dynamic_sampling
    return replace(
        scenario,
        num_steps=num_steps,
        settings=replace(
            before,
            overlap_rewards=True,
            parallelism=None,
            stream=rng.choice([None, StreamSettings(replicas=(), max_response_tokens=100)]),
            evaluation=rng.choice([None, evaluation]),
            dynamic_sampling=sampling and DynamicSamplingSettings(max_launch_factor=sampling.max_launch_factor),
            asynchronous=rules,
        ),
    )


class AsyncWorld(SchedulerWorld):
    """Everything that the scheduler of an asynchronous run cannot see but through events."""

    def __init__(self, scenario: Scenario) -> None:
        rules = scenario.settings.asynchronous
        assert rules is not None
        self.rules = rules
        self.plain = Scheduler(as_plain(scenario.settings)) if is_plain(scenario.settings) else None
        """Hears the same."""
        self.leaving: list[tuple[EngineId, RequestId]] = []
        """What engines were told to give back, and have not."""
        self.kept: dict[RequestId, tuple[VersionSpan, ...]] = {}
        """Tokens of requests that engines have given back."""
        super().__init__(scenario)

    # The run

    def run(self) -> AsynchronousModel:
        last = min(self.rules.num_steps, ENDLESS if self.scenario.num_epochs is not None else self.scenario.num_steps)
        while not self.is_over and self.step < last:
            self.run_step()
        for _ in range(3):
            self.repeat_fact()
        if self.reference.has_ended:
            self.require_everything()
        elif not self.is_over and last == self.rules.num_steps:
            assert not self.reference.live, "more was admitted than the run's steps train"
        return self.reference

    @property
    def is_over(self) -> bool:
        return self.reference.has_ended or self.reference.has_given_up

    def run_step(self) -> None:
        if self.step:
            self.train()
            self.suspend()
            self.hand_over()
        self.evaluate()
        self.is_resting = False
        self.tell(StepStarted(step=self.step, policy_version=self.version))
        while not self.is_resting:
            self.tick()
        self.step += 1

    def train(self) -> None:
        """The trainer learns, and what is under way goes on."""
        for report in self.measured_drafts() if self.settings.speculative_decoding else ():
            self.tell(report)
        if self.rng.random() < 0.9:
            self.tell(self.measured_round())
        for _ in range(self.rng.choice([0, self.rng.randrange(20), self.rng.randrange(200)])):
            if self.running or self.inbox:
                self.tick()

    def suspend(self) -> None:
        """The trainer has learned: engines give back what they have, or keep it."""
        self.version += self.rng.randint(1, 2)
        are_emptied = self.rng.random() < 0.2
        self.tell(PolicyUpdated(step=self.step - 1, policy_version=self.version, empties_engines=are_emptied))
        is_kept = self.reference.is_kept
        if is_kept and self.rng.random() < self.scenario.trouble:
            self.replace_scheduler()
        while not is_kept and (self.leaving or not all(map(self.reference.engines.is_empty, self.engines))):
            is_empty = all(map(self.reference.engines.is_empty, self.engines))
            if self.rng.random() < self.scenario.trouble and not is_empty:
                for version in (self.version, self.reference.version):
                    self.expect_impossible(StepStarted(step=self.step, policy_version=version))
                    self.expect_impossible(EvaluationOffered(step=self.step, policy_version=version, is_last=False))
            self.tick()
            self.update_engine(self.rng.choice(self.engines) if self.engines else None)

    def hand_over(self) -> None:
        """Give every engine the new weights, in any order; some join, die or restart on the way."""
        while (stale := self.stale_engines()) or self.goes_on():
            if stale and self.rng.random() < self.scenario.trouble:
                self.expect_impossible(StepStarted(step=self.step, policy_version=self.version))
            if not stale or (self.inbox and self.rng.random() < 0.3):
                self.tick()
            else:
                self.update_engine(self.rng.choice(stale))
        if self.rng.random() < self.scenario.trouble:
            while self.engines:
                self.lose_engine(can_restart=False)

    def stale_engines(self) -> list[EngineId]:
        return [each for each in self.engines if self.reference.engines.versions[each] != self.version]

    def goes_on(self) -> bool:
        """Whether something happens before the next step where engines keep what they have."""
        return bool(self.reference.is_kept and (self.running or self.inbox) and self.rng.random() < 0.8)

    def update_engine(self, engine: EngineId | None) -> None:
        if engine in self.engines and (self.reference.is_kept or self.reference.engines.is_empty(engine)):
            for holder, request in [each for each in self.running if each[0] == engine]:
                num_tokens, version = self.rng.randrange(20), self.running[holder, request]
                if num_tokens:
                    self.kept[request] = extended(self.kept.get(request, ()), version, num_tokens)
                self.running[holder, request] = self.version
            self.tell(EngineUpdated(engine=engine, policy_version=self.version))
        elif engine in self.engines and self.reference.engines.loads[engine]:
            self.expect_impossible(EngineUpdated(engine=engine, policy_version=self.version))

    def evaluate(self) -> None:
        if self.settings.evaluation and self.rng.random() < 0.8:
            self.tell(EvaluationOffered(step=self.step, policy_version=self.version, is_last=False))
            while self.reference.evaluation.is_open:
                self.tick()

    def tick(self) -> None:
        if self.leaving and self.rng.random() < 0.3:
            self.give_back(*self.leaving[self.rng.randrange(len(self.leaving))])
        else:
            super().tick()

    # Told

    def tell(self, event: Event) -> tuple[Command, ...]:
        if isinstance(event, EngineJoined):  # what its process of before had to say is lost with it
            self.inbox = [
                each for each in self.inbox if not (isinstance(each, ResponseEvicted) and each.engine == event.engine)
            ]
        expected = self.plain.handle(event, 0.0) if self.plain and not isinstance(event, PolicyUpdated) else ()
        commands = super().tell(event)
        if self.plain:
            alike = tuple(map(with_plain_kind, commands))
            assert alike == expected, f"without bound and lead it is no plain batching: {alike}, not {expected}"
        if isinstance(event, PolicyUpdated | EvaluationOffered):
            self.told.remove(event)
        return commands

    def repeat_fact(self) -> None:
        """Tell a fact again; an eviction until its request is launched again, since then it would be another's."""
        if self.told:
            event = self.rng.choice(self.told[-50:])
            is_news = isinstance(event, ResponseEvicted) and not self.reference.is_late(event)
            if not is_news:
                self.tell(event)

    # Commands

    def order_engine(self, command: Command) -> None:
        name = (command.engine, command.request)
        if not isinstance(command, Evict):
            super().order_engine(command)
            if isinstance(command, Launch) and name in self.running:
                self.running[name] = self.reference.engines.versions[command.engine]
        elif name in self.running:
            self.leaving.append(name)

    def give_back(self, engine: EngineId, request: RequestId) -> None:
        """Evict what was told to leave; its tokens go on with it."""
        version = self.running.pop((engine, request))
        self.leaving.remove((engine, request))
        num_tokens = self.rng.randrange(20)
        if num_tokens:
            self.kept[request] = extended(self.kept.get(request, ()), version, num_tokens)
        self.inbox.append(ResponseEvicted(request=request, engine=engine, num_tokens=num_tokens))

    def finish(self, engine: EngineId, request: RequestId) -> None:
        version = self.running.pop((engine, request))
        if (engine, request) in self.leaving:
            self.leaving.remove((engine, request))
        spans = extended(self.kept.get(request, ()), version, self.rng.randint(1, 99))
        num_tokens = sum(span.num_tokens for span in spans)
        self.inbox.append(ResponseFinished(request=request, engine=engine, num_tokens=num_tokens, spans=spans))

    # Engines

    def start_engine(self, engine: EngineId, gpus: tuple[int, ...]) -> None:
        """Start one; while others are suspended it may hold the policy before."""
        self.engines.append(engine)
        self.gpus[engine] = gpus
        versions = [self.version]
        if self.reference.is_suspended and not self.reference.evaluation.is_open:
            versions.append(self.reference.version)
        self.tell(EngineJoined(engine=engine, policy_version=self.rng.choice(versions), gpus=gpus))

    # What cannot be

    def impossible_events(self) -> Iterator[Event]:
        model, some_engine, nobody = self.reference, self.engines[0], EngineId("engine-of-nobody")
        stranger = PromptId(0, "stranger")
        yield EngineLost(engine=nobody)
        if self.step != model.step + 1 or model.evaluation.is_open:
            yield StepStarted(step=model.step + 1, policy_version=self.version)
        yield StepStarted(step=model.step + 2, policy_version=self.version)
        yield PolicyUpdated(step=model.step + 1, policy_version=self.version + 1)
        if model.round or model.is_preparing or model.is_suspended:
            yield PolicyUpdated(step=model.step, policy_version=self.version + 1)
        yield from (
            PromptsDrawn(domain=domain, prompts=(stranger,), is_exhausted=False)
            for domain, _ in self.settings.domain_weights
            if domain not in model.awaited
        )
        for domain, asked in model.awaited.items():
            strangers = tuple(PromptId(0, f"stranger-{number}") for number in range(asked))
            yield PromptsDrawn(domain=domain, prompts=(*strangers, stranger), is_exhausted=True)
            yield PromptsDrawn(domain=domain, prompts=strangers[1:], is_exhausted=False)
            if model.live:
                yield PromptsDrawn(domain=domain, prompts=tuple(model.live)[:1], is_exhausted=True)
        yield from self._about(RequestId(model.step + 1, stranger, 0), some_engine)
        for group in list(model.live.values())[:2]:
            for sample in (-1, 99):
                yield from self._about(RequestId(group.birth, group.prompt, sample), some_engine)
            yield from self._about(RequestId(group.birth - 1, group.prompt, 0), some_engine)
        for request, holder in list(model.engines.holders.items())[:3]:
            yield from self._of_held(request, holder)

    def _of_held(self, request: RequestId, holder: EngineId) -> Iterator[Event]:
        model = self.reference
        birth = model.live[request.prompt].birth
        at_birth = min(version for version, step in model.step_of_version.items() if step == birth)
        yield RewardComputed(request=request, reward=1.0)
        yield ResponseAborted(request=request, engine=holder, num_tokens=0)
        if (holder, request) not in model.engines.leaving:
            yield ResponseEvicted(request=request, engine=holder, num_tokens=0)
        yield finished(request, holder, at_birth - 1)
        yield finished(request, holder, model.newest_version + 1)
        yield finished(request, EngineId("engine-of-nobody"), model.version)
        yield from (
            finished(request, engine, model.version)
            for engine in model.engines.loads
            if engine != holder and engine not in model.engines.fallen
        )

    def _about(self, request: RequestId, engine: EngineId) -> Iterator[Event]:
        yield finished(request, engine, self.reference.version)
        yield ResponseAborted(request=request, engine=engine, num_tokens=0)
        yield ResponseEvicted(request=request, engine=engine, num_tokens=0)
        yield RewardComputed(request=request, reward=1.0)


def finished(request: RequestId, engine: EngineId, version: int) -> ResponseFinished:
    return ResponseFinished(request=request, engine=engine, num_tokens=1, spans=(VersionSpan(version, 1),))


def extended(spans: tuple[VersionSpan, ...], version: int, num_tokens: int) -> tuple[VersionSpan, ...]:
    """Add tokens of a version to spans."""
    if spans and spans[-1].policy_version == version:
        return *spans[:-1], VersionSpan(version, spans[-1].num_tokens + num_tokens)
    return *spans, VersionSpan(version, num_tokens)


def is_plain(rules: SchedulerSettings) -> bool:
    """Whether plain batching decides the same."""
    ahead = rules.asynchronous
    return ahead is not None and ahead.max_staleness == 0 and ahead.order == "ready" and not rules.dynamic_sampling


def as_plain(rules: SchedulerSettings) -> SchedulerSettings:
    return replace(rules, asynchronous=None)


def with_plain_kind(command: Command) -> Command:
    return replace(command, kind=RoundKind.PLAIN) if isinstance(command, BeginRound) else command


def main(arguments: Sequence[str]) -> int:
    """Run so many worlds, half of them with dynamic sampling; the first that does not hold is shrunk and raised."""
    num_worlds, num_run, num_steps = int(arguments[0]), 0, 0
    for is_dynamic in (False, True):

        @settings(
            max_examples=num_worlds // 2,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(async_scenarios(is_dynamic=is_dynamic))
        def run(scenario: Scenario) -> None:
            nonlocal num_run, num_steps
            world = AsyncWorld(scenario)
            world.run()
            num_run, num_steps = num_run + 1, num_steps + world.step

        run()
    print(f"{num_run:,} asynchronous worlds, {num_steps:,} steps, no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
