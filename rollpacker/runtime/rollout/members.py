"""The driver's side of rollout workers: what it asks of them, what they tell, and which of their engines there are.

    changes ──> WorkerArrived, NoticeGiven, WorkerLeft
    StartMember ──> started ──> EngineStarted, or EngineStartFailed
    FetchPolicy ──> weights from the shelf ──> EngineUpdated, or FetchFailed
    increments ──> the request's book; silence ──> EngineLost

Invariant: nothing here is awaited by a step. Each call is a task of its own, so a worker that hangs delays nobody, and
what it says after it was dismissed, or lost, is not heard. An engine holds a version if the checksum says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollpacker.core.errors import EngineFailed, InternalError, RollpackerError
from rollpacker.core.events import (
    EngineLost,
    EngineStarted,
    EngineStartFailed,
    EngineUpdated,
    Event,
    FetchFailed,
    WorkerArrived,
    WorkerLeft,
)
from rollpacker.core.ids import EngineId, RequestId, WorkerId
from rollpacker.protocols.weights import Shelf
from rollpacker.runtime.rollout.aside import Aside
from rollpacker.runtime.rollout.starts import Answer, ask_each, within_or_failed

if TYPE_CHECKING:
    from rollpacker.core.commands import DismissWorker, FetchPolicy, StartMember
    from rollpacker.core.events import EngineProgress
    from rollpacker.protocols.engine import Engine, EngineStats
    from rollpacker.protocols.members import MemberEngine, Members
    from rollpacker.protocols.weights import WeightSync
    from rollpacker.runtime.rollout.fleet_parts import FleetParts
    from rollpacker.runtime.rollout.inbox import Inbox
    from rollpacker.runtime.rollout.interval_log import IntervalLog
    from rollpacker.runtime.rollout.request_book import RequestBook
    from rollpacker.runtime.waiting.clock import RunClock

_TWICE = 2
"""A silence is found in two halves: if the driver itself was held up for so long, the second half lets answers in."""

_SILENCE = "elastic.silence_s"


@dataclass(slots=True, kw_only=True)
class _Member:
    """An engine of a worker."""

    worker: WorkerId
    engine: MemberEngine | None = None
    """None until it has started."""
    life: asyncio.Task[None] | None = None
    """Starts it, or listens to it."""
    fetching: asyncio.Task[None] | None = None
    serves_since_s: float | None = None
    """None while it does not hold the newest policy."""
    stats: EngineStats | None = None
    """As it gave them last; None until it has started."""


class MemberEngines:
    """The engines of rollout workers.

    Args:
        parts: Provides them, or not.
        report: Tells the scheduler, and carries out what follows.
        on_gone: Told of an engine that is gone, before the scheduler is.
        book_of: Where a request is written down.
        inbox: Gets their responses, and errors that are no engine's failure.
        clock: The run's.
        interval_log: Takes down when they started and loaded weights.
        note: Tells a person what happens.
    """

    def __init__(
        self,
        parts: FleetParts,
        *,
        report: Callable[[Event], None],
        on_gone: Callable[[EngineId], None],
        book_of: Callable[[RequestId], RequestBook],
        inbox: Inbox,
        clock: RunClock,
        interval_log: IntervalLog,
        note: Callable[[str], None],
    ) -> None:
        self._members = parts.members
        self._limit = parts.limit
        self._silence_s = parts.silence_s
        self._keeps_tokens = parts.keeps_tokens
        self._report = report
        self._on_gone = on_gone
        self._book_of = book_of
        self._inbox = inbox
        self._clock = clock
        self._interval_log = interval_log
        self._note = note
        self._shelf: Shelf | None = None
        self._newest: int | None = None
        """The policy version that lies on the shelf."""
        self._known: dict[EngineId, _Member] = {}
        self._past: set[EngineId] = set()
        """Engines that are gone; late facts of theirs may still come."""
        self._aside = Aside(on_error=inbox.put)
        self._num_lost = 0
        """Since the last count."""
        self._served_s = 0.0
        """By all of them together, since the last count, up to the last change."""

    @property
    def are_any_expected(self) -> bool:
        """Whether workers may come at all."""
        return self._members is not None

    @property
    def present(self) -> Mapping[EngineId, Engine]:
        """Those that have started."""
        return {name: member.engine for name, member in self._known.items() if member.engine is not None}

    def find(self, engine_id: EngineId) -> Engine | None:
        """One that has started; None if it is none of theirs."""
        member = self._known.get(engine_id)
        return member.engine if member else None

    def start(self) -> None:
        """Listen to workers that come and go."""
        assert self._members is not None
        self._aside.begin(self._follow(self._members), "rollout workers that come and go")

    async def stop(self) -> None:
        """Ask and listen no more."""
        await self._aside.stop()

    async def lay_out(self, sync: WeightSync) -> int | None:
        """Put the trainer's policy where engines fetch it from; gives its version, or None if that lay there before."""
        if not isinstance(sync, Shelf):
            raise InternalError(f"{type(sync).__name__} serves no rollout workers: it has no shelf.")
        self._shelf = sync
        before, self._newest = self._newest, await sync.lay_out()
        if self._newest == before:  # after a checkpoint on the engines' GPUs
            return None
        for member in self._known.values():
            self._end_service(member)
        return self._newest

    # Orders

    def start_member(self, command: StartMember) -> None:
        """Start an engine on a worker."""
        self._known[command.engine] = member = _Member(worker=command.worker)
        member.life = self._aside.begin(self._start(command, member), f"start of {command.engine}")

    def fetch(self, command: FetchPolicy) -> None:
        """Have an engine fetch a policy; an earlier order is given up."""
        member = self._known.get(command.engine)
        if member is None or member.engine is None:
            return  # it is gone, and that is on its way to the scheduler
        if member.fetching is not None:
            member.fetching.cancel()
        member.fetching = self._aside.begin(self._fetch(command, member.engine), f"policy of {command.engine}")

    def wish(self, num_workers: int) -> None:
        """Say how many workers are wanted."""
        assert self._members is not None
        self._aside.begin(self._members.wish(num_workers), "wish for rollout workers")

    def dismiss(self, command: DismissWorker) -> None:
        """Let a worker go: its engines are no more."""
        assert self._members is not None
        self._note(f"Worker {command.worker} is dismissed: {command.reason}")
        self._forget(command.worker)
        leaving = self._members.dismiss(command.worker, command.reason, may_return=command.may_return)
        self._aside.begin(leaving, f"dismissal of {command.worker}")

    # Engines that are lost

    def lose(self, engine_id: EngineId, error: EngineFailed) -> bool:
        """Take an engine out of use; False if it is none of a worker's."""
        if engine_id in self._known:
            self._drop(engine_id)
            self._note(f"{error.problem} What it was doing goes on elsewhere.")
            self._report(EngineLost(engine=engine_id))
        return engine_id in self._past

    def _forget(self, worker: WorkerId) -> None:
        for engine_id in [name for name, member in self._known.items() if member.worker == worker]:
            self._drop(engine_id)

    def _drop(self, engine_id: EngineId) -> None:
        member = self._known.pop(engine_id)
        self._end_service(member)
        self._num_lost += 1
        self._past.add(engine_id)
        self._inbox.ignore(engine_id)
        for task in (member.life, member.fetching):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._on_gone(engine_id)

    # Tasks

    async def _follow(self, members: Members) -> None:
        while True:
            for change in await members.changes():
                if isinstance(change, WorkerArrived):
                    self._note(f"Worker {change.worker} has arrived.")
                elif isinstance(change, WorkerLeft):
                    self._note(f"Worker {change.worker} has left.")
                    self._forget(change.worker)
                self._report(change)

    async def _start(self, command: StartMember, member: _Member) -> None:
        assert self._members is not None
        began = self._clock.now()
        try:
            engine = await self._members.start_engine(command.worker, command.engine)
            what = f"the statistics of {command.engine}"
            stats = await within_or_failed(self._limit, self._silence_s, what, engine.stats(), setting=_SILENCE)
        except InternalError:
            raise
        except RollpackerError as error:
            del self._known[command.engine]
            self._past.add(command.engine)
            self._note(error.problem)
            self._report(EngineStartFailed(engine=command.engine))
            return
        member.engine, member.stats = engine, stats
        self._interval_log.add(command.engine, "worker", "starting", began)
        self._inbox.listen(command.engine, engine, lambda *_: None)
        member.life = self._aside.begin(self._listen(command.engine, engine), f"increments of {command.engine}")
        self._report(EngineStarted(engine=command.engine, kv_tokens=stats.kv_tokens_capacity))

    async def _fetch(self, command: FetchPolicy, engine: Engine) -> None:
        assert self._shelf is not None
        began = self._clock.now()
        failed = FetchFailed(engine=command.engine, policy_version=command.policy_version)
        weights = await self._shelf.shelf(command.policy_version)
        if weights is None:
            return  # an order to fetch the newer policy is on its way
        try:
            checksum = await engine.load_weights(weights)
        except InternalError:
            raise
        except RollpackerError as error:
            if await self._shelf.shelf(command.policy_version) is None:
                return
            self._note(f"{command.engine} did not get policy version {command.policy_version}: {error.problem}")
            self._report(failed)
            return
        if checksum != weights.checksum:
            self._note(f"{command.engine} holds weights of checksum {checksum}, not {weights.checksum}.")
            self._report(failed)
            return
        self._interval_log.add(command.engine, "worker", "catching_up", began)
        self._known[command.engine].serves_since_s = self._clock.now()
        self._report(EngineUpdated(engine=command.engine, policy_version=command.policy_version))

    async def _listen(self, engine_id: EngineId, engine: MemberEngine) -> None:
        """Write down what an engine reports; its silence is its loss."""
        while True:
            answer = asyncio.ensure_future(engine.increments())
            try:
                for _ in range(_TWICE):
                    await asyncio.wait([answer], timeout=self._silence_s / _TWICE)
                if not answer.done():
                    self.lose(engine_id, EngineFailed(f"{engine_id} has been silent for {self._silence_s:g} s."))
                    return
                for increment in answer.result():
                    if self._keeps_tokens:
                        self._book_of(increment.request).progressed(engine_id, increment)
            except EngineFailed as error:
                self.lose(engine_id, error)
                return
            finally:
                answer.cancel()

    def _end_service(self, member: _Member) -> None:
        since, member.serves_since_s = member.serves_since_s, None
        self._served_s += 0.0 if since is None else self._clock.now() - since

    def take_turnover(self) -> tuple[int, float]:
        """How many engines went since the last call, and how long those that were there held the newest policy."""
        for member in self._known.values():
            if member.serves_since_s is not None:
                self._end_service(member)
                member.serves_since_s = self._clock.now()
        turnover = self._num_lost, self._served_s
        self._num_lost, self._served_s = 0, 0.0
        return turnover

    async def stats(self) -> Mapping[EngineId, EngineStats]:
        """The statistics of every engine that has started; while it loads a policy, those before that."""
        answers = await self._ask("to give its statistics", lambda engine: engine.stats())
        for engine_id in answers.keys() & self._known.keys():
            self._known[engine_id].stats = answers[engine_id]
        return {name: member.stats for name, member in self._known.items() if member.stats is not None}

    async def progress(self) -> Collection[EngineProgress]:
        """How far everything in flight is, on every engine that serves and answers before it counts as silent."""
        return (await self._ask("to say how far it is", lambda engine: engine.progress())).values()

    async def _ask(self, what: str, question: Callable[[Engine], Awaitable[Answer]]) -> dict[EngineId, Answer]:
        """Ask the engines that hold the newest policy: one that loads it may not answer before it has."""
        serving = {
            name: member.engine
            for name, member in self._known.items()
            if member.engine is not None and member.serves_since_s is not None
        }
        return await ask_each(self._limit, serving, what, question, self._silence_s, lose=self.lose, setting=_SILENCE)
