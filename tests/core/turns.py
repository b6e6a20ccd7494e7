"""A world of environments that fail in every way, around one scheduler; a function of its seed."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from typing import Any

from rollpacker.core.commands import (
    Abort,
    AcceptGroup,
    BeginEvaluation,
    CloseEnvironment,
    Command,
    DrawPrompts,
    DropPrompt,
    EndEvaluation,
    EndRound,
    EndRun,
    Evict,
    FailRun,
    Launch,
    OpenEnvironment,
    ScoreResponse,
    SetTimer,
    StepEnvironment,
)
from rollpacker.core.environment_events import EnvironmentBegan, EnvironmentFailed, EnvironmentStepped, TurnFinished
from rollpacker.core.events import (
    EngineJoined,
    EngineLost,
    EvaluationOffered,
    Event,
    PolicyUpdated,
    ResponseAborted,
    ResponseEvicted,
    RewardComputed,
    StepStarted,
    TimerFired,
)
from rollpacker.core.ids import ENVIRONMENT, EngineId, PromptId, RequestId, VersionSpan, is_held_out
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import (
    AsyncSettings,
    DynamicSamplingSettings,
    EnvironmentSettings,
    EvaluationSettings,
    HeldOutSet,
    SchedulerSettings,
)
from tests.core.player import Player, make_settings

RULES = EnvironmentSettings(
    max_turns=3,
    max_open=7,
    max_restarts=2,
    opening_timeout_s=10.0,
    reset_timeout_s=5.0,
    turn_timeout_s=3.0,
    episode_timeout_s=8.0,
)

NUM_STEPS = 3


def settings_of(numbers: random.Random) -> SchedulerSettings:
    """Draw one of the ways to batch."""
    changes: dict[str, Any] = {"environment": RULES, "num_prompts": 3}
    kind = numbers.choice(["plain", "batch", "tail", "sampling", "tail sampling", "async", "async sampling"])
    if "tail" not in kind:
        changes |= {"batching": "plain", "overlap_rewards": kind != "batch"}
    if "sampling" in kind:
        limit = None if "async" in kind else numbers.choice([None, 4])
        changes["dynamic_sampling"] = DynamicSamplingSettings(max_active_requests=limit, max_launch_factor=Fraction(20))
    if "async" in kind:
        order = numbers.choice(["any", "fifo"])
        changes["asynchronous"] = AsyncSettings(
            max_staleness=2, lookahead=Fraction(1), num_steps=NUM_STEPS, order=order
        )
    if numbers.random() < 0.5:
        held_out = HeldOutSet(name="unseen", keys=("a", "b"), num_samples=1)
        changes["evaluation"] = EvaluationSettings(sets=(held_out,), every_steps=1, at_start=True, at_end=True)
    return make_settings(**changes)


class TurnsWorld:
    """Engines, environments and a reward that do what is drawn.

    Args:
        seed: Of everything.
        failing: How likely an environment crashes, hangs or loses its answer.
    """

    def __init__(self, seed: int, failing: float = 0.15) -> None:
        self.numbers = random.Random(seed)
        self.player = Player(settings_of(self.numbers), num_engines=2, num_keys=40)
        self.failing = failing
        self.restores = True
        self.on_engine: dict[RequestId, EngineId] = {}
        self.orders_to_leave: list[Abort | Evict] = []
        self.calls: dict[RequestId, int] = {}
        """What environments are asked."""
        self.opening: set[RequestId] = set()
        """Of them, the resets that wait for a process."""
        self.stale: list[EnvironmentStepped] = []
        """Answers that may come again."""
        self.to_score: list[RequestId] = []
        self.timers: dict[str, float] = {}
        self.batch: EndRound | None = None
        self.is_over = False
        self.is_evaluating = False
        self.accepted: Counter[PromptId] = Counter()
        self.dropped: Counter[PromptId] = Counter()
        self.closed: Counter[str] = Counter()
        self.num_turns: Counter[RequestId] = Counter()

    def run(self) -> None:
        """Make all steps."""
        for step in range(NUM_STEPS):
            self._evaluate(step, is_last=False)
            self.batch = None
            self.player.version = step + 1
            self._tell(StepStarted(step=step, policy_version=step + 1))
            self._go_on_until(lambda: self.batch is not None or self.is_over)
            if self.is_over:
                return
            if self.player.settings.asynchronous:
                self._tell(PolicyUpdated(step=step, policy_version=step + 2))
            self._go_on_until(lambda: not self.on_engine)
        self.player.version = NUM_STEPS + 1

    def _evaluate(self, step: int, *, is_last: bool) -> None:
        if self.player.settings.evaluation is None:
            return
        self._tell(EvaluationOffered(step=step, policy_version=self.player.version, is_last=is_last))
        self._go_on_until(lambda: not self.is_evaluating)

    def _go_on_until(self, is_reached: Any) -> None:
        for _ in range(20_000):
            if is_reached():
                return
            self._happen()
        raise AssertionError(f"nothing ends: {self.on_engine}, {self.calls}, {self.to_score}, {self.timers}")

    def _happen(self) -> None:
        numbers = self.numbers
        self.player.now += numbers.expovariate(5.0)
        choices = [self._finish_turn] * bool(self.on_engine) * 3 + [self._answer] * bool(self.calls) * 3
        choices += [self._leave] * bool(self.orders_to_leave) * 3 + [self._score] * bool(self.to_score) * 3
        choices += [self._repeat] * bool(self.stale)
        if due := [name for name, at_s in self.timers.items() if at_s <= self.player.now]:
            del self.timers[due[0]]
            self._tell(TimerFired(timer=due[0]))
        elif choices:
            numbers.choice(choices)()
        elif self.timers:
            self.player.now = min(self.timers.values())
        if numbers.random() < 0.01:
            self._lose_engine()
        if numbers.random() < 0.02:
            self._restore()

    def _finish_turn(self) -> None:
        request = self.numbers.choice(list(self.on_engine))
        engine = self.on_engine.pop(request)
        self.orders_to_leave = [order for order in self.orders_to_leave if order.request != request]
        self.num_turns[request] += 1
        spans = (VersionSpan(ENVIRONMENT, 1), VersionSpan(self.player.version, 4))
        self._tell(TurnFinished(request=request, engine=engine, num_tokens=5, spans=spans))

    def _leave(self) -> None:
        order = self.orders_to_leave.pop(self.numbers.randrange(len(self.orders_to_leave)))
        if self.on_engine.get(order.request) == order.engine:
            del self.on_engine[order.request]
            kind = ResponseEvicted if isinstance(order, Evict) else ResponseAborted
            self.orders_to_leave = [each for each in self.orders_to_leave if each.request != order.request]
            self._tell(kind(request=order.request, engine=order.engine, num_tokens=1))

    def _answer(self) -> None:
        request = self.numbers.choice(list(self.calls))
        call = self.calls[request]
        if request in self.opening:
            self.opening.remove(request)
            if self.numbers.random() < 0.8:  # else it began at once, and nothing tells of that
                self._tell(EnvironmentBegan(request=request, call=call))
                return
        drawn = self.numbers.random()
        if drawn < self.failing / 2:
            del self.calls[request]
            self._tell(EnvironmentFailed(request=request, call=call, reason="environment_error"))
        elif drawn < self.failing:
            del self.calls[request]  # hangs, or the answer is lost: time will tell
        else:
            is_done = self.numbers.random() < (0.4 if self.num_turns[request] else 0.03)
            left = 0 if self.numbers.random() < 0.1 else 9
            answer = EnvironmentStepped(request=request, call=call, num_tokens_left=left, is_done=is_done)
            self.stale.append(answer)
            if self.numbers.random() < 0.9:
                del self.calls[request]  # else it comes twice
            self._tell(answer)

    def _repeat(self) -> None:
        self._tell(self.stale.pop(self.numbers.randrange(len(self.stale))))

    def _score(self) -> None:
        request = self.to_score.pop(self.numbers.randrange(len(self.to_score)))
        self._tell(RewardComputed(request=request, reward=float(self.numbers.randrange(2))))

    def _lose_engine(self) -> None:
        engine = EngineId(f"engine-{self.numbers.randrange(2)}")
        self.on_engine = {request: holder for request, holder in self.on_engine.items() if holder != engine}
        self.orders_to_leave = [order for order in self.orders_to_leave if order.engine != engine]
        self._tell(EngineLost(engine=engine))
        self._tell(EngineJoined(engine=engine, policy_version=self.player.version))

    def _restore(self) -> None:
        if not self.restores:
            return
        scheduler = self.player.scheduler
        self.player.scheduler = Scheduler.restore(self.player.settings, scheduler.snapshot())
        assert self.player.scheduler.snapshot() == scheduler.snapshot()

    def _tell(self, event: Event) -> None:
        commands = list(self.player.tell(event))
        for command in commands:
            self._carry_out(command, commands)
        of_kinds = Counter(is_held_out(request) for request in self.open_environments)
        assert all(number <= RULES.max_open for number in of_kinds.values())

    @property
    def open_environments(self) -> list[RequestId]:
        environments = self.player.scheduler.beside.environments
        assert environments is not None
        return [each for each, _ in environments.acting]

    def _carry_out(self, command: Command, commands: list[Command]) -> None:  # noqa: C901, PLR0912 one case per command
        match command:
            case DrawPrompts():
                commands += self.player.tell(self.player.answer(command))
            case Launch():
                assert command.request not in self.on_engine
                self.on_engine[command.request] = command.engine
            case Abort() | Evict():
                self.orders_to_leave.append(command)
            case OpenEnvironment() | StepEnvironment():
                assert command.request not in self.on_engine
                self.calls[command.request] = command.call
                if isinstance(command, OpenEnvironment):
                    self.opening.add(command.request)
            case CloseEnvironment():
                self.calls.pop(command.request, None)
                self.opening.discard(command.request)
                self.closed[command.reason] += 1
            case ScoreResponse():
                self.to_score.append(command.request)
            case SetTimer():
                self.timers[command.timer] = command.at_s
            case AcceptGroup():
                self.accepted[command.prompt] += 1
                assert len(command.samples) == self.player.settings.num_responses
                assert all(self.num_turns[RequestId(command.round, command.prompt, each)] for each in command.samples)
            case DropPrompt():
                self.dropped[command.prompt] += 1
            case BeginEvaluation():
                self.is_evaluating = True
            case EndEvaluation():
                self.is_evaluating = False
            case EndRound():
                self.batch = command
            case EndRun() | FailRun():
                self.is_over = True
            case _:
                pass

    def check(self) -> None:
        """Each prompt was trained or dropped, and once."""
        assert not [prompt for prompt, count in (self.accepted + self.dropped).items() if count > 1]
        assert not any(is_held_out(RequestId(0, prompt, 0)) for prompt in self.accepted + self.dropped)
