"""The requests that wait for an engine, in the order in which they get one.

Where engines have room for a limited number (`core.load_order`), what was on an engine before is first, since it may
have tokens: the first to have left is the first to go on. The rest follows in launch order, as everything does where
any number fits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from rollpacker.core.errors import InvariantViolated
from rollpacker.core.ids import EngineId, RequestId


class Waiting:
    """Knows which of the waiting requests were on an engine.

    Args:
        in_flight: Everything; None waits.
        is_held_back: Tells whether a request waits for something else than an engine.
    """

    def __init__(
        self, in_flight: Mapping[RequestId, EngineId | None], is_held_back: Callable[[RequestId], bool]
    ) -> None:
        self._in_flight = in_flight
        self._is_held_back = is_held_back
        self._begun: dict[RequestId, None] = {}

    def note(self, requests: Iterable[RequestId]) -> None:
        """Take down that requests wait that were on an engine."""
        self._begun.update(dict.fromkeys(requests))

    def forget(self, requests: Iterable[RequestId]) -> None:
        """Take down that requests wait no more."""
        if self._begun:
            for request in requests:
                self._begun.pop(request, None)

    def clear(self) -> None:
        """Let all be in launch order."""
        self._begun.clear()

    def are_behind(self, requests: Collection[RequestId]) -> bool:
        """Tell whether others go before some requests."""
        are_begun = self._begun.keys() >= set(requests)
        return not are_begun and not all(map(self._is_held_back, self._begun))

    def listed(self) -> list[RequestId]:
        """Give all that wait for an engine, in order."""
        fresh = (each for each, holder in self._in_flight.items() if holder is None and each not in self._begun)
        return [each for each in itertools.chain(self._begun, fresh) if not self._is_held_back(each)]

    def check(self) -> None:
        """Re-derive what waits.

        Raises:
            InvariantViolated: Something is first in line that does not wait.
        """
        if any(self._in_flight.get(request, "nowhere") is not None for request in self._begun):
            raise InvariantViolated(f"Not all of these wait: {self.snapshot()}")

    def snapshot(self) -> list[Any]:
        """Give the state as JSON data."""
        return [request.as_list() for request in self._begun]

    def restore(self, snapshot: Sequence[Any]) -> None:
        """Be as what gave the snapshot."""
        self.note(map(RequestId.from_list, snapshot))
