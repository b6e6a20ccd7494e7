"""The open engines in the order in which they get requests: the least loaded first, among equals the first to join.

The load of an engine is what it has in flight, with one more, over its speed. A heap of (load, place in the fleet,
engine), in which entries are passed over when they are out of date. While the heap is kept, each open engine that has
room has a true entry; it is dropped when the fleet or its limits change, or when it has grown much longer than the
fleet, and made when an engine is asked for.

A next turn prefers the engine of the last one, where the conversation is cached (vLLM's prefix caching): any other
would prefill it again. It gets that engine if it is open, has room, and its load is at most the least plus
`MOST_MORE`: a pass over a few sequences more takes hardly longer, as decoding reads the weights once for all of them.

In a run with rollout workers (`core.elastic`) an engine has room for its slots and some more; its slots are fewer if
others have a larger KV cache, in proportion. While others are about to join, none has room that has its share of all
that is in flight, were they there already.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from rollpacker.core.engine_states import EngineFacts
from rollpacker.core.errors import InvariantViolated
from rollpacker.core.ids import EngineId

MOST_ENTRIES: Final = 4
"""Heap entries per engine; with more the heap is dropped. To make it again costs less than these entries did, and while
requests finish and none is launched it costs nothing."""
MOST_MORE: Final = 4
"""Requests in flight on the engine of a trajectory's last turn than on the least loaded one. Modelled, it finds 9 of 10
tokens of agents cached with 4, and 7 with 1 (`tests/benchmarks/results/asynchronous.md`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What engines have room for."""

    num_slots: int
    """Requests that one decodes at a time, memory permitting."""
    max_pending: int
    """So many more, to start when one ends."""
    num_expected: int
    """Engines that are about to join: what is their share waits for them."""


class LoadOrder:
    """Says which engine is next.

    Args:
        held: The fleet in joining order, and what is in flight on each engine.
        closed: Engines that get no launch.
        in_flight: Everything, also what waits.
        facts: Of each engine of the fleet.
    """

    def __init__(
        self,
        held: Mapping[EngineId, Collection[object]],
        closed: Collection[EngineId],
        in_flight: Collection[object],
        facts: Mapping[EngineId, EngineFacts],
    ) -> None:
        self._held = held
        self._closed = closed
        self._in_flight = in_flight
        self._facts = facts
        self.room: Room | None = None
        """None: any number fits on an engine."""
        self._speeds: dict[EngineId, float] = {}
        """Of engines that have another one than 1."""
        self._heap: list[tuple[float, int, EngineId]] = []
        self._is_kept = False
        """Whether the heap, and what follows, are those of now."""
        self._places: dict[EngineId, int] = {}
        self._num_open = 0
        """Engines that are not closed."""
        self._most_kv_tokens = 0
        """Of the largest KV cache."""

    def limit(self, room: Room | None) -> None:
        """Have other limits from now on."""
        self.room = room
        self.drop()

    def pace(self, speeds: Mapping[EngineId, float]) -> None:
        """Have other speeds from now on."""
        self._speeds = dict(speeds)
        self.drop()

    def drop(self) -> None:
        """Follow a change of the fleet, or of the engines that are open."""
        self._is_kept = False
        self._heap.clear()

    def _sort(self) -> None:
        """Make the heap."""
        self._is_kept = True
        self._num_open = sum(each not in self._closed for each in self._held)
        self._most_kv_tokens = max((facts.kv_tokens for facts in self._facts.values()), default=0)
        self._places = {engine: place for place, engine in enumerate(self._held)}
        self._heap = [(self._load(each), self._places[each], each) for each in self._held if self._is_free(each)]
        heapq.heapify(self._heap)

    def note_more(self) -> None:
        """Take down that there are more in flight now: the share of each engine has grown."""
        if self.room and self.room.num_expected:
            self.drop()

    def note_fewer(self, engine: EngineId) -> None:
        """Take down that an engine has fewer in flight now."""
        if len(self._heap) > MOST_ENTRIES * len(self._held):
            self.drop()
        if self._is_kept and self._is_free(engine):
            heapq.heappush(self._heap, (self._load(engine), self._places[engine], engine))

    def has_room(self) -> bool:
        """Tell whether an engine is next."""
        if not self._is_kept:
            self._sort()
        heap = self._heap
        while heap:
            load, _, engine = heap[0]
            if load == self._load(engine) and self._is_free(engine):
                return True
            heapq.heappop(heap)
        return False

    def take(self, num_requests: int, preferred: EngineId | None = None) -> EngineId | None:
        """Name the engine that gets so many more: the preferred one or that which is next; None if none has room."""
        if not self.has_room():
            return None
        least, place, engine = self._heap[0]
        if preferred is not None and self._is_near(preferred, least):
            heapq.heappush(self._heap, (self._load(preferred, num_requests), self._places[preferred], preferred))
            return preferred
        heapq.heapreplace(self._heap, (self._load(engine, num_requests), place, engine))
        return engine

    def _is_near(self, engine: EngineId, least: float) -> bool:
        """Tell whether an engine has room, and is not loaded much more than the least loaded one."""
        return engine in self._held and self._is_free(engine) and self._load(engine) <= least + MOST_MORE

    def _load(self, engine: EngineId, num_more: int = 0) -> float:
        load = len(self._held[engine]) + num_more
        return (load + 1) / self._speeds.get(engine, 1.0) if self._speeds else load

    def _is_free(self, engine: EngineId) -> bool:
        if engine in self._closed:
            return False
        room = self.room
        if room is None:
            return True
        num_held = len(self._held[engine])
        num_sharing = self._num_open + room.num_expected
        is_fair = not room.num_expected or num_held * num_sharing < len(self._in_flight)
        return is_fair and num_held < self._num_slots(engine, room) + room.max_pending

    def _num_slots(self, engine: EngineId, room: Room) -> int:
        own = self._facts[engine].kv_tokens
        return -(-room.num_slots * own // max(self._most_kv_tokens, own)) if own else room.num_slots

    def check(self, *, is_starved: bool) -> None:
        """Re-derive what there is room for.

        Raises:
            InvariantViolated: An entry is missing, or requests wait that there is room for.
        """
        kept, is_kept, numbers = self._heap, self._is_kept, (self._num_open, self._most_kv_tokens)
        self._sort()
        derived, self._heap, self._is_kept = self._heap, kept, is_kept
        if is_kept and (numbers != (self._num_open, self._most_kv_tokens) or not set(derived) <= set(kept)):
            raise InvariantViolated(f"The engines by load are {derived}, not {kept}")
        if is_starved and derived:
            raise InvariantViolated(f"Requests wait, and these engines have room: {derived}")
