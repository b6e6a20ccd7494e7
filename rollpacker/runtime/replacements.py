"""Engines in the place of those that were lost, brought beside the run's other work.

    lost ──a restart is left──> vacant ──its GPUs are the engines'──> pause ──> start ──> weights ──> ready
      └─ none is left: empty      ^                                               └─ fails, too slow ─┤
                                  └────── that restart is used up, the next pause is longer ──────────┘

A place is a seat and goes by the name of its first engine. Each engine that takes it has a name of its own, so that no
late fact of a dead one passes for a fact of its successor, and no log is written over.

Invariant: an engine that is taken for a round holds the round's policy, by its checksum. Serving one and publishing to
all exclude each other; from the moment at which an engine is ready, it is published to as all others are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from rollpacker.core.errors import EngineFailed, InternalError, RollpackerError
from rollpacker.core.ids import EngineId, successor_of
from rollpacker.protocols.backend import ReplaceEngine
from rollpacker.protocols.engine import Engine
from rollpacker.protocols.weights import Published, WeightSync

Answer = TypeVar("Answer")

LONGEST_PAUSE_S = 60.0
"""Pauses double up to here: long enough for a node that is short of memory for a while, short against the start of a
large model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLimits:
    """How often and for how long it is tried."""

    max_restarts: int
    """Of one seat."""
    first_pause_s: float
    """Before the first restart; it doubles with each one."""
    start_s: float
    """For an engine to start, model and all."""
    serve_s: float
    """For the weights to reach it; who sends them may be busy learning."""
    straggler_s: float
    """For the same once new weights are due, which wait for it."""


@dataclass(slots=True)
class _Seat:
    """One place for an engine."""

    name: EngineId
    num_begun: int = 0
    """Restarts; each one's number is in its engine's name."""
    num_called_off: int = 0
    """Of them those that did not fail, and do not count: their GPUs were wanted."""
    is_vacant: bool = False
    """An engine is to take it."""
    filling: asyncio.Task[None] | None = None

    @property
    def num_restarts(self) -> int:
        """That count."""
        return self.num_begun - self.num_called_off


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """An engine that can be taken."""

    engine: Engine
    policy_version: int | None
    """None until the weights are published that are due."""


