"""A trainer of several ranks as one trainer: every call goes to all of them, and the answer is rank 0's.

The ranks wait for one another within a call (SPMD), so one that fails leaves the others waiting without end, or failing
with an error of the network.

Invariants: all ranks get their calls in the same order, one at a time; otherwise two calls in which each rank waits for
the others would deadlock (Ray may start an actor's calls in another order than they were made). A call ends as soon as
one rank's has failed, with that rank's name; the others are not awaited. Where a rank has died, the error names it,
although other ranks may have failed before Ray noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from rollpacker.core.errors import RollpackerError
from rollpacker.protocols.forwarding import Forwarder
from rollpacker.protocols.rollout import RolloutGroup
from rollpacker.protocols.trainer import Trainer

Answer = TypeVar("Answer")
Everywhere = Callable[[Callable[[Any], Awaitable[Answer]]], Awaitable[Answer]]
"""Makes the same call to all ranks, and gives rank 0's answer."""

_BLAME_S = 3.0
"""How long the error of one rank waits for the news that another one died: an idle machine's Ray takes 0.1 s."""


class Rank(Trainer, Protocol):
    """One rank, which may be in another process."""

    name: str
    has_died: bool
    """The process is gone, as some call has noticed."""


class TrainerGroup(Forwarder):
    """Implements `rollpacker.protocols.trainer.Trainer` over its ranks, in their order."""

    def __init__(self, ranks: Sequence[Rank], share: Callable[[Sequence[RolloutGroup]], Any]) -> None:
        """Take ranks that have started or start together.

        Args:
            ranks: At least one.
            share: Puts groups where all ranks fetch them, so that they are not sent once per rank.
        """
        super().__init__(Trainer)
        self._ranks = ranks
        self._share = share
        self._one_at_a_time = asyncio.Lock()

    async def accumulate(self, groups: Sequence[RolloutGroup], gpus: Collection[int] | None = None) -> None:
        await self._call("accumulate", self._share(groups), gpus)

    async def close(self) -> None:
        """Close every rank, whatever became of the others."""
        await asyncio.gather(*(rank.close() for rank in self._ranks), return_exceptions=True)

    async def _call(self, method: str, *arguments: Any) -> Any:
        return await self.everywhere(lambda rank: getattr(rank, method)(*arguments))

    async def everywhere(self, call: Callable[[Any], Awaitable[Answer]]) -> Answer:
        """Make the same call to all ranks; gives rank 0's answer.

        Raises:
            RollpackerError: Of the rank that failed; of several, one that died, then the first.
        """
        async with self._one_at_a_time:
            return await self._everywhere(call)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Everywhere[Any]]:
        """Keep every other call away from the ranks; gives what makes calls to all of them meanwhile."""
        async with self._one_at_a_time:
            yield self._everywhere

    async def _everywhere(self, call: Callable[[Any], Awaitable[Answer]]) -> Answer:
        calls: list[asyncio.Future[Answer]] = [asyncio.ensure_future(call(rank)) for rank in self._ranks]
        try:
            done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
            if not any(answer.exception() for answer in done):
                return calls[0].result()
            first = next(index for index, answer in enumerate(calls) if answer in done and answer.exception())
            await self._until_blamed(waiting)
            dead = (index for index, rank in enumerate(self._ranks) if rank.has_died and _error_of(calls[index]))
            guilty = next(dead, first)
            error = _error_of(calls[guilty])
            assert error is not None
            raise self._named(error, self._ranks[guilty]) from None
        finally:
            for answer in calls:
                _error_of(answer)  # or asyncio reports an error that was never retrieved
                answer.cancel()

    async def _until_blamed(self, waiting: set[asyncio.Future[Answer]]) -> None:
        """Wait until a rank is known to be dead, or none can be any more; not for long."""
        try:
            async with asyncio.timeout(_BLAME_S):
                while waiting and not any(rank.has_died for rank in self._ranks):
                    _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            return

    def _named(self, error: BaseException, rank: Rank) -> BaseException:
        if not isinstance(error, RollpackerError) or len(self._ranks) == 1 or rank.name in error.problem:
            return error
        return type(error)(f"{rank.name}: {error.problem}", error.allowed, error.remedy)


def _error_of(answer: asyncio.Future[Answer]) -> BaseException | None:
    return answer.exception() if answer.done() and not answer.cancelled() else None
