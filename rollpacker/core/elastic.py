"""Rollout workers in a run: what their machines decide, brought to the router.

    a fact of a worker, or of an engine of one ──> fleet ──> who is in the router's fleet
    StepMeasured ──> demand ──> WishWorkers; fleet: those that are too many drain
    BeginRound, TimerFired, and whoever comes or goes ──> seeding ──> LendEngines, ReclaimEngines
    BeginRound, TimerFired ──> balance ──> MeasureProgress; ProgressMeasured ──> balance ──> Evict
    every event ──> an engine has room: what waits is launched; a draining worker is empty: it leaves

While workers serve, an engine gets no more than its slots and `max_pending` requests, and the rest waits for room on
any; while some are about to serve, what is their share of the requests waits for them, unless they take too long. So a
worker that comes when the round has begun finds work. Without one nothing is held back, and every command but timers
and wishes is that of a run without workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, assert_never

from rollpacker.core.commands import (
    Command,
    DismissWorker,
    Evict,
    FetchPolicy,
    LendEngines,
    MeasureProgress,
    ReclaimEngines,
    SetTimer,
    StartMember,
)
from rollpacker.core.demand import Demand
from rollpacker.core.engine_states import Closing
from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.core.events import (
    EngineLost,
    EnginesReturned,
    EngineStarted,
    EngineStartFailed,
    EngineUpdated,
    ProgressMeasured,
    StepMeasured,
    TimerFired,
    WorkerEvent,
)
from rollpacker.core.fleet import Admit, Close, Fleet, FleetDecision, Remove
from rollpacker.core.ids import EngineId, RequestId, WorkerId, member_of
from rollpacker.core.load_order import Room
from rollpacker.core.progress import validate_progress
from rollpacker.core.routing import Router
from rollpacker.core.worker import Stage

if TYPE_CHECKING:
    from rollpacker.core.companions import Companions
    from rollpacker.core.elastic_settings import ElasticSettings

OfMember = EngineStarted | EngineStartFailed | EngineUpdated | EngineLost
"""Events that are of a worker if their engine is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Present:
    """What the fleet tells of its workers: every event asks for it, few change it."""

    num_members: int
    """Engines of workers in the router's fleet."""
    num_serving: int
    """Workers that serve."""
    num_soon: int
    """With those that are about to."""
    engines_per_worker: float
    draining: list[tuple[WorkerId, tuple[EngineId, ...]]]
    """As `Fleet.draining`."""


