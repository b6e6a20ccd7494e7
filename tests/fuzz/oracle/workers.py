"""The reference model of rollout workers: who may get requests, what is late, and that nothing in flight is lost.

Everything is derived from what was told and ordered; nothing is asked of the machines but what waits, and which engines
count as faster or slower than others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rollpacker.core.commands import (
    Abort,
    BeginRound,
    Command,
    DismissWorker,
    Evict,
    FetchPolicy,
    Launch,
    LendEngines,
    MeasureProgress,
    ReclaimEngines,
    StreamGroups,
    WishWorkers,
)
from rollpacker.core.elastic_settings import ElasticSettings
from rollpacker.core.events import (
    EngineJoined,
    EngineLost,
    EnginesReturned,
    EngineStarted,
    EngineStartFailed,
    EngineUpdated,
    Event,
    FetchFailed,
    NoticeGiven,
    PolicyPublished,
    PolicyUpdated,
    ProgressMeasured,
    ResponseAborted,
    ResponseEvicted,
    ResponseFinished,
    StepStarted,
    TimerFired,
    WorkerArrived,
    WorkerLeft,
)
from rollpacker.core.ids import EngineId, RequestId, WorkerId

SLACK_S = 1e-6
"""Of a comparison of times."""


@dataclass
class WorkerModel:
    """What is known of a worker that was not dismissed."""

    num_engines: int
    arrived_at_s: float
    ends_at_s: float
    started: set[EngineId] = field(default_factory=set)
    holds: dict[EngineId, int] = field(default_factory=dict)
    started_at_s: float | None = None
    """All engines."""
    is_late: bool = False
    """Nothing is held back for it until it has served, and another policy is published."""
    behind_since_s: float = 0.0
    """Since when it could hold a policy, and did not serve."""


class ElasticModel:
    """The fleet and what is in flight on it."""

    def __init__(self, settings: ElasticSettings) -> None:
        self.settings = settings
        self.version = -1
        self.lives: dict[str, int] = {}
        self.workers: dict[WorkerId, WorkerModel] = {}
        self.local: dict[EngineId, None] = {}
        self.lent: set[EngineId] = set()
        self.holders: dict[RequestId, EngineId] = {}
        self.wish = settings.max_workers
        self.num_lent_to = 0
        """The most workers that have served since engines were lent."""
        self.is_returning = False
        """The lent engines are."""
        self.idle_since_s: float | None = None
        """Nobody serves while engines are lent."""
        self.num_moves: Counter[RequestId] = Counter()
        """By choice, in the round."""
        self.num_owed: Counter[int] = Counter()
        """Measurements that were asked for, by round."""
        self.queue: list[RequestId] = []
        """What waits for room and was on an engine, in the order in which it left."""
        self.of_unknown_rank: set[RequestId] = set()
        """What waited when it was not known here whether engines have room for any number."""
        self.speeds: Mapping[EngineId, float] = {}
        self.is_suspended = False
        """The policy of an asynchronous run was updated, and its next step has not started."""
        self.joining: WorkerId | None = None
        """The worker that the event is about."""

    # What was told

    def is_late(self, event: Event) -> bool:
        """Whether a fact is of a worker that is fenced, or gone."""
        match event:
            case WorkerArrived(worker=worker):
                element, life = split(worker)
                return life <= self.lives.get(element, -1)
            case NoticeGiven(worker=worker):
                return worker not in self.workers
            case EngineStarted(engine=engine) | EngineStartFailed(engine=engine) | FetchFailed(engine=engine):
                return owner(engine) not in self.workers
            case EngineUpdated(engine=engine, policy_version=version) if "." in engine:
                return owner(engine) not in self.workers or version != self.version
            case EngineLost(engine=engine) if "." in engine:
                return owner(engine) not in self.workers
        return False

    def note(
        self,
        event: Event,
        commands: Sequence[Command],
        waiting: Collection[RequestId],
        now: float,
        speeds: Mapping[EngineId, float],
    ) -> None:
        in_flight = {*self.holders}
        self.speeds = speeds
        self.joining = owner(event.engine) if isinstance(event, EngineUpdated) else None
        if self.is_late(event):
            assert not commands, f"a late fact led to something: {event}: {commands}"
        self._note_lateness(event)
        self._hear(event, now)
        gone: set[WorkerId] = set()
        self._check_moves(event, commands)
        for command in commands:
            self._check(command, now, gone)
        for request in in_flight - self._answered(event, commands):
            assert (request in self.holders) != (request in waiting), f"{request} is lost, or twice in flight"
        self._check_queue(in_flight, commands, waiting, now)
        self._check_rooms(waiting)
        self._check_shares(commands, len(in_flight | {*self.holders, *waiting}), waiting, now)
        self._check_deadlines(now)
        self._check_return(now)
        self.num_lent_to = max(self.num_lent_to, self._num_serving())

    def _answered(self, event: Event, commands: Sequence[Command]) -> set[RequestId]:
        stopped = {command.request for command in commands if isinstance(command, Abort)}
        return stopped | ({event.request} if isinstance(event, ResponseFinished | ResponseAborted) else set())

    def _hear(self, event: Event, now: float) -> None:  # noqa: C901, PLR0912 one case per fact
        match event:
            case EngineJoined(engine=engine):
                self.local[engine] = None
            case PolicyPublished(policy_version=version):
                for name, worker in self.workers.items():
                    if self.serves(name) or self.version < 0:
                        worker.behind_since_s = now
                    worker.holds = {}
                    self._release(name)
                self.version = version
            case PolicyUpdated():
                self.is_suspended = True
            case WorkerArrived() if not self.is_late(event):
                self._arrive(event, now)
            case NoticeGiven(worker=name, leaves_in_s=left_s) if name in self.workers:
                self.workers[name].ends_at_s = min(self.workers[name].ends_at_s, now + left_s)
            case WorkerLeft(worker=name):
                self._forget(name)
            case EngineStarted(engine=engine) if owner(engine) in self.workers:
                worker = self.workers[owner(engine)]
                worker.started.add(engine)
                if len(worker.started) == worker.num_engines and worker.started_at_s is None:
                    worker.started_at_s = worker.behind_since_s = now
            case EngineUpdated(engine=engine, policy_version=version) if owner(engine) in self.workers:
                if version == self.version:
                    self.workers[owner(engine)].holds[engine] = version
            case ResponseFinished(request=request, engine=engine) | ResponseEvicted(request=request, engine=engine):
                if self.holders.get(request) == engine:
                    del self.holders[request]
            case EnginesReturned(engines=engines):
                self.lent -= set(engines)
                self.is_returning = False
            case StepStarted():
                self.lent.clear()
                self.is_returning = self.is_suspended = False

    def _arrive(self, event: WorkerArrived, now: float) -> None:
        element, life = split(event.worker)
        for older in [name for name in self.workers if split(name)[0] == element]:
            self._release(older)
            del self.workers[older]
        self.lives[element] = life
        ends_at_s = float("inf") if event.leaves_in_s is None else now + event.leaves_in_s
        self.workers[event.worker] = WorkerModel(event.num_engines, now, ends_at_s)

    def _release(self, name: WorkerId) -> None:
        self.holders = {request: engine for request, engine in self.holders.items() if owner(engine) != name}

    def _forget(self, name: WorkerId) -> None:
        self._release(name)
        self.workers.pop(name, None)

    # What was ordered

    def _check(self, command: Command, now: float, gone: set[WorkerId]) -> None:
        match command:
            case Launch(request=request, engine=engine):
                assert not self.is_suspended, f"{request} was launched under a policy that is replaced"
                assert owner(engine) not in gone
                assert self.may_get(engine, now), f"{engine} got {request}"
                self._check_load(engine, now)
                assert request not in self.holders, f"{request} is in flight twice"
                self.holders[request] = engine
            case Evict(request=request, engine=engine):
                assert self.holders.get(request) == engine, f"{request} was not on {engine}"
            case Abort(request=request):
                self.holders.pop(request, None)
            case DismissWorker(worker=name):
                gone.add(name)
                self._forget(name)
            case FetchPolicy(engine=engine, policy_version=version):
                assert owner(engine) in self.workers
                assert version == self.version, "an old policy was fetched"
            case WishWorkers(num_workers=num_workers):
                assert self.settings.min_workers <= num_workers <= self.settings.max_workers
                assert abs(num_workers - self.wish) <= 1, "the wish jumped"
                self.wish = num_workers
            case LendEngines(engines=engines):
                assert set(engines) == set(self.local), "not all engines on the trainer's GPUs were lent"
                assert any(self.serves(name) for name in self.workers), "lent while no worker serves"
                self.lent |= set(engines)
                self.num_lent_to = self._num_serving()
            case StreamGroups():
                is_due = bool(self.lent) and not self.is_returning
                assert is_due, "engines leave that are to come back"
            case ReclaimEngines(engines=engines):
                assert set(engines) == self.lent
                is_enough = self._num_open(now) >= self.num_lent_to
                assert not is_enough or len(self.workers) > self.wish, "taken back while as many workers serve"
                self.is_returning = True

    def _check_load(self, engine: EngineId, now: float) -> None:
        """The engine that gets a request has the fewest for its speed; those of a worker join one after the other."""
        loads = Counter(self.holders.values())
        others = [each for each in self.open(now) if "." not in each or owner(each) != self.joining]
        if self.speeds:  # then the one that is next may be full, or have its share
            are_expected = any(
                each.started_at_s is not None and not self.serves(name) for name, each in self.workers.items()
            )
            if are_expected or self.joining:
                return
            balance = self.settings.balance
            others = [each for each in others if balance and loads[each] < balance.num_slots + balance.max_pending]
        load = {each: (loads[each] + 1) / self.speeds.get(each, 1.0) for each in (*others, engine)}
        assert load[engine] <= min(load.values()), "not the least loaded engine"

    def serves(self, name: WorkerId) -> bool:
        """Whether a worker holds the newest policy with all of its engines."""
        worker = self.workers[name]
        return len(worker.started) == len(worker.holds) == worker.num_engines

    def may_get(self, engine: EngineId, now: float) -> bool:
        """Whether a request may be launched on an engine."""
        if engine in self.local:
            return engine not in self.lent
        name = owner(engine)
        if name not in self.workers or not self.serves(name):
            return False
        return now < self.workers[name].ends_at_s - self.settings.drain_lead_s + SLACK_S

    def _num_serving(self) -> int:
        return sum(self.serves(name) for name in self.workers)

    def _num_open(self, now: float) -> int:
        """Workers that get requests, and will a moment later: one that drains still serves, and gets none."""
        return len(self.workers.keys() & {owner(engine) for engine in self.open(now)})

    def open(self, now: float) -> list[EngineId]:
        """The engines that certainly get requests: one that is about to drain may, or may not any more."""
        members = [engine for worker in self.workers.values() for engine in worker.holds]
        return [engine for engine in (*self.local, *members) if self.may_get(engine, now + 2 * SLACK_S)]

    def _check_moves(self, event: Event, commands: Sequence[Command]) -> None:
        """Requests move by choice only after a measurement, no more often than they may, and while none waits."""
        if isinstance(event, ProgressMeasured):
            assert self.num_owed[event.round] > 0
            self.num_owed[event.round] -= 1
        for command in commands:
            match command:
                case MeasureProgress(round=number) if isinstance(event, TimerFired):
                    assert any(self.serves(name) for name in self.workers), "engines are asked while no worker serves"
                    self.num_owed[number] += 1
                case BeginRound():
                    self.num_moves.clear()
                case Evict(request=request) if isinstance(event, ProgressMeasured):
                    assert self.settings.balance is not None
                    self.num_moves[request] += 1
                    is_allowed = self.num_moves[request] <= self.settings.balance.max_moves
                    assert is_allowed, f"{request} moved too often by choice"

    # What holds after each event

    def _check_rooms(self, waiting: Collection[RequestId]) -> None:
        """Nobody waits for workers that are not there."""
        is_any_near = any(worker.started_at_s is not None for worker in self.workers.values())
        if waiting and not (is_any_near or self.is_suspended):
            assert set(self.local) <= self.lent, f"{len(waiting)} requests wait, and engines are open"

    def _check_queue(
        self, before: Collection[RequestId], commands: Sequence[Command], waiting: Collection[RequestId], now: float
    ) -> None:
        """Where few have room, what was on an engine is launched first, in the order in which it left."""
        is_limited = self.settings.balance is not None and not (self._num_draining(now) or self.is_suspended)
        if not is_limited or not any(worker.started_at_s is not None for worker in self.workers.values()):
            self.queue, self.of_unknown_rank = [], set(waiting)
            return
        launched = {command.request for command in commands if isinstance(command, Launch)}
        left = [request for request in self.queue if request in launched or request in waiting]
        num_launched = sum(request in launched for request in left)
        assert launched.issuperset(left[:num_launched]), "one that left later was launched first"
        are_allowed = launched <= {*left, *before, *self.of_unknown_rank}
        assert num_launched == len(left) or are_allowed, "one that had not begun was launched first"
        left = [request for request in left if request in waiting]
        self.queue = left + [request for request in waiting if request in before and request not in left]

    def _check_shares(
        self, commands: Sequence[Command], num_requests: int, waiting: Collection[RequestId], now: float
    ) -> None:
        """Engines leave as much to others as they should, and no more."""
        if self.settings.balance is None or self._num_draining(now) or self.is_suspended:
            return  # of one that drains it is not known here whether it still counts
        loads = Counter(self.holders.values())
        for engine in {command.engine for command in commands if isinstance(command, Launch)} & set(self.open(now)):
            # the last launch there found one less
            assert self._has_room(loads[engine] - 1, num_requests, now), f"{engine} got more than it should"
        for engine in self.open(now) if waiting else ():
            num_left = len(self.holders) + len(waiting)
            assert not self._has_room(loads[engine], num_left, now), f"requests wait, and {engine} has room"

    def _note_lateness(self, event: Event) -> None:
        for name, worker in self.workers.items():
            if isinstance(event, PolicyPublished):
                worker.is_late = worker.is_late and not self.serves(name)
            elif isinstance(event, TimerFired) and event.timer == f"{name} late":
                worker.is_late = True

    def _is_expected(self, name: WorkerId) -> bool:
        worker = self.workers[name]
        return worker.started_at_s is not None and not worker.is_late and not self.serves(name)

    def _has_room(self, load: int, num_requests: int, now: float) -> bool:
        """Whether an engine with so many in flight gets another one."""
        balance = self.settings.balance
        assert balance is not None
        expected = [each for name, each in self.workers.items() if self._is_expected(name)]
        if not expected and not self._num_serving():
            return True
        num_expected = sum(worker.num_engines for worker in expected)
        is_fair = not expected or load * (len(self.open(now)) + num_expected) < num_requests
        return load < balance.num_slots + balance.max_pending and is_fair

    def _check_return(self, now: float) -> None:
        """A round stands still for `reclaim_after_s` at most when nobody serves: then what is lent comes back."""
        is_served = any(self.serves(name) for name in self.workers)
        if not self.lent or is_served or self.is_returning:
            self.idle_since_s = None
            return
        self.idle_since_s = now if self.idle_since_s is None else self.idle_since_s
        assert self.settings.seeding is not None
        most_s = self.settings.seeding.reclaim_after_s
        assert now <= self.idle_since_s + most_s + SLACK_S, "nobody generates, and lent engines stay away"

    def _check_deadlines(self, now: float) -> None:
        settings = self.settings
        assert len(self.workers) - self._num_draining(now) <= settings.max_workers, "too many workers"
        for name, worker in self.workers.items():
            assert now <= worker.ends_at_s + SLACK_S, f"{name} is there after its end"
            if worker.started_at_s is None:
                assert now <= worker.arrived_at_s + settings.start_s + SLACK_S, f"{name} starts for too long"
            elif not self.serves(name) and self.version >= 0:
                assert now <= worker.behind_since_s + settings.fetch_s + SLACK_S, f"{name} catches up for too long"

    def _num_draining(self, now: float) -> int:
        return sum(now >= each.ends_at_s - self.settings.drain_lead_s - SLACK_S for each in self.workers.values())


def split(worker: WorkerId) -> tuple[str, int]:
    element, _, life = worker.rpartition("-r")
    return element, int(life)


def owner(engine: EngineId) -> WorkerId:
    return WorkerId(engine.rpartition(".")[0])
