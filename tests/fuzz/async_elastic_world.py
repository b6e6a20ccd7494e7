"""A random world around one scheduler of an asynchronous run whose workers come and go.

    python -m tests.fuzz.async_elastic_world NUM_WORLDS

The trainer updates while generation goes on around it, on engines of the run's own and on workers: between two steps
facts go on for a while, then everything leaves its engine with its tokens, or stays on engines of the run's own, which
keep it; workers fetch the new policy in their own time, and what was in flight on them leaves. Whatever becomes of the
workers, every step ends, no token is older than the bound, and no request is lost or in flight twice.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from fractions import Fraction

from rollpacker.core.commands import AcceptGroup, Command, ScoreResponse
from rollpacker.core.events import (
    EngineUpdated,
    Event,
    PolicyPublished,
    PolicyUpdated,
    ResponseAborted,
    ResponseEvicted,
    ResponseFinished,
    StepStarted,
)
from rollpacker.core.ids import EngineId, RequestId, VersionSpan
from rollpacker.core.settings import AsyncSettings, SchedulerSettings
from tests.fuzz.async_world import extended
from tests.fuzz.elastic_world import MOST_TICKS, QUIET_TICKS, ElasticWorld, run_worlds

NUM_STEPS = 6


class AsyncElasticWorld(ElasticWorld):
    """Everything that the scheduler of an asynchronous run with workers cannot see but through events."""

    def __init__(self, seed: int, *, has_workers: bool = True) -> None:
        self.ahead = random.Random(f"ahead {seed}")
        """Draws what has to do with updates under way."""
        bound = self.ahead.choice([0, 1, 1, 2, 3])
        self.rules = AsyncSettings(
            max_staleness=bound,
            lookahead=Fraction(self.ahead.randint(0, 4 * bound), 4),
            num_steps=NUM_STEPS,
            order=self.ahead.choice(["ready", "ready", "fifo"]),
            interrupt=self.ahead.choice(["recompute", "keep"]),
        )
        self.kept: dict[RequestId, tuple[VersionSpan, ...]] = {}
        """Tokens of requests that have left an engine, or gone on under another policy."""
        self.spans: dict[RequestId, tuple[VersionSpan, ...]] = {}
        """Of responses that are scored."""
        super().__init__(seed, has_workers=has_workers)

    def adapted(self, settings: SchedulerSettings) -> SchedulerSettings:
        """The trainer has GPUs of its own, so nothing is lent."""
        assert settings.elastic is not None
        elastic = replace(settings.elastic, seeding=None)
        return replace(settings, batching="plain", stream=None, asynchronous=self.rules, elastic=elastic)

    # The run

    def run(self) -> None:
        for self.step in range(NUM_STEPS):
            if self.step:
                self.train()
                self.update()
            else:
                self.publish()
            self.is_resting = False
            self.tell(StepStarted(step=self.step, policy_version=self.version))
            self.play()
            if self.rng.random() < 0.9:
                self.tell(self.measured())
        assert len(set(self.trained)) == len(self.trained), "a prompt was trained twice"
        assert not self.running, "more was admitted than the run's steps train"
        assert not self.scheduler.waiting, "something waits that no step trains"

    def train(self) -> None:
        """The trainer learns, and what is under way goes on."""
        for tick in range(self.ahead.choice([0, 5, 60])):
            self.tick(is_quiet=tick > QUIET_TICKS)

    def update(self) -> None:
        """The trainer has learned: requests leave their engines, unless these keep them."""
        self.is_resting = True
        are_emptied = self.ahead.random() < 0.2
        self.tell(PolicyUpdated(step=self.step - 1, policy_version=self.version + 1, empties_engines=are_emptied))
        for tick in range(MOST_TICKS):
            if self.scheduler.keeps_requests or not self.is_any_owed:
                break
            self.tick(is_quiet=tick > QUIET_TICKS)
        else:
            raise AssertionError("engines were never empty")
        self.publish()

    @property
    def is_any_owed(self) -> bool:
        """Whether an engine has yet to give something back."""
        answers = ResponseEvicted | ResponseAborted | ResponseFinished
        return bool(self.running) or any(isinstance(each, answers) for each in self.inbox)

    def publish(self) -> None:
        """Offer the policy to workers, and give it to the run's own engines one by one."""
        self.version += 1
        self.tell(PolicyPublished(policy_version=self.version))
        for name in self.model.workers:
            self.forget(name)
        for engine in self.local:
            for holder, request in [each for each in self.running if each[0] == engine]:
                self.keep(request, self.running[holder, request], self.ahead.randrange(4))
                self.running[holder, request] = self.version
            self.tell(EngineUpdated(engine=engine, policy_version=self.version))
            for _ in range(self.ahead.choice([0, 0, 3])):
                self.tick(is_quiet=False)

    # Told and ordered

    def tell(self, event: Event) -> tuple[Command, ...]:
        commands = super().tell(event)
        for command in commands:
            match command:
                case ScoreResponse(request=request) if isinstance(event, ResponseFinished):
                    self.spans[request] = event.spans
                case AcceptGroup():
                    self.check_age(command)
        return commands

    def check_age(self, accepted: AcceptGroup) -> None:
        """Every token of a batch is at most as many policy versions old as the bound says."""
        requests = [RequestId(accepted.round, accepted.prompt, sample) for sample in accepted.samples]
        oldest = min(span.policy_version for request in requests for span in self.spans[request])
        of_step = self.step + 1
        assert of_step - oldest <= self.rules.max_staleness, f"{accepted.prompt} is too old: {oldest} in {of_step}"

    def keep(self, request: RequestId, version: int, num_tokens: int) -> None:
        if num_tokens:
            self.kept[request] = extended(self.kept.get(request, ()), version, num_tokens)

    def give_back(self, answer: ResponseAborted | ResponseEvicted) -> None:
        if self.rng.random() < 0.2:
            self.finish(answer.engine, answer.request)
            return
        self.keep(answer.request, self.running.pop((answer.engine, answer.request)), answer.num_tokens)
        self.inbox.append(answer)

    def finish(self, engine: EngineId, request: RequestId) -> None:
        spans = extended(self.kept.get(request, ()), self.running.pop((engine, request)), 3)
        num_tokens = sum(span.num_tokens for span in spans)
        self.inbox.append(ResponseFinished(request=request, engine=engine, num_tokens=num_tokens, spans=spans))


if __name__ == "__main__":
    sys.exit(run_worlds(lambda seed, has_workers: AsyncElasticWorld(seed, has_workers=has_workers), sys.argv[1:]))
