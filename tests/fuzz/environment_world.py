"""Small modelled runs whose environments fail in every way, while engines crash and the driver is killed.

    python -m tests.fuzz.environment_world NUM_WORLDS [FIRST_SEED]

Answers of environments come late, twice or never, and environments crash in a reset or a step, besides what the model
has of its own: stalls, and steps that never end. The driver, the scheduler and all else are the real ones. There is no
second model of the decisions. What must hold whatever is decided is checked: the scheduler's own invariants, after each
event; a scheduler restored from a snapshot gives the same commands; every prompt is trained or dropped exactly once per
epoch; what is trained was sampled, has the reward that its environment gave, and fits the limits; no more environments
are open than may be; nothing is left when the run has ended; and its log replays.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker import pipeline
from rollpacker.config.sections.modelled_environment import ModelledEnvironmentSection
from rollpacker.core.commands import Command, DropPrompt, FailRun
from rollpacker.core.errors import DataError, DeadlineExceeded, EngineFailed, RollpackerError
from rollpacker.core.events import Event, StepStarted
from rollpacker.core.ids import PromptId, RequestId, is_held_out, sampled
from rollpacker.core.scheduler import Scheduler
from rollpacker.metrics.tables import read_table
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.runtime.rollout.replay import replay
from rollpacker.sim.backend import ModelledBackend
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.fuzz.faults import Fault, FaultKind
from tests.fuzz.faulty_backend import FaultyBackend
from tests.fuzz.faulty_workers import WorkerObserver
from tests.fuzz.injector import FaultInjector
from tests.fuzz.invariants import EVENTS_PER_RESTORE, require
from tests.fuzz.scratch import scratch_folder
from tests.fuzz.world import DOMAINS, MOST_STEPS, World, config_of, draw_world, write_prompts

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.core.settings import SchedulerSettings
    from rollpacker.protocols.backend import Backend, BackendContext, Workers
    from rollpacker.protocols.environment import (
        EnvironmentAnswer,
        EnvironmentReset,
        EnvironmentService,
        EnvironmentTurn,
    )
    from rollpacker.protocols.rollout import RolloutGroup
    from rollpacker.runtime.rollout.listeners import OnEvent

MOST_EVENTS = 60_000
"""Far more than a world needs."""

FAULTS = frozenset(
    {
        FaultKind.ENGINE_CRASH,
        FaultKind.SLOW_ENGINE,
        FaultKind.LOST_ABORT,
        FaultKind.LATE_FINISH,
        FaultKind.DUPLICATE_FINISH,
        FaultKind.CLOCK_JUMP,
        FaultKind.DRIVER_KILL,
    }
)
"""Beside those of environments: none that ends an attempt for another reason than that engines are lost or slow."""

SLOW = frozenset({FaultKind.SLOW_ENGINE, FaultKind.LATE_FINISH, FaultKind.CLOCK_JUMP})
"""After which an engine may be waited for in vain."""


class FaultyEnvironments:
    """An environment service whose answers come late, twice or never, and whose environments crash."""

    def __init__(self, service: EnvironmentService, rng: random.Random, observer: Observer, max_open: int) -> None:
        self._service = service
        self._rng = rng
        self._observer = observer
        self._max_open = max_open
        self._open: set[RequestId] = set()
        self._arrivals: Arrivals[EnvironmentAnswer] = Arrivals()
        self._is_closed = False
        self._shares = {kind: rng.choice((0.0, 0.0, 0.05, 0.3)) for kind in ("late", "twice", "never", "crash")}

    def reset(self, request: RequestId, call: int, start: EnvironmentReset) -> None:
        self._open.add(request)
        num_open = sum(is_held_out(each) is is_held_out(request) for each in self._open)
        require(num_open <= self._max_open, "no more environments are open than may be")
        self._observer.begins(request, call)
        self._service.reset(request, call, start)

    def step(self, request: RequestId, call: int, turn: EnvironmentTurn) -> None:
        self._service.step(request, call, turn)

    def end(self, request: RequestId, *, has_hung: bool = False) -> None:
        self._open.discard(request)
        self._service.end(request, has_hung=has_hung)

    async def collect(self) -> Sequence[EnvironmentAnswer]:
        return await self._arrivals.collect()

    async def close(self) -> None:
        self._is_closed = True
        self._arrivals.close()
        await self._service.close()

    async def pump(self) -> None:
        """Pass on what environments answer, when it is to come."""
        loop = asyncio.get_running_loop()
        while not self._is_closed:
            for answer in await self._service.collect():
                if self._has("never"):
                    continue
                crashed = replace(answer, failure="environment_crashed", reward=0.0, is_terminated=False)
                given = crashed if self._has("crash") else answer
                delay_s = self._rng.choice((0.1, 5.0, 500.0)) * self._rng.random() if self._has("late") else 0.0
                loop.call_later(delay_s, self._deliver, given)
                if self._has("twice"):
                    loop.call_later(delay_s + self._rng.random(), self._deliver, given)

    def _has(self, kind: str) -> bool:
        return self._rng.random() < self._shares[kind]

    def _deliver(self, answer: EnvironmentAnswer) -> None:
        self._observer.answers(answer)
        self._arrivals.put([answer])


class Observer(WorkerObserver):
    """Sees what environments answer and what is trained, over all attempts."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._rewards: dict[RequestId, dict[int, float]] = {}
        """Of each call since the last reset."""
        self.num_trained = 0

    def begins(self, request: RequestId, call: int) -> None:
        self._rewards[request] = {call: 0.0}

    def answers(self, answer: EnvironmentAnswer) -> None:
        rewards = self._rewards[answer.request]
        if answer.failure is None and answer.call >= min(rewards):
            rewards[answer.call] = answer.reward

    def groups_were_trained(self, groups: Sequence[RolloutGroup]) -> None:
        section = self._config.modelled_environment
        assert section is not None
        for group in groups:
            require(len(group.responses) == self._config.rollout.num_responses, "a group is trained whole")
            for response, reward, turns in zip(group.responses, group.rewards, group.turns, strict=True):
                self.num_trained += 1
                require(0 < len(turns) <= section.max_turns, "a trajectory has turns, and no more than it may have")
                require(response.num_tokens <= self._config.rollout.max_response_tokens, "a trajectory fits its limit")
                require(sum(span.num_tokens for span in response.spans) == response.num_tokens, "spans cover it")
                require(sampled(response.spans), "what is trained was sampled")
                ends = [(turn.begin, turn.end) for turn in turns]
                require(all(begin < end for begin, end in ends), "a turn has tokens")
                require(all(left[1] <= right[0] for left, right in itertools.pairwise(ends)), "turns are apart")
                require(reward == sum(turn.reward for turn in turns), "a reward is the sum of its turns'")
                given = sum(self._rewards[response.request].values())
                require(reward in {0.0, given}, "a reward is what the environment gave")


