"""Verdicts on their way from those who judge to the one who collects.

Invariant: each is collected once, in the order of arrival; after a failure `collect` raises it and nothing else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rollpacker.core.errors import ImpossibleEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.protocols.rollout import Verdict


class Outbox:
    """Verdicts that wait to be collected."""

    def __init__(self) -> None:
        self._verdicts: list[Verdict] = []
        self._failure: Exception | None = None
        self._is_closed = False
        self._changed = asyncio.Event()

    def put(self, verdict: Verdict) -> None:
        self._verdicts.append(verdict)
        self._changed.set()

    def fail(self, error: Exception) -> None:
        self._failure = error
        self._changed.set()

    def close(self) -> None:
        self._is_closed = True
        self._changed.set()

    def refuse_when_closed(self) -> None:
        if self._is_closed:
            raise ImpossibleEvent(
                "A closed reward worker was asked to score", "Allowed: before close()", "Please report this"
            )

    async def collect(self) -> Sequence[Verdict]:
        await self._changed.wait()
        if self._failure is not None:
            raise self._failure
        verdicts, self._verdicts = self._verdicts, []
        if not self._is_closed:
            self._changed.clear()
        return verdicts
