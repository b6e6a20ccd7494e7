"""Environments on several nodes; implements `rollpacker.protocols.environment.EnvironmentService`.

    free ──reset──> open on the host where the fewest are ──end──> free
                     └──its host is lost: its call fails as `environment_lost`──> free

The scheduler lets a trajectory begin again whose environment is lost; it then opens on a host that is left.

Invariant: a trajectory's calls go to one host, in the order in which they were made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rollpacker.core.environments import LOST
from rollpacker.core.errors import RollpackerError
from rollpacker.core.ids import RequestId
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.protocols.environment import EnvironmentAnswer, EnvironmentNews, EnvironmentReset, EnvironmentTurn

Order = tuple[str, tuple[Any, ...], dict[str, Any]]
"""A method of an environment service that does not wait, and its arguments."""

_log = logging.getLogger(__name__)


class EnvironmentHost(Protocol):
    """An environment service in a process of another node."""

    name: str
    has_died: bool
    """The process is gone, as some call has noticed."""

    async def tell(self, orders: Sequence[Order]) -> None:
        """Give it some orders, in their order."""

    async def collect(self) -> Sequence[EnvironmentNews]: ...

    async def close(self) -> None: ...


class EnvironmentHosts:
    """Spreads environments over hosts, at least one of which has started."""

    def __init__(self, hosts: Sequence[EnvironmentHost]) -> None:
        self._answers: Arrivals[EnvironmentNews] = Arrivals()
        self._links = [_Link(host, self._answers.put, self._lose) for host in hosts]
        self._link_of: dict[RequestId, _Link] = {}

    def reset(self, request: RequestId, call: int, start: EnvironmentReset) -> None:
        if request not in self._link_of:
            if not self._links:
                return  # the loss of the last one has ended the run
            self._link_of[request] = min(self._links, key=lambda link: len(link.calls))
        self._link_of[request].order(request, call, "reset", start)

    def step(self, request: RequestId, call: int, turn: EnvironmentTurn) -> None:
        if request in self._link_of:
            self._link_of[request].order(request, call, "step", turn)
        else:
            self._answers.put([_lost(request, call)])

    def end(self, request: RequestId, *, has_hung: bool = False) -> None:
        if link := self._link_of.pop(request, None):
            link.end(request, has_hung=has_hung)

    async def collect(self) -> Sequence[EnvironmentNews]:
        return await self._answers.collect()

    async def close(self) -> None:
        """End all environments."""
        await asyncio.gather(*(link.close() for link in self._links), return_exceptions=True)
        self._answers.close()

    def _lose(self, link: _Link, error: RollpackerError) -> None:
        """Go on without a host; one that lives and fails, and the last one, end the run."""
        if link.host.has_died:
            self._links.remove(link)
        if not (link.host.has_died and self._links):
            self._answers.fail(error)
            return
        _log.warning("%s is lost, and %d environments with it: %s", link.host.name, len(link.calls), error)
        for request, call in link.calls.items():
            del self._link_of[request]
            self._answers.put([_lost(request, call)])


class _Link:
    """What a host has open, is to be told and has answered.

    Args:
        host: Where it leads.
        on_answers: Told of what environments answered.
        on_loss: Told once, when the host fails.
    """

    def __init__(
        self,
        host: EnvironmentHost,
        on_answers: Callable[[Sequence[EnvironmentNews]], None],
        on_loss: Callable[[_Link, RollpackerError], None],
    ) -> None:
        self.host = host
        self.calls: dict[RequestId, int] = {}
        """The last call of each trajectory that is open there."""
        self._on_answers, self._on_loss = on_answers, on_loss
        self._to_tell: Arrivals[Order] = Arrivals()
        self._pumps = [asyncio.create_task(self._until_lost(pump)) for pump in (self._tell, self._listen)]

    def order(self, request: RequestId, call: int, method: str, argument: EnvironmentReset | EnvironmentTurn) -> None:
        self.calls[request] = call
        self._to_tell.put([(method, (request, call, argument), {})])

    def end(self, request: RequestId, *, has_hung: bool) -> None:
        del self.calls[request]
        self._to_tell.put([("end", (request,), {"has_hung": has_hung})])

    async def close(self) -> None:
        self._stop()
        await self.host.close()

    def _stop(self) -> None:
        for pump in self._pumps:
            if pump is not asyncio.current_task():
                pump.cancel()

    async def _until_lost(self, pump: Callable[[], Any]) -> None:
        try:
            while True:
                await pump()
        except RollpackerError as error:
            self._stop()
            self._on_loss(self, error)

    async def _tell(self) -> None:
        await self.host.tell(await self._to_tell.collect())

    async def _listen(self) -> None:
        self._on_answers(await self.host.collect())


def _lost(request: RequestId, call: int) -> EnvironmentAnswer:
    return EnvironmentAnswer(request=request, call=call, failure=LOST, problem="its node is lost")
