"""Runs one world to its end, over as many attempts as its faults make necessary, and says what did not hold.

An attempt may end by an error only if a fault of that attempt explains it, and then the next one resumes from the last
checkpoint. After the last one every prompt has been trained, or dropped for want of variance, exactly once per epoch,
and the tables and event logs on the disk tell the same. Where the data never ends that holds of what was drawn, but for
prompts that wait for a round.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rollpacker import pipeline
from rollpacker.core.errors import (
    DataError,
    DeadlineExceeded,
    EngineFailed,
    InvariantViolated,
    Preempted,
    RollpackerError,
    StorageFailed,
    WeightSyncFailed,
)
from rollpacker.core.events import PolicyUpdated
from rollpacker.core.ids import PromptId
from rollpacker.metrics.event_log import attempt_paths
from rollpacker.metrics.tables import read_table
from rollpacker.runtime.job.deadline import PreemptionDeadline
from rollpacker.runtime.job.preemption import Preemption
from rollpacker.runtime.rollout.replay import replay
from rollpacker.sim.backend import ModelledBackend
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.fuzz.faults import Fault, FaultKind
from tests.fuzz.faulty_backend import FaultyBackend
from tests.fuzz.injector import FaultInjector
from tests.fuzz.invariants import History, InvariantChecker, require
from tests.fuzz.naming import description_of, rule_of
from tests.fuzz.world import World, config_of, write_prompts

if TYPE_CHECKING:
    from pathlib import Path

    from rollpacker.core.commands import Command
    from rollpacker.core.events import Event
    from rollpacker.core.scheduler import Scheduler
    from rollpacker.core.settings import SchedulerSettings
    from rollpacker.runtime.rollout.listeners import OnEvent

MOST_EVENTS = 20_000
"""Far more than a world needs; a run that gets there would never end."""

_EXPLAINS: dict[type[RollpackerError], frozenset[FaultKind]] = {
    DeadlineExceeded: frozenset(
        {
            FaultKind.HUNG_ENGINE,
            FaultKind.HUNG_TRAINER,
            FaultKind.HUNG_REWARD,
            FaultKind.LATE_FINISH,
            FaultKind.SLOW_ENGINE,
            FaultKind.CLOCK_JUMP,
        }
    ),
    WeightSyncFailed: frozenset({FaultKind.TORN_WEIGHTS}),
    StorageFailed: frozenset({FaultKind.FULL_DISK}),
    Preempted: frozenset({FaultKind.PREEMPTION_NOTICE}),
}
"""Which faults may end an attempt by which error; `EngineFailed` depends on which workers were lost."""

_MUST_END = {FaultKind.FULL_DISK: StorageFailed}
"""Faults after which an attempt must not go on, and the error that it ends by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """What did not hold."""

    rule: str
    """In words; the same for the same defect in another world."""
    message: str
    """With all that is known."""
    history: History | None = field(repr=False)
    """What had counted until then, to search the machines for the defect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a world."""

    world: World
    num_events: int
    num_attempts: int
    num_steps: int
    happened: Counter[str]
    """Faults by kind."""
    violation: Violation | None


class _Killed(Exception):
    """The driver died as by kill -9."""


def run_world(world: World, folder: Path) -> Outcome:
    """Run a world in an empty folder, which is a place for some small files and is left as the run left it."""
    session = _Session(world, folder)
    violation = None
    try:
        session.run()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever comes out of a world is what we are looking for
        violation = Violation(rule=rule_of(error), message=description_of(error), history=session.checker.history)
    history = session.checker.history
    return Outcome(
        world=world,
        num_events=session.checker.num_events,
        num_attempts=session.num_attempts,
        num_steps=len(history.batches) if history else 0,
        happened=Counter(fault.kind.value for fault in session.happened),
        violation=violation,
    )


