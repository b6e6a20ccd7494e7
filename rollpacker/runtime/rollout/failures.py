"""Which failures of engines a fresh engine would meet again.

An engine whose process died, or did not answer, is replaced: the next one may be luckier. One that raised did so at
what it was asked, and with its weights. Where a second engine raises the same with the same weights, so would every
further one, and the run ends with what they raised.
"""

from __future__ import annotations

import re

from rollpacker.core.errors import EngineFailed, EngineRaised, RepeatedFailure
from rollpacker.core.ids import EngineId

_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")
"""Addresses and sizes differ between two failures of one kind, as the names of engines do."""


class Failures:
    """What engines have raised."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, str], EngineId] = {}
        """Who raised it first, by policy version and text."""
        self.repeated: RepeatedFailure | None = None
        """What ends the run, once two engines have raised the same."""

    def add(self, engine: EngineId, error: EngineFailed, policy_version: int) -> None:
        """Take down how an engine failed."""
        if not isinstance(error, EngineRaised):
            return
        kind = (policy_version, _NUMBER.sub("", error.problem.replace(engine, "")))
        first = self._first.setdefault(kind, engine)
        if first == engine:
            return
        self.repeated = RepeatedFailure(
            f"{error.problem.rstrip('.')}. {first} failed alike with the same weights, of policy version "
            f"{policy_version}, so no further engine is started.",
            error.allowed,
            error.remedy,
        )
