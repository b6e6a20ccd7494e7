"""The queue of verdicts between the tasks of a reward worker and `collect`."""

from __future__ import annotations

from rollpacker.core.errors import ImpossibleEvent
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.protocols.rollout import Verdict


class Outbox(Arrivals[Verdict]):
    """Verdicts to collect, or the error that ended the worker."""

    def refuse_when_closed(self) -> None:
        if self._is_closed and self._failure is None:
            raise ImpossibleEvent(
                "A closed reward worker was asked to score", "Allowed: before close()", "Please report this"
            )
