"""Which engine runs a request: the one with the fewest requests in flight; the one that joined first among equals.

    engine:  absent ──join──> open ──lend──> lent ──take_back──> open
             open or lent ──lose──> absent         what was in flight on it is launched on open engines
             open or lent ──order_retirement, retire──> absent       nothing was in flight on it

A request is in flight from its launch until it finishes or is told to stop. When an engine is lost, what was in flight
on it is launched again on the others under the same id: the tokens of both attempts come from the same policy version,
so whichever finish is believed, the batch is right; the router believes the engine that holds the request now.

A lent engine gets no launch until it is taken back, also when it restarts or is lost and comes back: its GPUs are the
trainer's. What is in flight on it is told to leave. From there on one fact of three is the first to come:

* its eviction: it is launched on an open engine, and a second eviction, or a finish from the lent engine, is late;
* its finish, which counts as any other; an eviction after it is late;
* the decision of its group: it is told to stop as well and is forgotten, so its eviction, its finish and its abort are
  all late.

Invariant: every request in flight is on exactly one engine of the fleet, and while there is one, an engine is open.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from rollpacker.core.commands import Abort, Evict, Launch
from rollpacker.core.errors import EngineFailed, ImpossibleEvent, InvariantViolated
from rollpacker.core.ids import EngineId, PromptId, RequestId


class Router:
    """Keeps the fleet of engines and what is in flight on it."""

    def __init__(self) -> None:
        self._held: dict[EngineId, dict[RequestId, None]] = {}
        """The fleet in joining order, and what is in flight on each engine, in launch order."""
        self._in_flight: dict[RequestId, EngineId] = {}
        """The same by request, in launch order."""
        self._lent: set[EngineId] = set()
        """Present or absent: an engine that comes back while its GPUs are lent is lent, too."""
        self._retiring: set[EngineId] = set()
        """Engines of the fleet that are to be retired."""
        self._left: set[EngineId] = set()
        """Engines that left the fleet, or that requests were taken from: late facts of theirs may still come."""
        self._by_load: list[tuple[int, int, EngineId]] = []
        """While engines are lent, a heap of (load, place in the fleet, engine): every open engine has a true entry."""
        self._places: dict[EngineId, int] = {}
        """While engines are lent, the places in the fleet."""

    @property
    def has_engine(self) -> bool:
        return bool(self._held)

    @property
    def engines(self) -> tuple[EngineId, ...]:
        """The fleet in joining order, lent engines too."""
        return tuple(self._held)

    @property
    def holders(self) -> Mapping[RequestId, EngineId]:
        """Which engine holds each request in flight."""
        return self._in_flight

    # The fleet

    def join(self, engine: EngineId) -> list[Launch]:
        """Add an engine; one that is already there has restarted, and lost what was in flight on it."""
        orphans = self._remove(engine)
        self._held[engine] = {}
        return self.launch(orphans)

    def lose(self, engine: EngineId) -> list[Launch]:
        """Remove an engine and launch elsewhere what was in flight on it.

        Raises:
            EngineFailed: It was the last one, or the last open one and requests are in flight; nothing was changed.
        """
        if not self.is_in_fleet(engine):
            return []
        self._check_can_leave(engine)
        return self.launch(self._remove(engine))

    def _check_can_leave(self, engine: EngineId) -> None:
        is_another_open = any(other != engine and other not in self._lent for other in self._held)
        if len(self._held) > 1 and (is_another_open or not self._in_flight):
            return
        left = [other for other in self._held if other != engine]
        raise EngineFailed(
            f"Engine {engine!r} was lost, and no engine is left{f' but the lent {left}' if left else ''}.",
            "A run needs at least one engine.",
            f"Read why {engine!r} ended in its log under run.dir; run.resume=auto continues from the checkpoint.",
        )

    def is_in_fleet(self, engine: EngineId) -> bool:
        """Tell a present engine from one that left.

        Raises:
            ImpossibleEvent: It never joined.
        """
        if engine in self._held:
            return True
        if engine in self._left:
            return False
        raise ImpossibleEvent(f"Engine {engine!r} never joined.", f"In the fleet are {list(self._held)}.")

    def _remove(self, engine: EngineId) -> list[RequestId]:
        """Take an engine out; gives what was in flight on it, in launch order."""
        if engine not in self._held:
            return []
        orphans = list(self._held.pop(engine))
        for request in orphans:
            del self._in_flight[request]
        self._left.add(engine)
        self._retiring.discard(engine)
        return orphans

    # Change of engines

    @property
    def is_changing(self) -> bool:
        """True from the order to change engines until the last old one has retired."""
        return bool(self._retiring)

    def order_retirement(self) -> None:
        """Expect every present engine to retire; those that join from now on take their place."""
        self._retiring = set(self._held)

    def retire(self, engine: EngineId) -> None:
        """Remove an engine that sleeps; one that left before changes nothing.

        Raises:
            ImpossibleEvent: Nobody ordered it; nothing was changed.
            EngineFailed: It was the last one; nothing was changed.
        """
        if not self.is_in_fleet(engine):
            return
        if engine not in self._retiring:
            raise ImpossibleEvent(f"Engine {engine!r} retired, which nobody ordered.", "It follows UseParallelism.")
        self._check_can_leave(engine)
        self._remove(engine)

    # Lending

    def lend(self, engines: Sequence[EngineId]) -> list[Evict]:
        """Launch nothing more on some engines, and order away what is in flight on them."""
        self._lent.update(engines)
        self._left.update(engines)
        self._sort_by_load()
        return [Evict(request=request, engine=engine) for engine in engines for request in self._held[engine]]

    def take_back(self) -> None:
        """Launch on the lent engines again."""
        self._lent.clear()
        self._by_load.clear()

    def move(self, request: RequestId, engine: EngineId) -> list[Launch]:
        """Launch an evicted request on an open engine; one that was told to stop, or has moved before, stays away.

        Raises:
            ImpossibleEvent: Nobody ordered its eviction; nothing was changed.
        """
        if self.has_moved(request, engine) or request not in self._in_flight:
            return []
        if engine not in self._lent:
            raise ImpossibleEvent(f"{request} was evicted, which nobody ordered.", "An eviction follows its order.")
        self._forget(request)
        return [self._launch_one(request)]

    # Requests

    def launch(self, requests: Sequence[RequestId]) -> list[Launch]:
        """Give each request to the open engine with the fewest in flight."""
        if not requests and not self._lent:
            return []
        self._sort_by_load()
        launches = [self._launch_one(request) for request in requests]
        if not self._lent:
            self._by_load.clear()
        return launches

    def _sort_by_load(self) -> None:
        self._places = {engine: place for place, engine in enumerate(self._held)}
        self._by_load = [
            (len(held), self._places[engine], engine) for engine, held in self._held.items() if engine not in self._lent
        ]
        heapq.heapify(self._by_load)

    def _launch_one(self, request: RequestId) -> Launch:
        by_load = self._by_load
        load, place, engine = by_load[0]
        held = self._held[engine]
        while load != len(held):  # a stale entry: something was launched or forgotten since
            heapq.heappop(by_load)
            load, place, engine = by_load[0]
            held = self._held[engine]
        heapq.heapreplace(by_load, (load + 1, place, engine))
        held[request] = None
        self._in_flight[request] = engine
        return Launch(request=request, engine=engine)

    def abort(self, requests: Iterable[RequestId]) -> list[Abort]:
        """Order requests in flight to stop, and forget them."""
        return [Abort(request=request, engine=self._forget(request)) for request in requests]

    def finish(self, request: RequestId) -> bool:
        """Forget a finished request; False if it is not in flight: it was stopped before and finished all the same."""
        if request not in self._in_flight:
            return False
        self._forget(request)
        return True

    def _forget(self, request: RequestId) -> EngineId:
        engine = self._in_flight.pop(request)
        held = self._held[engine]
        del held[request]
        if self._lent and engine not in self._lent:
            heapq.heappush(self._by_load, (len(held), self._places[engine], engine))
        return engine

    def is_in_flight(self, request: RequestId) -> bool:
        return request in self._in_flight

    def has_moved(self, request: RequestId, engine: EngineId) -> bool:
        """Tell whether an engine speaks of a request that another one holds by now.

        Raises:
            ImpossibleEvent: The engine never joined, or nothing was ever taken from it, so it cannot have held it.
        """
        is_present = self.is_in_fleet(engine)
        holder = self._in_flight.get(request, engine)
        if holder == engine:
            return False
        if is_present and engine not in self._left:
            raise ImpossibleEvent(f"{request} came from engine {engine!r}.", f"Engine {holder!r} holds it.")
        return True

    # Self-check and snapshot

    def check(self, running: Iterable[RequestId]) -> None:
        """Re-derive the router's invariants.

        Raises:
            InvariantViolated: It holds other requests than are running, or in two books, or nobody can take a launch.
        """
        if set(running) != self._in_flight.keys():
            lost_or_extra = sorted(str(request) for request in set(running) ^ self._in_flight.keys())
            raise InvariantViolated(f"Running and in flight differ by {', '.join(lost_or_extra)}")
        by_engine = {request: engine for engine, held in self._held.items() for request in held}
        if by_engine != self._in_flight or sum(map(len, self._held.values())) != len(self._in_flight):
            raise InvariantViolated(f"The engines hold {self._held}; in flight is {self._in_flight}")
        is_open = [engine for engine in self._held if engine not in self._lent]
        if self._in_flight and not is_open:
            raise InvariantViolated(f"Requests are in flight, and all engines are lent: {sorted(self._lent)}")
        true_entries = {(len(self._held[engine]), self._places.get(engine), engine) for engine in is_open}
        if self._lent and not true_entries <= set(self._by_load):
            raise InvariantViolated(f"The engines by load are {true_entries}, not {self._by_load}")
        if not self._retiring <= self._held.keys():
            raise InvariantViolated(f"Engines that left are to retire: {sorted(self._retiring)}")

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the router."""
        return {
            "engines": list(self._held),
            "lent": sorted(self._lent),
            "retiring": sorted(self._retiring),
            "left": sorted(self._left),
            "in_flight": [
                [round_number, list(prompt), sample, engine]
                for (round_number, prompt, sample), engine in self._in_flight.items()
            ],
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        """Rebuild the router that gave the snapshot."""
        router = cls()
        router._held = {EngineId(engine): {} for engine in snapshot["engines"]}
        router._lent = {EngineId(engine) for engine in snapshot["lent"]}
        router._retiring = {EngineId(engine) for engine in snapshot["retiring"]}
        router._left = {EngineId(engine) for engine in snapshot["left"]}
        for round_number, prompt, sample, engine in snapshot["in_flight"]:
            request = RequestId(round_number, PromptId(*prompt), sample)
            router._in_flight[request] = EngineId(engine)
            router._held[EngineId(engine)][request] = None
        if router._lent:
            router._sort_by_load()
        return router
