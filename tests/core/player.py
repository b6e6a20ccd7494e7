"""Plays a scheduler by hand: each method tells one fact and gives the commands, for examples that read as a story."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from rollpacker.core.commands import Abort, AcceptGroup, BeginRound, Command, DrawPrompts, Evict, Launch, ScoreResponse
from rollpacker.core.events import (
    EngineJoined,
    EngineUpdated,
    Event,
    PolicyUpdated,
    PromptsDrawn,
    ResponseEvicted,
    ResponseFinished,
    RewardComputed,
    StepStarted,
)
from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId, VersionSpan
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import SchedulerSettings


def make_settings(**changes: Any) -> SchedulerSettings:
    """Give the settings of most examples: 4 prompts of one domain, 2 responses, half as many again launched."""
    values: dict[str, Any] = {
        "batching": "tail",
        "num_prompts": 4,
        "num_responses": 2,
        "eta_prompts": Fraction(3, 2),
        "eta_responses": Fraction(3, 2),
        "overlap_rewards": True,
        "domain_weights": ((Domain("math"), Fraction(1)),),
    }
    return SchedulerSettings(**{**values, **changes})


class Player:
    """One scheduler, and the data and engines that an example gives it."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        num_engines: int = 1,
        num_prompts: int | None = None,
        num_keys: int | None = None,
    ) -> None:
        self.settings = settings
        self.scheduler = Scheduler(settings)
        self.num_left = dict.fromkeys((domain for domain, _ in settings.domain_weights), num_prompts)
        """Prompts left per domain; None without end."""
        self.num_keys = num_keys
        """Prompts of each domain in an epoch; None: all are in the first."""
        self.num_drawn = dict.fromkeys(self.num_left, 0)
        self.engine_of: dict[RequestId, EngineId] = {}
        self.version = 0
        self.now = 0.0
        for number in range(num_engines):
            self.tell(EngineJoined(engine=EngineId(f"engine-{number}"), policy_version=self.version))

    def tell(self, event: Event) -> tuple[Command, ...]:
        """Tell one fact; before a step starts, every engine has its policy."""
        if isinstance(event, StepStarted):
            for engine in self.scheduler.engines:
                self.scheduler.handle(EngineUpdated(engine=engine, policy_version=event.policy_version), self.now)
        commands = self.scheduler.handle(event, self.now)
        self.scheduler.check()
        self.engine_of |= {command.request: command.engine for command in commands if isinstance(command, Launch)}
        return commands

    def start(self, step: int) -> tuple[Command, ...]:
        """Start a step, answer the draws, and give what follows the last one."""
        self.version = step + 1
        commands = self.tell(StepStarted(step=step, policy_version=self.version))
        while draws := [command for command in commands if isinstance(command, DrawPrompts)]:
            for draw in draws:
                commands = self.tell(self.answer(draw))
        return commands

    def resume(self, step: int) -> tuple[Command, ...]:
        """Start a step after an update; gives every command, those for what was suspended first."""
        self.version = step + 1
        return self.settle(self.tell(StepStarted(step=step, policy_version=self.version)))

    def settle(self, commands: tuple[Command, ...]) -> tuple[Command, ...]:
        """Answer the draws among some commands, and those that follow; gives them with all that followed."""
        for draw in [command for command in commands if isinstance(command, DrawPrompts)]:
            commands += self.settle(self.tell(self.answer(draw)))
        return commands

    def answer(self, draw: DrawPrompts) -> PromptsDrawn:
        left = self.num_left[draw.domain]
        num_prompts = draw.num_prompts if left is None else min(left, draw.num_prompts)
        if left is not None:
            self.num_left[draw.domain] = left - num_prompts
        first = self.num_drawn[draw.domain]
        self.num_drawn[draw.domain] += num_prompts
        return PromptsDrawn(
            domain=draw.domain,
            prompts=tuple(self.prompt_of(draw.domain, number) for number in range(first, first + num_prompts)),
            is_exhausted=num_prompts < draw.num_prompts,
        )

    def prompt_of(self, domain: Domain, number: int) -> PromptId:
        epoch, of_epoch = divmod(number, self.num_keys) if self.num_keys else (0, number)
        return PromptId(epoch, f"{domain}-{of_epoch}")

    def update(self, step: int) -> list[RequestId]:
        """The trainer has made a step's update: answer what is ordered back, and give it."""
        evicted = self.tell(PolicyUpdated(step=step, policy_version=step + 2))
        for order in evicted:
            assert isinstance(order, Evict)
            self.tell(ResponseEvicted(request=order.request, engine=order.engine, num_tokens=1))
        return [order.request for order in evicted if isinstance(order, Evict)]

    def finish(self, request: RequestId, num_tokens: int = 5) -> tuple[Command, ...]:
        spans = (VersionSpan(self.version, num_tokens),)
        engine = self.engine_of[request]
        return self.tell(ResponseFinished(request=request, engine=engine, num_tokens=num_tokens, spans=spans))

    def reward(self, request: RequestId) -> tuple[Command, ...]:
        return self.tell(RewardComputed(request=request, reward=1.0))

    def complete(self, round_number: int, key: str, *samples: int) -> tuple[Command, ...]:
        """Finish and score samples of one prompt; gives the commands of the last reward."""
        commands: tuple[Command, ...] = ()
        for sample in samples:
            request = RequestId(round_number, prompt(key), sample)
            assert ScoreResponse(request=request) in self.finish(request)
            commands = self.reward(request)
        return commands


def prompt(key: str) -> PromptId:
    return PromptId(0, key)


def begun(commands: tuple[Command, ...]) -> BeginRound:
    (begin,) = (command for command in commands if isinstance(command, BeginRound))
    return begin


def launched(commands: tuple[Command, ...]) -> list[str]:
    """The keys of the prompts that were launched, in order, each once."""
    return list(dict.fromkeys(command.request.prompt.key for command in commands if isinstance(command, Launch)))


def aborted(commands: tuple[Command, ...]) -> list[str]:
    """What was aborted, as `key#sample`."""
    return [
        f"{command.request.prompt.key}#{command.request.sample}" for command in commands if isinstance(command, Abort)
    ]


def accepted(commands: tuple[Command, ...]) -> list[str]:
    return [command.prompt.key for command in commands if isinstance(command, AcceptGroup)]