class _Backend:
    """Wraps the environments of a backend."""

    def __init__(self, backend: Backend, rng: random.Random, observer: Observer, max_open: int) -> None:
        self._backend = backend
        self._rng = rng
        self._observer = observer
        self._max_open = max_open
        self.is_modelled = backend.is_modelled

    @asynccontextmanager
    async def open(self, surroundings: BackendContext) -> AsyncIterator[Workers]:
        async with self._backend.open(surroundings) as workers:
            assert workers.environments is not None
            service = FaultyEnvironments(workers.environments.service, self._rng, self._observer, self._max_open)
            pump = asyncio.create_task(service.pump(), name="faulty environments")
            try:
                yield replace(workers, environments=replace(workers.environments, service=service))
            finally:
                pump.cancel()
                await asyncio.gather(pump, return_exceptions=True)


class _Killed(Exception):
    """The driver died as by kill -9."""


class EnvironmentRun:
    """One world from its first attempt to its last."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.world, section = world_of(seed)
        self._folder = folder
        self._rng = random.Random(f"faults of environments of {seed}")
        prompts = folder / "prompts.jsonl"
        write_prompts(self.world, prompts)
        config = config_of(self.world, folder / "run", prompts)
        workload = config.workload
        assert workload is not None
        self.config = type(config).model_validate(
            config.model_copy(update={"workload": workload.model_copy(update={"environment": section})})
        )
        self._observer = Observer(self.config)
        self._injector = FaultInjector(self.world.faults)
        self._dropped: dict[int, list[PromptId]] = {}
        """By step."""
        self.num_events = 0
        self.num_attempts = 0
        self._is_killed = False
        self._has_given_up = False
        """Environments failed so often that the scheduler ended the run."""

    def run(self) -> None:
        """Make attempts until all data was trained or dropped, and check what is left behind."""
        while not self._attempt():
            require(self.num_attempts <= 2 * len(self.world.faults) + 1, "a run comes to its end")
        self._check_end()

    def _attempt(self) -> bool:
        self.num_attempts += 1
        self._is_killed = False
        try:
            run_in_virtual_time(self._train())
        except _Killed:
            return False
        except DataError:
            if not self._has_given_up and self._rows_of_prompts():  # without a row its data has ended for nothing
                raise
        except RollpackerError as error:
            is_explained = (
                self._injector.is_short_of_workers(
                    can_lend=self.config.system.stream, max_restarts=self.world.max_restarts
                )
                if isinstance(error, EngineFailed)
                else isinstance(error, DeadlineExceeded) and any(each.kind in SLOW for each in self._injector.happened)
            )
            if not is_explained:
                raise
            return False
        return True

    async def _train(self) -> None:
        loop, main = asyncio.get_running_loop(), asyncio.current_task()
        assert main is not None

        def kill() -> None:
            if not self._is_killed:
                self._is_killed = True
                shutil.copytree(self.config.run.dir, self._folder / "before-kill")
                main.cancel()

        self._injector.begin_attempt(kill, lambda _: None)
        section = self.config.modelled_environment
        assert section is not None
        faulty = FaultyBackend(ModelledBackend(self.config), self._injector, self._observer)
        try:
            await pipeline.train(
                self.config, _Backend(faulty, self._rng, self._observer, section.max_open), self._watch
            )
        except asyncio.CancelledError:
            if not self._is_killed:
                raise
        finally:
            self._injector.stop_clock()
        if self._is_killed:
            shutil.rmtree(self.config.run.dir)
            (self._folder / "before-kill").rename(self.config.run.dir)
            raise _Killed
        for _ in range(3):  # what was cancelled last needs a turn to end
            await asyncio.sleep(0)
        left = [task.get_name() for task in asyncio.all_tasks(loop) if task is not main]
        require(not left, f"no task is left when a run has ended: {left}")

    def _watch(self, scheduler: Scheduler, settings: SchedulerSettings, first_step: int) -> OnEvent:
        for step in [step for step in self._dropped if step >= first_step]:
            del self._dropped[step]
        step = first_step
        second: Scheduler | None = None
        num_events = 0

        def on_event(event: Event, now: float, commands: tuple[Command, ...]) -> None:
            nonlocal step, second, num_events
            if self._is_killed:
                return
            if num_events == 0:
                self._injector.start_clock()
            num_events += 1
            self.num_events += 1
            require(self.num_events < MOST_EVENTS, "a run ends")
            if isinstance(event, StepStarted):
                step = event.step
            self._dropped.setdefault(step, []).extend(
                command.prompt for command in commands if isinstance(command, DropPrompt)
            )
            self._has_given_up |= any(isinstance(command, FailRun) for command in commands)
            scheduler.check()
            if second is not None:
                require(second.handle(event, now) == commands, "a restored scheduler gives the same commands")
            if num_events % EVENTS_PER_RESTORE == 0:
                second = Scheduler.restore(settings, json.loads(json.dumps(scheduler.snapshot())))
            self._injector.count_event(is_suspension=False)

        return on_event

    def _check_end(self) -> None:
        dropped = Counter(prompt for prompts in self._dropped.values() for prompt in prompts)
        trained: Counter[PromptId] = Counter()
        for (_, prompt), number in self._rows_of_prompts().items():
            require(number == self.world.num_responses, "the tables show each response that was trained")
            trained[prompt] += 1
        assert self.world.num_epochs is not None
        wanted = Counter(
            PromptId(epoch, f"{domain}-{number}")
            for domain, num_keys in zip(DOMAINS, self.world.num_keys, strict=False)
            for number in range(num_keys)
            for epoch in range(self.world.num_epochs)
        )
        require(not any(is_held_out(RequestId(0, prompt, 0)) for prompt in trained), "held-out prompts are not trained")
        seen = trained + dropped
        require(seen <= wanted if self._has_given_up else seen == wanted, "every prompt is trained or dropped once")
        replay(self.config.run.dir)

    def _rows_of_prompts(self) -> Counter[tuple[int, PromptId]]:
        """How many accepted responses the tables show, by step and prompt."""
        try:
            rows = read_table(self.config.run.dir, "responses").to_pylist()
        except DataError:  # not a step was recorded
            return Counter()
        return Counter((row["step"], PromptId(row["epoch"], row["prompt"])) for row in rows if row["accepted"])


def _repeated_turns(rng: random.Random) -> list[Fault]:
    """Some turns that engines tell of twice, in every other world: soon after, or when another engine has the next."""
    return [
        Fault(
            kind=FaultKind.DUPLICATE_FINISH,
            at_event=rng.randrange(600),
            target=rng.randrange(3),
            amount=rng.choice((0.01, 1.0, 20.0)) * rng.random(),
        )
        for _ in range(rng.choice((0, 20)))
    ]


def world_of(seed: int) -> tuple[World, ModelledEnvironmentSection]:
    """Draw a world whose data ends, and its environments."""
    rng = random.Random(f"environments of {seed}")
    world = draw_world(seed)
    world = replace(
        world,
        escalates=False,
        evaluate="alone",
        draft_acceptance=None,
        num_engines=world.num_engines if world.planner else min(world.num_engines, 3),
        num_epochs=world.num_epochs or 1,
        num_steps=MOST_STEPS,
        max_launch_factor=1000.0,
        faults=(*(fault for fault in world.faults if fault.kind in FAULTS), *_repeated_turns(rng)),
    )
    section = ModelledEnvironmentSection(
        name="fuzz",
        turns_mean=rng.choice((1, 2, 3, 5)),
        turns_std=rng.choice((0.0, 1.0)),
        observation_tokens=rng.choice((1, 7, 100)),
        latency=rng.choice(("normal", "log_normal")),
        latency_mean_s=rng.choice((0.001, 0.1, 3.0)),
        latency_std_s=rng.choice((0.0, 0.1, 5.0)),
        fail_slow_share=rng.choice((0.0, 0.1)),
        fail_stop_share=rng.choice((0.0, 0.0, 0.1, 0.5)),
        max_open=rng.choice((1, 3, 10_000)),
        starts_per_minute=rng.choice((None, None, 60.0)),
        max_restarts=rng.choice((0, 1, 2)),
        turn_timeout_s=rng.choice((2.0, 20.0)),
        episode_timeout_s=rng.choice((5.0, 60.0, 1000.0)),
    )
    return world, section


def main(arguments: Sequence[str]) -> int:
    """Run so many worlds; the first that does not hold raises, with its seed before it."""
    number, first = int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 0
    num_events = num_trained = num_attempts = 0
    for seed in range(first, first + number):
        with scratch_folder() as folder:
            try:
                run = EnvironmentRun(seed, folder)
                run.run()
            except Exception:
                print(f"seed {seed}")
                raise
        num_events += run.num_events
        num_attempts += run.num_attempts
        num_trained += run._observer.num_trained
    print(
        f"{number:,} worlds of environments, no violation: {num_attempts:,} attempts, {num_events:,} events, ", end=""
    )
    print(f"{num_trained:,} trajectories trained")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