class Elastic:
    """The machines of a run with rollout workers."""

    def __init__(self, settings: ElasticSettings, router: Router, beside: Companions) -> None:
        self._settings = settings
        self._router = router
        self._beside = beside
        self.fleet = Fleet(settings)
        self._demand = Demand(settings)
        self._room: Room | None = None
        """What the router was told of it."""
        self._present = self._count()

    def begin(self) -> tuple[Command, ...]:
        """Begin an attempt of the run."""
        return self._demand.wish, *self._carry_out([self.fleet.begin()])

    def timers_among(self, pending: Iterable[str]) -> list[str]:
        """Pick those of workers, whom a new attempt of the run forgets: their names may come again."""
        workers = {timer: WorkerId(timer.rpartition(" ")[0]) for timer in pending}
        return [timer for timer, worker in workers.items() if self.fleet.is_member(member_of(worker, 0))]

    def handle(self, event: WorkerEvent | OfMember, now: float) -> tuple[Command, ...]:
        """Take in a fact of workers, or of an engine of one.

        Raises:
            ImpossibleEvent: It cannot have happened; nothing was changed.
        """
        match event:
            case StepMeasured():
                wishes = self._demand.measure(event, self.fleet.engines_per_worker, self._num_local)
                if self._beside.seeding:
                    self._beside.seeding.measure(event, self._demand.rollout_s(event), self._speed, self._num_local)
                drains = [each for wish in wishes for each in self.fleet.limit(wish.num_workers, now)]
                return *wishes, *self._carry_out(drains)
            case EnginesReturned():
                return self._take_back(event)
            case _:
                return self._carry_out(self.fleet.handle(event, now))

    def fire(self, event: TimerFired, now: float) -> tuple[Command, ...]:
        """Do what is due; nothing for timers of others."""
        return *self._carry_out(self.fleet.fire(event.timer, now)), *self._reclaim(event), *self._measure(event)

    def follow(self, now: float) -> tuple[Command, ...]:
        """Do what any event may have made possible."""
        drained = [name for name, engines in self._present.draining if self._are_empty(engines)]
        leaves = self._carry_out(self.fleet.end_draining(drained, now)) if drained else ()
        timers = self._beside.balance.watch(now, is_served=self._is_served) if self._beside.balance else ()
        return *leaves, *self._seed(now), *self._router.launch_waiting(), *timers

    def _are_empty(self, engines: tuple[EngineId, ...]) -> bool:
        evaluation = self._beside.evaluation
        return self._router.are_empty(engines) and (evaluation is None or evaluation.are_empty(engines))

    # The engines on the trainer's GPUs

    def _seed(self, now: float) -> tuple[Command, ...]:
        """Lend them, if it is time."""
        seeding, stream = self._beside.seeding, self._beside.stream
        if not seeding or not stream:
            return ()
        num_serving, num_soon = self._present.num_serving, self._present.num_soon
        timers = (
            *seeding.count(num_soon, self._speed, self._num_local, now),
            *seeding.watch(num_serving, num_soon, self._speed, self._num_local, now),
        )
        stream.is_led = seeding.leads
        engines = seeding.lend(stream.lendable, num_serving)
        if not engines:
            return timers
        stream.lend(engines)
        lending = LendEngines(round=seeding.round, engines=engines)
        return *timers, lending, *self._router.close(engines, Closing.LENT)

    def _reclaim(self, event: TimerFired) -> tuple[ReclaimEngines, ...]:
        """Have lent engines come back, if that is due; those that have not left their GPUs yet do not leave them."""
        seeding, stream = self._beside.seeding, self._beside.stream
        reclaims = seeding.fire(event) if seeding else ()
        if reclaims and stream:
            stream.keep()
        return reclaims

    def _take_back(self, event: EnginesReturned) -> tuple[()]:
        if not self._beside.seeding:
            raise ImpossibleEvent(f"It was not ordered: {event}")
        if self._beside.seeding.take_back(event):
            self._router.reopen(Closing.LENT)
        return ()

    # What moves by choice

    def _measure(self, event: TimerFired) -> tuple[MeasureProgress, ...]:
        """Ask how far requests are, if it is time and some could move."""
        if not self._beside.balance:
            return ()
        return self._beside.balance.fire(event, self._movable(), is_starved=self._router.is_starved)

    def level(self, event: ProgressMeasured, now: float) -> tuple[Evict, ...]:
        """Move requests, if a measurement that balance has asked for says that it pays.

        Raises:
            ImpossibleEvent: It cannot have been made; nothing was changed.
        """
        assert self._beside.balance
        validate_progress(event)
        chosen = self._beside.balance.choose(event, self._movable(), self._router.engines, now)
        self._router.pace(self._beside.balance.speeds)
        return tuple(self._router.evict(chosen))

    def _movable(self) -> Mapping[EngineId, Sequence[RequestId]]:
        is_possible = self._is_served and not (self._router.is_suspended or self._router.is_starved)
        return self._router.movable() if is_possible else {}

    @property
    def _is_served(self) -> bool:
        return self._present.num_serving > 0

    @property
    def _num_local(self) -> float:
        """Engines on the trainer's GPUs, if all had the configured degree."""
        number = self._router.num_engines - self._present.num_members
        return number * self._beside.planner.engine_share if self._beside.planner else number

    @property
    def _speed(self) -> float:
        """Of a worker, in engines on the trainer's GPUs."""
        return self._demand.speed * self._present.engines_per_worker

    # Decisions

    def _carry_out(self, decisions: Iterable[FleetDecision]) -> tuple[Command, ...]:
        commands: list[Command] = []
        for decision in decisions:
            match decision:
                case Admit(engine=engine, policy_version=policy_version, kv_tokens=kv_tokens):
                    commands += self._router.join(engine, policy_version, kv_tokens)
                case Remove(engines=engines):
                    commands += self._remove(engines)
                case Close(engines=engines, evicts=evicts):
                    commands += self._router.close(engines, Closing.DRAINING, evicts=evicts)
                case StartMember() | FetchPolicy() | DismissWorker() | SetTimer():
                    commands.append(decision)
                case _:
                    assert_never(decision)
        self._follow_fleet()
        return tuple(commands)

    def _remove(self, engines: Iterable[EngineId]) -> list[Command]:
        present = [engine for engine in engines if engine in self._router.engines]
        for engine in present:
            if self._beside.evaluation:
                self._beside.evaluation.lose(engine)
        return [*self._router.lose(*present)]

    def _follow_fleet(self) -> None:
        self._present = self._count()
        self._set_limit()

    def _count(self) -> _Present:
        num_serving = self.fleet.num_in(Stage.SERVING)
        return _Present(
            num_members=sum(map(self.fleet.is_member, self._router.engines)),
            num_serving=num_serving,
            num_soon=num_serving + len(self.fleet.expected),
            engines_per_worker=self.fleet.engines_per_worker,
            draining=self.fleet.draining,
        )

    def _set_limit(self) -> None:
        """Hold requests back for workers that serve, or are about to."""
        balance = self._settings.balance
        num_expected = sum(self.fleet.expected)
        room = None
        if balance is not None and (num_expected or self._is_served):
            room = Room(num_slots=balance.num_slots, max_pending=balance.max_pending, num_expected=num_expected)
        if room != self._room:
            self._room = room
            self._router.limit(room)

    def check(self) -> None:
        """Re-derive the machines' invariants.

        Raises:
            InvariantViolated: One contradicts itself, or the router.
        """
        self.fleet.check([engine for engine in self._router.engines if self.fleet.is_member(engine)])
        self._demand.check()
        if self._present != self._count():
            raise InvariantViolated(f"Present is {self._count()}, not {self._present}")

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the machines."""
        return {"fleet": self.fleet.snapshot(), "demand": self._demand.snapshot()}

    @classmethod
    def of(
        cls,
        settings: ElasticSettings | None,
        router: Router,
        beside: Companions,
        snapshot: dict[str, Any] | None = None,
    ) -> Self | None:
        """Make them for a run that begins, or as they were; None for a run without workers.

        Args:
            settings: They may be others than those of the snapshot.
            router: Of the run.
            beside: The machines of the run that lend engines and fill rounds.
            snapshot: None if there is none.
        """
        if settings is None:
            return None
        elastic = cls(settings, router, beside)
        if snapshot:
            elastic.fleet = Fleet.restore(settings, snapshot["fleet"])
            elastic._demand = Demand.restore(settings, snapshot["demand"])
            elastic._follow_fleet()
            router.pace(beside.balance.speeds if beside.balance else {})
        if beside.seeding and beside.stream:
            beside.stream.is_led = beside.seeding.leads
        return elastic
