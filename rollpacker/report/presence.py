"""When each engine of a run was there: one of its own from joining to leaving, one of a worker while that served.

The event logs know it. Of an engine about which they say nothing, it is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rollpacker.core.ids import EngineId, member_of, worker_of

if TYPE_CHECKING:
    from rollpacker.launch.accounts import Accounts
    from rollpacker.timeline.moments import LoggedMoments

Spans = npt.NDArray[np.float64]
"""A row is a beginning and an end, in seconds since the run began."""


class Presence:
    """Answers for any engine; `accounts` is of rollout workers."""

    def __init__(self, logged: LoggedMoments, accounts: Accounts | None) -> None:
        self._lives = logged.lives()
        workers = accounts.workers if accounts else ()
        members = (member_of(row["worker"], number) for row in workers for number in range(row["num_engines"]))
        self.engines = frozenset({*self._lives, *members})
        """All that were there at some time, also those of rollout workers."""
        for row in workers:
            lives = self._lives.setdefault(row["worker"], [])
            if row["serving_at_s"] is not None:
                lives.append((row["serving_at_s"], np.inf if row["left_at_s"] is None else row["left_at_s"]))

    def of(self, engine: str) -> Spans | None:
        """Its lives; None where they are not known."""
        name = worker_of(EngineId(engine)) or engine
        return np.array(self._lives[name]).reshape(-1, 2) if name in self._lives else None