class _Session:
    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.checker = InvariantChecker(shares_gpus=not world.has_pools)
        self.num_attempts = 0
        self._injector = FaultInjector(world.faults)
        prompts = folder / "prompts.jsonl"
        write_prompts(world, prompts)
        self._config = config_of(world, folder / "run", prompts)
        self._before_kill = folder / "before-kill"

    @property
    def happened(self) -> list[Fault]:
        return self._injector.happened

    def run(self) -> None:
        """Make attempts until all data has been trained, and check what is left behind."""
        while not self._attempt():
            require(
                self.num_attempts <= 2 * len(self.world.faults) + 1,
                "a run that was resumed often enough comes to its end",
            )
        self._check_end()

    def _attempt(self) -> bool:
        """Make one attempt; True when the run is over."""
        self.num_attempts += 1
        num_happened = len(self._injector.happened)
        error: Exception | None = None
        try:
            run_in_virtual_time(self._train())
        except (RollpackerError, _Killed) as caught:
            error = caught
        faults = self._injector.happened[num_happened:]
        self.checker.end_attempt()
        self._check_error(error, faults)
        history = self.checker.history
        if isinstance(error, DataError):
            return True
        if error is not None or history is None:
            return False
        is_last = self.world.num_epochs is None and len(history.batches) == self.world.num_steps
        require(history.reference.has_ended or is_last, "a run ends with its data, or when it is told to")
        return True

    async def _train(self) -> None:
        config = self._config
        loop, main = asyncio.get_running_loop(), asyncio.current_task()
        assert main is not None
        is_killed = False

        def kill() -> None:
            nonlocal is_killed
            if not is_killed:
                is_killed = self.checker.is_closed = True
                shutil.copytree(config.run.dir, self._before_kill)
                main.cancel()

        deadline = PreemptionDeadline(loop.time)
        preempted: Preempted | None = None

        def give_notice(grace_s: float) -> None:
            deadline.ask("a notice came", loop.time() + grace_s)

        self.checker.begin_attempt()
        self._injector.begin_attempt(kill, give_notice)
        backend = FaultyBackend(ModelledBackend(config), self._injector, self.checker, escalates=self.world.escalates)
        try:
            await pipeline.train(config, backend, self._watch, Preemption(deadline))
        except Preempted as error:
            preempted = error
        except asyncio.CancelledError:
            if not is_killed:
                raise
        finally:
            self._injector.stop_clock()
        if is_killed:
            self._forget_what_came_after_the_kill()
            raise _Killed
        for _ in range(3):  # what was cancelled last needs a turn to end
            await asyncio.sleep(0)
        left = [task.get_name() for task in asyncio.all_tasks(loop) if task is not main]
        require(not left, "no task is left when a run has ended")
        if preempted is not None:
            raise preempted

    def _watch(self, scheduler: Scheduler, settings: SchedulerSettings, first_step: int) -> OnEvent:
        check = self.checker.watch(scheduler, settings, first_step)
        has_begun = False

        def on_event(event: Event, now: float, commands: tuple[Command, ...]) -> None:
            nonlocal has_begun
            check(event, now, commands)
            if not has_begun:
                has_begun = True
                self._injector.start_clock()
            require(self.checker.num_events < MOST_EVENTS, "a run ends")
            self._injector.count_event(is_suspension=isinstance(event, PolicyUpdated))

        return on_event

    def _forget_what_came_after_the_kill(self) -> None:
        """Put the folder back as the kill left it, the last line of the event log torn."""
        shutil.rmtree(self._config.run.dir)
        self._before_kill.rename(self._config.run.dir)
        for log in attempt_paths(self._config.run.dir)[-1:]:
            first, *lines = log.read_bytes().splitlines(keepends=True)
            if lines:
                log.write_bytes(b"".join([first, *lines[:-1], lines[-1][: len(lines[-1]) // 2]]))

    def _check_error(self, error: Exception | None, faults: list[Fault]) -> None:
        """ReferenceModel how an attempt ended by the faults that happened in it."""
        kinds = {fault.kind for fault in faults}
        history = self.checker.history
        has_nothing = history is not None and history.reference.has_ended and not history.batches
        if isinstance(error, DataError):
            has_given_up = history is not None and history.reference.has_given_up
            require(has_given_up or has_nothing, "a run gives up when it is told to, or its data has ended for nothing")
        elif isinstance(error, RollpackerError):
            is_explained = (
                self._has_lost_engines(faults)
                if isinstance(error, EngineFailed)
                else bool(kinds & _EXPLAINS.get(type(error), frozenset()))
            )
            if not is_explained:
                raise error
        require(error is not None or not has_nothing, "a run whose data has ended without a batch says so")
        for kind, ending in _MUST_END.items():
            if kind in kinds and error is None:
                raise InvariantViolated(f"after {kind} a run ends by {ending.__name__}")

    def _has_lost_engines(self, faults: list[Fault]) -> bool:
        """True when too many workers crashed, or the clock jumped past the shortest limit of an engine."""
        deadlines = self._config.backend.deadlines
        shortest_s = min(deadlines.engine_call_s, deadlines.stop_s, self._config.weight_sync.timeout_s)
        jumped_s = sum(fault.amount for fault in faults if fault.kind is FaultKind.CLOCK_JUMP)
        return jumped_s > shortest_s or self._injector.is_short_of_workers(
            can_lend=self.world.stream, max_restarts=self.world.max_restarts
        )

    def _check_end(self) -> None:
        """Check the run as a whole, and what it left on the disk."""
        history = self.checker.history
        assert history is not None
        if self.world.num_epochs is None:
            if not history.reference.has_given_up:
                history.reference.check_nothing_lost()
                self.checker.check_trained()
        else:
            self._check_whole_data(history, self.world.num_epochs)
        if history.batches:  # else every prompt was dropped, and nothing was written
            self._check_tables(history)
        replay(self._config.run.dir)

    def _check_whole_data(self, history: History, num_epochs: int) -> None:
        self.checker.check_trained()
        trained = Counter(prompt for batch in history.batches for prompt in batch)
        keys = [
            f"{domain}-{number}"
            for domain, num_keys in zip(self._config.data.domain_weights, self.world.num_keys, strict=True)
            for number in range(num_keys)
        ]
        wanted = Counter(PromptId(epoch, key) for key in keys for epoch in range(num_epochs))
        dropped = Counter(history.reference.dropped)
        require(trained + dropped == wanted, "every prompt is trained or dropped exactly once per epoch")

    def _check_tables(self, history: History) -> None:
        steps = read_table(self._config.run.dir, "steps").to_pylist()
        require(
            [row["step"] for row in steps] == list(range(len(history.batches))),
            "the tables have each step once, in order",
        )
        accepted: dict[int, list[PromptId]] = {row["step"]: [] for row in steps}
        launched = Counter[int]()
        ranks: dict[tuple[int, str, int], set[int]] = {}
        for row in read_table(self._config.run.dir, "responses").to_pylist():
            launched[row["step"]] += 1
            if row["race_rank"] is not None:
                ranks.setdefault((row["step"], row["prompt"], row["epoch"]), set()).add(row["race_rank"])
            if row["accepted"]:
                accepted[row["step"]].append(PromptId(row["epoch"], row["prompt"]))
            if row["accepted"] or not self.world.max_staleness:
                age = row["step"] - row["first_policy_version"]
                require(age <= self.world.max_staleness, "no response in the tables is older than the bound")
                require(row["policy_version"] <= row["step"], "no response in the tables is of a version to come")
        require(
            all(each == set(range(1, len(each) + 1)) for each in ranks.values()), "the verdicts of a prompt have ranks"
        )
        for row, batch in zip(steps, history.batches, strict=True):
            step = row["step"]
            expected = sorted(prompt for prompt in batch for _ in range(self.world.num_responses))
            require(sorted(accepted[step]) == expected, "the tables show what was trained")
            require(row["num_prompts"] == len(batch), "the tables count the batch")
            if not self.world.max_staleness:
                require(row["num_responses_launched"] >= launched[step], "the tables show every response")
            require(row["staleness_max"] <= self.world.max_staleness, "the tables know no staleness above the bound")


def without_history(outcome: Outcome) -> Outcome:
    """Drop what is large, to send an outcome to another process."""
    if outcome.violation is None:
        return outcome
    return replace(outcome, violation=replace(outcome.violation, history=None))
