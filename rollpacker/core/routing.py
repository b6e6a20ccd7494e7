"""Which engine runs a request: the one with the fewest requests in flight; the one that joined first among equals.

A request is in flight from its launch until it finishes or is told to stop. When an engine is lost, what was in flight
on it is launched again on the others under the same id: the tokens of both attempts come from the same policy version,
so whichever finish is believed, the batch is right; the router believes the engine that holds the request now.

Invariant: every request in flight is on exactly one engine of the fleet.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from typing import Any, Self

from rollpacker.core.commands import Abort, Launch
from rollpacker.core.errors import EngineFailed, ImpossibleEvent, InvariantViolated
from rollpacker.core.ids import EngineId, PromptId, RequestId


class Router:
    """Keeps the fleet of engines and what is in flight on it."""

    def __init__(self) -> None:
        self._loads: dict[EngineId, int] = {}
        """Requests in flight per engine of the fleet, in joining order."""
        self._lost: set[EngineId] = set()
        """Engines that were lost at least once: late facts of theirs may still come."""
        self._in_flight: dict[RequestId, EngineId] = {}
        """In launch order."""

    @property
    def has_engine(self) -> bool:
        return bool(self._loads)

    @property
    def engines(self) -> tuple[EngineId, ...]:
        return tuple(self._loads)

    # The fleet

    def join(self, engine: EngineId) -> list[Launch]:
        """Add an engine; one that is already there has restarted, and lost what was in flight on it."""
        orphans = self._remove(engine)
        self._loads[engine] = 0
        return self.launch(orphans)

    def lose(self, engine: EngineId) -> list[Launch]:
        """Remove an engine and launch elsewhere what was in flight on it.

        Raises:
            EngineFailed: It was the last one; nothing was changed.
        """
        if not self.is_in_fleet(engine):
            return []
        if len(self._loads) == 1:
            raise EngineFailed(
                f"Engine {engine!r} was lost, and no engine is left.",
                "A run needs at least one engine.",
                f"Read why {engine!r} ended in its log under run.dir; run.resume=auto continues from the checkpoint.",
            )
        return self.launch(self._remove(engine))

    def is_in_fleet(self, engine: EngineId) -> bool:
        """Tell a present engine from a lost one.

        Raises:
            ImpossibleEvent: It never joined.
        """
        if engine in self._loads:
            return True
        if engine in self._lost:
            return False
        raise ImpossibleEvent(f"Engine {engine!r} never joined.", f"In the fleet are {list(self._loads)}.")

    def _remove(self, engine: EngineId) -> list[RequestId]:
        """Take an engine out; gives what was in flight on it, in launch order."""
        if self._loads.pop(engine, None) is None:
            return []
        self._lost.add(engine)
        orphans = [request for request, holder in self._in_flight.items() if holder == engine]
        for request in orphans:
            del self._in_flight[request]
        return orphans

    # Requests

    def launch(self, requests: Iterable[RequestId]) -> list[Launch]:
        """Give each request to the engine with the fewest in flight."""
        by_load = [(load, joined, engine) for joined, (engine, load) in enumerate(self._loads.items())]
        heapq.heapify(by_load)
        launches = []
        for request in requests:
            load, joined, engine = by_load[0]
            heapq.heapreplace(by_load, (load + 1, joined, engine))
            self._in_flight[request] = engine
            launches.append(Launch(request=request, engine=engine))
        for load, _, engine in by_load:
            self._loads[engine] = load
        return launches

    def abort(self, requests: Iterable[RequestId]) -> list[Abort]:
        """Order requests in flight to stop, and forget them."""
        return [Abort(request=request, engine=self._forget(request)) for request in requests]

    def finish(self, request: RequestId) -> None:
        """Forget a finished request; one that is not in flight was stopped before and finished all the same."""
        if request in self._in_flight:
            self._forget(request)

    def _forget(self, request: RequestId) -> EngineId:
        engine = self._in_flight.pop(request)
        self._loads[engine] -= 1
        return engine

    def is_in_flight(self, request: RequestId) -> bool:
        return request in self._in_flight

    def has_moved(self, request: RequestId, engine: EngineId) -> bool:
        """Tell whether an engine speaks of a request that another one holds by now.

        Raises:
            ImpossibleEvent: The engine never joined, or was never lost and so cannot have held the request.
        """
        is_present = self.is_in_fleet(engine)
        holder = self._in_flight.get(request, engine)
        if holder == engine:
            return False
        if is_present and engine not in self._lost:
            raise ImpossibleEvent(f"{request} came from engine {engine!r}.", f"Engine {holder!r} holds it.")
        return True

    # Self-check and snapshot

    def check(self, running: Iterable[RequestId]) -> None:
        """Re-derive the router's invariants.

        Raises:
            InvariantViolated: It holds other requests than are running, or counts them wrongly.
        """
        if set(running) != self._in_flight.keys():
            lost_or_extra = sorted(str(request) for request in set(running) ^ self._in_flight.keys())
            raise InvariantViolated(f"Running and in flight differ by {', '.join(lost_or_extra)}")
        counted = Counter(self._in_flight.values())
        if {engine: load for engine, load in self._loads.items() if load} != counted:
            raise InvariantViolated(f"The engines hold {dict(counted)}, counted are {self._loads}")

    def snapshot(self) -> dict[str, Any]:
        return {
            "engines": list(self._loads),
            "lost": sorted(self._lost),
            "in_flight": [
                [round_number, list(prompt), sample, engine]
                for (round_number, prompt, sample), engine in self._in_flight.items()
            ],
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        router = cls()
        router._loads = {EngineId(engine): 0 for engine in snapshot["engines"]}
        router._lost = {EngineId(engine) for engine in snapshot["lost"]}
        for round_number, prompt, sample, engine in snapshot["in_flight"]:
            router._in_flight[RequestId(round_number, PromptId(*prompt), sample)] = EngineId(engine)
            router._loads[EngineId(engine)] += 1
        return router