class Replacements:
    """Keeps the seats of all engines filled.

    Args:
        seats: The engines that the backend brought.
        replace: Starts a fresh engine; None where the backend cannot.
        limits: How often and for how long it is tried.
        note: Tells a person what happens.
        on_ready: Told of an engine that can be taken.
        on_empty: Told of a seat that nobody will take: the engine that was tried last, and why it failed.
        on_error: Told of an error that is no engine's failure.
    """

    def __init__(
        self,
        *,
        seats: Iterable[EngineId],
        replace: ReplaceEngine | None,
        limits: RestartLimits,
        note: Callable[[str], None],
        on_ready: Callable[[EngineId], None],
        on_empty: Callable[[EngineId, RollpackerError], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._seats = {name: _Seat(name) for name in seats}
        self._seat_of = dict(self._seats)
        """By every engine that has or had it."""
        self._replace = replace
        self._limits = limits
        self._note = note
        self._on_ready = on_ready
        self._on_empty = on_empty
        self._on_error = on_error
        self._fillable: frozenset[EngineId] = frozenset()
        """Seats whose GPUs are the engines' now."""
        self._ready: dict[EngineId, _Ready] = {}
        self._sync: WeightSync | None = None
        self._syncing = asyncio.Lock()
        self._serving: asyncio.Task[Published] | None = None
        self._are_weights_due = False

    # Seats

    def seat_of(self, engine: EngineId) -> EngineId:
        """The seat that an engine has, or had."""
        return self._seat_of[engine].name

    def are_expected(self, seats: Collection[EngineId]) -> bool:
        """Whether an engine is to take one of these seats, be it only when its GPUs are the engines' again."""
        return any(self._seats[name].is_vacant for name in seats)

    @property
    def under_way(self) -> list[EngineId]:
        """The engines that are on their way now, or ready to be taken."""
        starting = [successor_of(seat.name, seat.num_begun) for seat in self._seats.values() if seat.filling]
        return [*starting, *self._ready]

    @property
    def ready(self) -> list[EngineId]:
        """The engines that can be taken."""
        return list(self._ready)

    def vacate(self, engine: EngineId) -> str:
        """Have the seat of an engine filled that was lost, and say what follows."""
        seat = self._seat_of[engine]
        seat.is_vacant = self._may_restart(seat)
        what_follows = self._announce(seat)
        self._fill(seat)
        return what_follows

    async def fill_only(self, seats: Iterable[EngineId]) -> None:
        """Fill these seats from now on and no others, whose GPUs are someone else's: what was under way there ends."""
        self._fillable = frozenset(seats)
        called_off: list[asyncio.Task[None]] = []
        for seat in self._seats.values():
            if seat.name not in self._fillable and seat.filling is not None:
                seat.filling.cancel()
                called_off.append(seat.filling)
                seat.filling = None
                seat.num_called_off += 1
            self._fill(seat)
        await asyncio.gather(*called_off, return_exceptions=True)

    async def stop(self) -> None:
        """End what is under way."""
        await self.fill_only(())

    # Engines that are ready

    def take(self, engine: EngineId, policy_version: int) -> Engine | None:
        """Take an engine that is ready; None if it was taken before, or holds what is to be published next."""
        ready = self._ready.get(engine)
        if ready is None or ready.policy_version != policy_version:
            return None
        return self._ready.pop(engine).engine

    @asynccontextmanager
    async def publishing(self, sync: WeightSync) -> AsyncIterator[Mapping[EngineId, Engine]]:
        """Let new weights be published inside, while nobody is served; gives who is ready by then, to be taken."""
        self._are_weights_due = True
        try:
            await self._end_serving()
            async with self._syncing:
                self._sync = sync
                ready, self._ready = self._ready, {}
                self._are_weights_due = False
                yield {name: each.engine for name, each in ready.items()}
        finally:
            self._are_weights_due = False

    async def _end_serving(self) -> None:
        """Wait for who is served now, but not for long."""
        serving = self._serving
        if serving is not None:
            await asyncio.wait([serving], timeout=self._limits.straggler_s)
            serving.cancel()

    # Filling a seat

    def _may_restart(self, seat: _Seat) -> bool:
        return self._replace is not None and seat.num_restarts < self._limits.max_restarts

    def _announce(self, seat: _Seat) -> str:
        """Say who takes a seat that has just become vacant."""
        limit = self._limits.max_restarts
        if self._may_restart(seat):
            successor = successor_of(seat.name, seat.num_begun + 1)
            return f"{successor} is to take its place: restart {seat.num_restarts + 1} of {limit}."
        return f"It is not replaced: engine.max_restarts={limit}." if self._replace else "It cannot be replaced."

    def _fill(self, seat: _Seat) -> None:
        if seat.is_vacant and seat.filling is None and seat.name in self._fillable:
            seat.filling = asyncio.create_task(self._refill(seat), name=f"replacement of {seat.name}")

    async def _refill(self, seat: _Seat) -> None:
        """Restart a seat's engine until one is ready, or no restart is left."""
        while True:
            pause_s = min(self._limits.first_pause_s * 2**seat.num_restarts, LONGEST_PAUSE_S)
            seat.num_begun += 1
            name = successor_of(seat.name, seat.num_begun)
            self._seat_of[name] = seat
            try:
                await asyncio.sleep(pause_s)
                await self._bring(seat, name)
            except InternalError as error:
                self._on_error(error)
                return
            except RollpackerError as error:
                self._note(f"{error.problem} {self._announce(seat)}")
                if not self._may_restart(seat):
                    seat.is_vacant, seat.filling = False, None
                    self._on_empty(name, error)
                    return
            except Exception as error:  # noqa: BLE001  (a task's boundary: the driver raises it again)
                self._on_error(error)
                return
            else:
                seat.is_vacant, seat.filling = False, None
                self._on_ready(name)
                return

    async def _bring(self, seat: _Seat, name: EngineId) -> None:
        """Start an engine and give it the policy that was published last."""
        assert self._replace is not None
        engine = await within_or_failed(self._limits.start_s, f"{name} to start", self._replace(seat.name, name))
        async with self._syncing:
            # weights that are due are published to whoever is ready when this lock is free
            policy_version = None if self._are_weights_due else await self._serve(name, engine)
            self._ready[name] = _Ready(engine=engine, policy_version=policy_version)

    async def _serve(self, name: EngineId, engine: Engine) -> int:
        """Give an engine the policy; gives the version that it holds then."""
        assert self._sync is not None
        self._serving = serving = asyncio.create_task(self._sync.serve(name, engine), name=f"weights of {name}")
        try:
            await asyncio.wait([serving], timeout=self._limits.serve_s)
            if not serving.done() or serving.cancelled():
                raise EngineFailed(f"{name} has not loaded the weights in time.", "Limits are in backend.deadlines.")
            published = serving.result()
            if name in published.lost:
                raise published.lost[name]
            return published.policy_version
        finally:
            self._serving = None
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


async def within_or_failed(deadline_s: float, what: str, answer: Awaitable[Answer]) -> Answer:
    """Await an answer for at most so long; raises `EngineFailed`, because one slow engine is no reason to end a run."""
    try:
        async with asyncio.timeout(deadline_s) as scope:
            return await answer
    except TimeoutError:
        if not scope.expired():
            raise
    raise EngineFailed(f"Waited {deadline_s:g} s for {what}, in vain.", "Deadlines are set under backend.deadlines.")
