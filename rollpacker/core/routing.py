"""Which engine runs a request: the one with the fewest in flight for its speed; of equal ones the first to have joined.

By default each sample of a prompt is placed by itself; with `together`, those launched at once go to one engine.

    engine:  absent ──join──> open ──close(lent)──> closed ──reopen(lent)──> open
                              open ──close(retiring)──> closed ──retire──> absent      nothing was in flight on it
             open or closed ──lose──> absent       what was in flight on it is launched on open engines

    request: waiting ──an engine is open──> on an engine ──its engine is lost, or it is evicted──> waiting

A request is in flight until it finishes or is told to stop, and is launched as soon as an engine is open: nearly always
at once. While none is, because all were lost or the others are closed, it waits, and the engine that joins next gets
what waits, in order. Whether one will come is the business of `core.restarts`.

When an engine is lost, what was in flight on it is launched again on the others under the same id: the tokens of both
attempts come from the same policy version, so whichever finish is believed, the batch is right; the router believes the
engine that holds the request now, and none while it waits.

A closed engine gets no launch, and what is in flight on it is told to leave. One that is lent stays closed until all
are taken back, also when it restarts or is lost and comes back: its GPUs are the trainer's. Only the others of its
block are opened again if it was not empty yet (`core.stream_scaling`). From the order to leave on, one fact of three is
the first to come:

* its eviction: it is launched on an open engine, or waits for one, and a second eviction, or a finish from the closed
  engine, is late; once the request is back there an eviction is impossible: what an engine let go unordered is lost;
* its finish, which counts as any other; an eviction after it is late;
* the decision of its group: it is told to stop as well and is forgotten, so its eviction, its finish and its abort are
  all late.

A request that was told to stop or to leave is **leaving** its engine until that one answers. An engine on which nothing
is in flight or leaving is empty.

In an asynchronous run all engines are suspended while they get new weights: nothing is launched but held-out requests,
and what is in flight is ordered away, as from a closed engine, and waits with its tokens; or it is kept where it is.
A request may also be ordered away from an open engine, to be launched on the one that is next then (`core.balance`).

Invariant: every request in flight is on exactly one engine of the fleet, or waits, and then no open engine has room.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

from rollpacker.core.commands import Abort, Evict, Launch
from rollpacker.core.engine_states import Closing, EngineFacts
from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.core.ids import EngineId, RequestId, is_held_out
from rollpacker.core.load_order import LoadOrder, Room
from rollpacker.core.waiting import Waiting


class Router:
    """Keeps the fleet of engines and what is in flight on it."""

    def __init__(self, *, together: bool = False) -> None:
        self._together = together
        self._held: dict[EngineId, dict[RequestId, None]] = {}
        """The fleet in joining order, and what is in flight on each engine, in launch order."""
        self._in_flight: dict[RequestId, EngineId | None] = {}
        """The same by request; None waits for an engine."""
        self._facts: dict[EngineId, EngineFacts] = {}
        """Of each engine of the fleet."""
        self._closed: dict[EngineId, Closing] = {}
        """Lent ones present or absent: an engine that comes back while its GPUs are lent is lent, too."""
        self._leaving: dict[EngineId, dict[RequestId, None]] = {}
        """What each engine of the fleet was told to stop or to evict, and has not answered."""
        self._left: set[EngineId] = set()
        """Engines that left the fleet, or that requests were taken from: late facts of theirs may still come."""
        self._by_load = LoadOrder(self._held, self._closed, self._in_flight, self._facts)
        self._is_overflowing = False
        """Something may wait for room on an engine."""
        self._waiting = Waiting(self._in_flight, self._is_held_back)
        self.is_suspended = self.keeps_requests = False
        """Whether requests of training wait for new weights; and whether those in flight stay on their engines."""

    @property
    def engines(self) -> tuple[EngineId, ...]:
        """The fleet in joining order, closed engines too."""
        return tuple(self._held)

    @property
    def num_engines(self) -> int:
        return len(self._held)

    @property
    def open_engines(self) -> tuple[EngineId, ...]:
        """Those that get launches."""
        return tuple(engine for engine in self._held if engine not in self._closed)

    @property
    def known(self) -> Collection[EngineId]:
        """All engines that ever joined and may still be heard of."""
        return self._held.keys() | self._left

    @property
    def holders(self) -> Mapping[RequestId, EngineId | None]:
        """Which engine holds each request in flight; None for one that waits."""
        return self._in_flight

    @property
    def is_starved(self) -> bool:
        """True while requests wait for an engine."""
        return next(self._waiting.listed(), None) is not None

    @property
    def is_stranded(self) -> bool:
        """True while requests wait and no engine is open."""
        return self._held.keys() <= self._closed.keys() and self.is_starved

    def rooms(self, num_slots: int, max_tokens: int) -> dict[EngineId, int]:
        """How many requests more each open engine takes without one of those in flight waiting for it.

        Args:
            num_slots: Of an engine.
            max_tokens: The longest that any request may become; they are taken to be as long as that.
        """
        return {
            engine: (min(num_slots, facts.kv_tokens // max_tokens) if facts.kv_tokens else num_slots)
            - len(self._held[engine])
            - len(self._leaving.get(engine, ()))
            for engine, facts in self._facts.items()
            if engine not in self._closed
        }

    # The fleet

    def join(self, engine: EngineId, version: int, kv_tokens: int, closing: Closing | None = None) -> list[Launch]:
        """Add an engine and launch what waits; one that is already there has restarted, and lost what was on it."""
        self._remove(engine)
        self._held[engine] = {}
        if closing:
            self._closed[engine] = closing
        self._facts[engine] = EngineFacts(version, kv_tokens)
        self._by_load.drop()
        return self.launch(list(self._waiting.listed()))

    def update(self, engine: EngineId, policy_version: int) -> None:
        """Note that an engine holds another policy version; one that left changes nothing.

        Raises:
            ImpossibleEvent: Something is in flight on it; nothing was changed.
        """
        if not self.is_in_fleet(engine):
            return
        if self._held[engine] and not self.keeps_requests:
            raise ImpossibleEvent(f"{engine} was updated with {len(self._held[engine])} requests in flight.")
        self._facts[engine].policy_version = policy_version

    def require_version(self, policy_version: int) -> None:
        """Check that every engine holds a policy version.

        Raises:
            ImpossibleEvent: One does not.
        """
        for engine, facts in self._facts.items():
            if facts.policy_version != policy_version:
                raise ImpossibleEvent(
                    f"{engine} holds policy version {facts.policy_version}.",
                    f"In a step that begins with version {policy_version} every engine holds that.",
                )

    def lose(self, *engines: EngineId) -> list[Launch]:
        """Remove engines and launch elsewhere what was in flight on them."""
        present = [engine for engine in engines if self.is_in_fleet(engine)]
        return self.launch([orphan for engine in present for orphan in self._remove(engine)]) if present else []

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
        """Take an engine out; gives what was in flight on it, in launch order, which waits from now on."""
        if engine not in self._held:
            return []
        self._leaving.pop(engine, None)
        del self._facts[engine]
        orphans = list(self._held.pop(engine))
        for request in orphans:
            del self._in_flight[request]
        self._let_wait(orphans, are_begun=True)
        self._left.add(engine)
        self._by_load.drop()
        if self._closed.get(engine) in (Closing.RETIRING, Closing.DRAINING):
            del self._closed[engine]
        return orphans

    # Engines that get no launch

    def close(self, engines: Iterable[EngineId], reason: Closing, *, evicts: bool = True) -> list[Evict]:
        """Launch nothing more on some engines, and order away what is in flight on them, or let it go on there."""
        closed = list(engines)
        self._closed |= dict.fromkeys(closed, reason)
        self._by_load.drop()
        return self.evict([request for engine in closed for request in self._held[engine]]) if evicts else []

    def reopen(self, reason: Closing, engines: Collection[EngineId] = ()) -> None:
        """Launch again on these engines, or on all, that were closed for a reason; what leaves them still leaves."""
        for engine in [engine for engine in engines or tuple(self._closed) if self._closed.get(engine) is reason]:
            del self._closed[engine]
        self._by_load.drop()

    @property
    def is_suspending(self) -> bool:
        """True until every engine has given back what was in flight."""
        return self.is_suspended and not (self.keeps_requests or self.are_empty(self._held))

    def suspend(self, *, keeps: bool = False) -> list[Evict]:
        """Launch nothing until `resume`, and order away what is in flight unless it is kept; it has its tokens then."""
        self.is_suspended, self.keeps_requests = True, keeps
        return [] if keeps else self.evict([request for held in self._held.values() for request in held])

    def resume(self, running: Iterable[RequestId]) -> list[Launch]:
        """Launch what was suspended, in the order of these requests."""
        self.is_suspended = self.keeps_requests = False
        suspended = [request for request in running if self._in_flight[request] is None]
        for request in suspended:
            del self._in_flight[request]  # it may have come back out of order
        self._waiting.put_last(suspended)
        return self.launch(suspended)

    def _is_held_back(self, request: RequestId) -> bool:
        return self.is_suspended and not is_held_out(request)

    @property
    def is_changing(self) -> bool:
        """True from the order to change engines until the last old one has retired."""
        return Closing.RETIRING in self._closed.values()

    def retire(self, engine: EngineId) -> None:
        """Remove an engine that sleeps; one that left before changes nothing.

        Raises:
            ImpossibleEvent: It was not ordered; nothing was changed.
        """
        if self.is_in_fleet(engine):
            if self._closed.get(engine) is not Closing.RETIRING or self._held[engine]:
                raise ImpossibleEvent(f"Engine {engine!r} retired, which was not ordered.", "It follows its order.")
            self._remove(engine)

    def are_empty(self, engines: Collection[EngineId]) -> bool:
        """Tell whether nothing is in flight on some engines of the fleet, or on its way from them."""
        return not any(self._held[engine] or self._leaving.get(engine) for engine in engines)

    def note_answer(self, request: RequestId, engine: EngineId) -> None:
        """Note that an engine has given a request back, in whatever way."""
        leaving = self._leaving.get(engine)
        if leaving and request in leaving:
            del leaving[request]
            if not leaving:
                del self._leaving[engine]

    def move(self, request: RequestId, engine: EngineId) -> list[Launch]:
        """Launch an evicted request elsewhere; one that was told to stop, or has moved before, stays away.

        Raises:
            ImpossibleEvent: Its eviction was not ordered; nothing was changed.
        """
        if self.has_moved(request, engine) or request not in self._in_flight:
            return []
        if engine not in self._closed and request not in self._leaving.get(engine, ()):
            raise ImpossibleEvent(f"{request} was evicted, which was not ordered.", "An eviction follows its order.")
        self._forget(request)
        self._let_wait([request], are_begun=True)
        self._by_load.note_fewer(engine)  # with this one counted: the engine may be open again
        return self._launch_each([request])

    def movable(self) -> dict[EngineId, list[RequestId]]:
        """List what each open engine has that is not about to leave it."""
        return {
            engine: [request for request in held if request not in self._leaving.get(engine, ())]
            for engine, held in self._held.items()
            if engine not in self._closed
        }

    def evict(self, requests: Iterable[RequestId]) -> list[Evict]:
        """Order requests away from their engines; each goes to the engine that is next when it has left."""
        orders = [Evict(request=each, engine=engine) for each in requests if (engine := self._in_flight[each])]
        for order in orders:
            self._left.add(order.engine)
            self._leaving.setdefault(order.engine, {})[order.request] = None
        return orders

    # Requests

    def launch(self, requests: Sequence[RequestId], preferred: EngineId | None = None) -> list[Launch]:
        """Give each request to the open engine with the fewest in flight, or to the preferred one; or let them wait."""
        self._let_wait(requests)
        self._by_load.note_more()
        return self._launch_each(requests, preferred)

    def _launch_each(self, requests: Sequence[RequestId], preferred: EngineId | None = None) -> list[Launch]:
        if self.is_suspended:
            requests = [request for request in requests if not self._is_held_back(request)]
        if self._by_load.room and self._waiting.are_behind(requests):
            self._is_overflowing = True  # these come first
            return []
        if self._together:
            groups = itertools.groupby(requests, key=lambda request: request.prompt)
            return [launch for _, group in groups for launch in self._launch_on_one(tuple(group), preferred)]
        return [launch for request in requests for launch in self._launch_on_one((request,), preferred)]

    def _launch_on_one(self, requests: Sequence[RequestId], preferred: EngineId | None = None) -> list[Launch]:
        """Launch some on the engine that is next; without one that has room they wait."""
        engine = self._by_load.take(len(requests), preferred)
        if engine is None:
            self._is_overflowing = True
            return []
        for request in requests:  # in the order of launches, as `_held` is, from which a restored router makes that
            del self._in_flight[request]
            self._waiting.forget(request)
        self._in_flight.update(dict.fromkeys(requests, engine))
        self._held[engine].update(dict.fromkeys(requests))
        return [Launch(request=request, engine=engine) for request in requests]

    def _let_wait(self, requests: Sequence[RequestId], *, are_begun: bool = False) -> None:
        """Take down requests that no engine has; where few have room, those that were on one are first."""
        self._in_flight.update(dict.fromkeys(requests))
        (self._waiting.add_begun if are_begun and self._by_load.room else self._waiting.add_fresh)(requests)

    def limit(self, room: Room | None) -> None:
        """Have engines leave room for others, until this is called again; None: any number fits."""
        self._by_load.limit(room)
        self._is_overflowing = True
        if not room:
            self._waiting.reorder()

    def pace(self, speeds: Mapping[EngineId, float]) -> None:
        """Have engines that are faster than others get more, by speeds; one that is not named has 1."""
        self._by_load.pace(speeds)

    def launch_waiting(self) -> list[Launch]:
        """Launch what waits for room on an engine, as far as there is some."""
        if not self._is_overflowing:
            return []
        launches: list[Launch] = []
        while self._by_load.has_room() and (request := next(self._waiting.listed(), None)):
            launches += self._launch_on_one((request,))
        self._is_overflowing = self.is_starved
        return launches

    def abort(self, requests: Iterable[RequestId]) -> list[Abort]:
        """Order requests in flight to stop, and forget them; for those that wait there is no order."""
        orders: list[Abort] = []
        for request in requests:
            if (engine := self._forget(request)) is not None:
                self._leaving.setdefault(engine, {})[request] = None
                orders.append(Abort(request=request, engine=engine))
        return orders

    def finish(self, request: RequestId) -> bool:
        """Forget a finished request; False if it is not in flight: it was stopped before and finished all the same."""
        is_known = request in self._in_flight
        if is_known:
            self._forget(request)
        return is_known

    def _forget(self, request: RequestId) -> EngineId | None:
        engine = self._in_flight.pop(request)
        if engine is None:
            self._waiting.forget(request)
        else:
            del self._held[engine][request]
            self._by_load.note_fewer(engine)
        return engine

    def is_in_flight(self, request: RequestId) -> bool:
        return request in self._in_flight

    def has_moved(self, request: RequestId, engine: EngineId) -> bool:
        """Tell whether an engine speaks of a request that another one holds by now, or that waits for one.

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
            InvariantViolated: It holds other requests than are running, or in two books, or one waits for nothing.
        """
        if set(running) != self._in_flight.keys():
            lost_or_extra = sorted(str(request) for request in set(running) ^ self._in_flight.keys())
            raise InvariantViolated(f"Running and in flight differ by {', '.join(lost_or_extra)}")
        by_engine = {request: engine for engine, held in self._held.items() for request in held}
        on_engines = {request: engine for request, engine in self._in_flight.items() if engine is not None}
        if by_engine != on_engines or sum(map(len, self._held.values())) != len(on_engines):
            raise InvariantViolated(f"The engines hold {self._held}; in flight is {self._in_flight}")
        self._by_load.check(is_starved=self.is_starved)
        self._waiting.check()
        if list(self._facts) != list(self._held) or any(each.kv_tokens < 0 for each in self._facts.values()):
            raise InvariantViolated(f"The fleet is {list(self._held)}; known is {self._facts}")
        retiring = {engine for engine, reason in self._closed.items() if reason is Closing.RETIRING}
        if not retiring <= self._held.keys() or not self._leaving.keys() <= self._held.keys():
            raise InvariantViolated(f"Engines that left are to retire, or to answer: {retiring}, {self._leaving}")

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the router."""
        return {
            "engines": [[engine, facts.policy_version, facts.kv_tokens] for engine, facts in self._facts.items()],
            "closed": [[engine, reason.value] for engine, reason in self._closed.items()],
            "leaving": [[engine, [each.as_list() for each in requests]] for engine, requests in self._leaving.items()],
            "left": sorted(self._left),
            "in_flight": [[*request.as_list(), engine] for request, engine in self._in_flight.items()],
            **({"begun": begun} if (begun := self._waiting.snapshot()) else {}),
            **({"is_suspended": True} if self.is_suspended else {}),
            **({"keeps": True} if self.keeps_requests else {}),
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any], *, together: bool = False) -> Self:
        """Rebuild the router that gave the snapshot."""
        router = cls(together=together)
        for engine, policy_version, kv_tokens in snapshot["engines"]:
            router._held[EngineId(engine)] = {}
            router._facts[EngineId(engine)] = EngineFacts(policy_version, kv_tokens)
        router._closed.update({EngineId(engine): Closing(reason) for engine, reason in snapshot["closed"]})
        router._leaving = {
            EngineId(engine): dict.fromkeys(map(RequestId.from_list, rows)) for engine, rows in snapshot["leaving"]
        }
        router._left = {EngineId(engine) for engine in snapshot["left"]}
        for *plain, engine in snapshot["in_flight"]:
            request = RequestId.from_list(plain)
            router._in_flight[request] = engine
            if engine is not None:
                router._held[engine][request] = None
        router._waiting.restore(snapshot.get("begun", ()))
        router.is_suspended, router.keeps_requests = snapshot.get("is_suspended", False), snapshot.get("keeps", False)
        router._is_overflowing = router.is_starved
        return router
