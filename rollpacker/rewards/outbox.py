"""The queue of verdicts between the tasks of a reward worker and `collect`.

Invariant: each verdict is collected once, in the order of arrival; after a failure `collect` raises it, once nothing
is left to collect.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollpacker.core.errors import ImpossibleEvent
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.protocols.rollout import Verdict


class Outbox(Arrivals[Verdict]):
    """Verdicts to collect, or the error that ended the worker."""

    def __init__(self) -> None:
        super().__init__()
        self._failure: Exception | None = None

    def fail(self, error: Exception) -> None:
        """End it by an error; of several the first counts."""
        self._failure = self._failure or error
        self.close()

    def refuse_when_closed(self) -> None:
        if self._is_closed and self._failure is None:
            raise ImpossibleEvent(
                "A closed reward worker was asked to score", "Allowed: before close()", "Please report this"
            )

    async def collect(self) -> Sequence[Verdict]:
        verdicts = await super().collect()
        if not verdicts and self._failure is not None:
            raise self._failure
        return verdicts
