"""The open engines in the order in which they get requests: the least loaded first, among equals the first to join.

A heap of (requests in flight, place in the fleet, engine), in which entries are passed over when they are out of date.
Each open engine that has room has a true entry; it is kept up while engines are closed or may be full, and else made
anew for each launch, since then finishes need not be noted.

In a run with rollout workers (`core.elastic`) an engine that has `most` in flight has no room; while others are about
to join, neither has one that has its share of all that is in flight, were they there already.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping

from rollpacker.core.errors import InvariantViolated
from rollpacker.core.ids import EngineId


class LoadOrder:
    """Says which engine is next.

    Args:
        held: The fleet in joining order, and what is in flight on each engine.
        closed: Engines that get no launch.
        in_flight: Everything, also what waits.
    """

    def __init__(
        self,
        held: Mapping[EngineId, Collection[object]],
        closed: Collection[EngineId],
        in_flight: Collection[object],
    ) -> None:
        self._held = held
        self._closed = closed
        self._in_flight = in_flight
        self._most: int | None = None
        """An engine has no more in flight; None: any number."""
        self._num_expected = 0
        """Engines that are about to join."""
        self._heap: list[tuple[int, int, EngineId]] = []
        self._places: dict[EngineId, int] = {}

    def limit(self, most: int | None, num_expected: int) -> None:
        """Have other limits from now on."""
        self._most, self._num_expected = most, num_expected
        self.tidy()

    def begin(self) -> None:
        """Sort the engines."""
        self._places = {engine: place for place, engine in enumerate(self._held)}
        self._heap = [(len(self._held[each]), self._places[each], each) for each in self._held if self._is_free(each)]
        heapq.heapify(self._heap)

    def go_on(self) -> None:
        """Sort the engines, unless the order is kept."""
        if not self._is_kept:
            self.begin()

    def end(self) -> None:
        """Forget the order, unless it is kept."""
        if not self._is_kept:
            self._heap.clear()

    def tidy(self) -> None:
        """Follow a change of the engines that are open."""
        if self._is_kept:
            self.begin()
        else:
            self._heap.clear()

    @property
    def _is_kept(self) -> bool:
        return bool(self._closed) or self._most is not None

    def note(self, engine: EngineId) -> None:
        """Take down that an engine has fewer in flight now."""
        if self._is_kept and self._is_free(engine):
            heapq.heappush(self._heap, (len(self._held[engine]), self._places[engine], engine))

    def has_room(self) -> bool:
        """Tell whether an engine is next."""
        heap = self._heap
        while heap:
            load, _, engine = heap[0]
            if load == len(self._held[engine]) and self._is_free(engine):
                return True
            heapq.heappop(heap)
        return False

    def take(self, num_requests: int) -> EngineId | None:
        """Name the engine that is next, and that gets so many more; None if none has room."""
        if not self.has_room():
            return None
        load, place, engine = self._heap[0]
        heapq.heapreplace(self._heap, (load + num_requests, place, engine))
        return engine

    def _is_free(self, engine: EngineId) -> bool:
        if engine in self._closed:
            return False
        num_held = len(self._held[engine])
        if self._most is None:
            return True
        num_open = sum(each not in self._closed for each in self._held) if self._num_expected else 1
        is_fair = not self._num_expected or num_held * (num_open + self._num_expected) < len(self._in_flight)
        return num_held < self._most and is_fair

    def check(self, *, is_starved: bool) -> None:
        """Re-derive what there is room for.

        Raises:
            InvariantViolated: An entry is missing, or requests wait that there is room for.
        """
        free = [engine for engine in self._held if self._is_free(engine)]
        entries = {(len(self._held[engine]), self._places.get(engine), engine) for engine in free}
        if self._is_kept and not entries <= set(self._heap):
            raise InvariantViolated(f"The engines by load are {entries}, not {self._heap}")
        if is_starved and free:
            raise InvariantViolated(f"Requests wait, and these engines have room: {free}")
