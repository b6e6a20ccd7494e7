"""Where held-out requests run beside a training round: in decode slots that it leaves idle.

    request: waiting ──an engine has room──> held ──told to leave──> leaving ──evicted──> waiting
                                             held or leaving ──finished, or the evaluation is cut──> gone
                                             held or leaving ──its engine is lost──> waiting

An engine's room is what training leaves of its slots, and of its KV cache if every request were as long as it may be.
So no training request waits for a slot or for memory that a held-out one has, nor is one preempted for it. Where
training needs room again, because an engine was lost, the held-out requests that came last leave; they keep their
tokens and wait first in line. An engine that gets no launch, since it is lent, has no room.

Invariant: on no engine more held-out requests stay than it has room for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from rollpacker.core.commands import Abort, Evict, Launch
from rollpacker.core.ids import EngineId, RequestId


class Filling:
    """Places held-out requests, and takes them away again."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[RequestId, None] = OrderedDict()
        """In launch order. As in `core.waiting` no plain dict."""
        self._held: dict[EngineId, dict[RequestId, None]] = {}
        """What stays on each engine, in launch order."""
        self._leaving: dict[EngineId, dict[RequestId, None]] = {}
        """What each engine was told to evict or to stop, and has not answered."""

    def begin(self, requests: Sequence[RequestId]) -> None:
        """Let requests wait for room, in launch order."""
        self._waiting = OrderedDict.fromkeys(requests)

    def fill(self, rooms: Mapping[EngineId, int]) -> list[Launch | Evict]:
        """Launch what there is room for, the roomiest engine first, and order away what has none any more.

        Args:
            rooms: How many requests each engine may have beside those of training; an engine left out has no room.
        """
        orders: list[Launch | Evict] = []
        for engine, held in self._held.items():
            num_excess = len(held) - max(0, rooms.get(engine, 0))
            for request in list(held)[::-1][: max(0, num_excess)]:
                del held[request]
                self._leaving.setdefault(engine, {})[request] = None
                orders.append(Evict(request=request, engine=engine))
        if not self._waiting:
            return orders
        free = {
            engine: room - len(self._held.get(engine, ())) - len(self._leaving.get(engine, ()))
            for engine, room in rooms.items()
        }
        while self._waiting and free:
            engine = max(free, key=free.__getitem__)
            if free[engine] <= 0:
                break
            free[engine] -= 1
            request, _ = self._waiting.popitem(last=False)
            self._held.setdefault(engine, {})[request] = None
            orders.append(Launch(request=request, engine=engine))
        return orders

    def stop(self) -> list[Abort]:
        """Order everything to stop."""
        self._waiting.clear()
        orders = [Abort(request=request, engine=engine) for engine, held in self._held.items() for request in held]
        orders += [Abort(request=request, engine=engine) for engine, each in self._leaving.items() for request in each]
        for engine, held in self._held.items():
            self._leaving.setdefault(engine, {}).update(held)
        self._held = {}
        return orders

    def stays(self, request: RequestId, engine: EngineId) -> bool:
        """Tell whether an engine has a request that was not told to leave."""
        return request in self._held.get(engine, ())

    def take_back(self, request: RequestId, engine: EngineId) -> bool:
        """Note that an engine has given a request back; False if it did not have it."""
        for place in (self._held, self._leaving):
            if request in place.get(engine, ()):
                del place[engine][request]
                return True
        return False

    def wait_first(self, requests: Sequence[RequestId]) -> None:
        """Let requests that ran before wait ahead of all others."""
        self._waiting = OrderedDict.fromkeys([*requests, *self._waiting])

    def lose(self, engine: EngineId) -> list[RequestId]:
        """Forget an engine; gives what it had, in launch order."""
        return [*self._held.pop(engine, ()), *self._leaving.pop(engine, ())]

    def are_empty(self, engines: Collection[EngineId]) -> bool:
        """Tell whether some engines have no request."""
        return not any(self._held.get(engine) or self._leaving.get(engine) for engine in engines)

    @property
    def requests(self) -> list[RequestId]:
        """Everything that waits or that an engine has."""
        on_engines = [request for place in (self._held, self._leaving) for each in place.values() for request in each]
        return [*self._waiting, *on_engines]

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data."""
        return {
            "waiting": _as_lists(self._waiting),
            "held": [[engine, _as_lists(requests)] for engine, requests in self._held.items()],
            "leaving": [[engine, _as_lists(requests)] for engine, requests in self._leaving.items()],
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        """Rebuild the one that gave the snapshot."""
        filling = cls()
        filling._waiting = OrderedDict.fromkeys(_from_lists(snapshot["waiting"]))
        filling._held = {EngineId(engine): _from_lists(plain) for engine, plain in snapshot["held"]}
        filling._leaving = {EngineId(engine): _from_lists(plain) for engine, plain in snapshot["leaving"]}
        return filling


def _as_lists(requests: Collection[RequestId]) -> list[Any]:
    return [request.as_list() for request in requests]


def _from_lists(plain: Sequence[Any]) -> dict[RequestId, None]:
    return dict.fromkeys(map(RequestId.from_list, plain))
