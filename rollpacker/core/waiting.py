"""The requests that wait for an engine, in the order in which they get one.

Where engines have room for a limited number (`core.load_order`), what was on an engine before is first, since it may
have tokens: the first to have left is the first to go on. The rest follows in launch order, as everything does where
any number fits.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rollpacker.core.errors import InvariantViolated
from rollpacker.core.ids import EngineId, RequestId


class Waiting:
    """Knows what waits, and which of it was on an engine.

    Args:
        in_flight: Everything; None waits.
        is_held_back: Tells whether a request waits for something else than an engine.
    """

    def __init__(
        self, in_flight: Mapping[RequestId, EngineId | None], is_held_back: Callable[[RequestId], bool]
    ) -> None:
        self._in_flight = in_flight
        self._is_held_back = is_held_back
        self._begun: OrderedDict[RequestId, None] = OrderedDict()
        self._fresh: OrderedDict[RequestId, None] = OrderedDict()
        """The rest, in the order of `in_flight`. A plain dict would pass over all that were first before."""

    def add_fresh(self, requests: Iterable[RequestId]) -> None:
        """Take down that requests wait, the last in line; those that wait already keep their place."""
        for request in requests:
            if request not in self._begun:
                self._fresh[request] = None

    def add_begun(self, requests: Iterable[RequestId]) -> None:
        """Take down that requests wait that were on an engine."""
        self._begun.update(dict.fromkeys(requests))

    def put_last(self, requests: Iterable[RequestId]) -> None:
        """Let requests that were never on an engine be the last ones, in this order."""
        for request in requests:
            if request in self._fresh:
                self._fresh.move_to_end(request)

    def forget(self, request: RequestId) -> None:
        """Take down that a request waits no more."""
        self._begun.pop(request, None)
        self._fresh.pop(request, None)

    def reorder(self) -> None:
        """Let all be in launch order."""
        self._begun.clear()
        self._fresh = self._derived()

    def _derived(self) -> OrderedDict[RequestId, None]:
        waiting = (request for request, holder in self._in_flight.items() if holder is None)
        return OrderedDict.fromkeys(request for request in waiting if request not in self._begun)

    def are_behind(self, requests: Collection[RequestId]) -> bool:
        """Tell whether others go before some requests."""
        are_begun = self._begun.keys() >= set(requests)
        return not are_begun and not all(map(self._is_held_back, self._begun))

    def listed(self) -> Iterator[RequestId]:
        """Give all that wait for an engine, in order; not to be gone on with once one waits no more."""
        return itertools.filterfalse(self._is_held_back, itertools.chain(self._begun, self._fresh))

    def check(self) -> None:
        """Re-derive what waits.

        Raises:
            InvariantViolated: Something is first in line that does not wait, or the rest is not what waits.
        """
        if any(self._in_flight.get(request, "nowhere") is not None for request in self._begun):
            raise InvariantViolated(f"Not all of these wait: {self.snapshot()}")
        if self._fresh != self._derived():
            raise InvariantViolated(f"Waiting are {list(self._derived())}, not {list(self._fresh)}")

    def snapshot(self) -> list[Any]:
        """Give the state as JSON data."""
        return [request.as_list() for request in self._begun]

    def restore(self, snapshot: Sequence[Any]) -> None:
        """Be as what gave the snapshot."""
        self.add_begun(map(RequestId.from_list, snapshot))
        self._fresh = self._derived()
