"""What the driver is given of engines: those of every degree, and how others are started."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.backend import DeadlineSection
from rollpacker.config.sections.engine import EngineSection
from rollpacker.core.ids import EngineId
from rollpacker.protocols.backend import EndEngine, Fleet, Limit, Rebuild, ReplaceEngine, Workers
from rollpacker.protocols.members import Members


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetParts:
    """The engines of a run, and how they are replaced."""

    fleets: Mapping[int, Fleet]
    """By tensor-parallel degree; the first one is in use, unless a checkpoint says otherwise."""
    replace_engine: ReplaceEngine | None
    end_engine: EndEngine | None = None
    rebuild: Rebuild | None = None
    trainer_parts: Sequence[tuple[int, ...]] = ()
    """The GPUs of each part of the trainer that can work alone; empty if it shares none with engines."""
    stands_by: bool = False
    """Whether the engines of the largest degree hold weights while others are in use."""
    asleep: Collection[EngineId] = ()
    """Engines whose GPUs are the trainer's at first."""
    engine: EngineSection
    deadlines: DeadlineSection
    limit: Limit
    """Limits calls to engines."""
    straggler_s: float
    """How long new weights wait for an engine that is being served the ones before."""
    members: Members | None = None
    """Rollout workers that come and go; None in a run without."""
    silence_s: float = 5.0
    """An engine of theirs that has not reported for so long is lost."""
    keeps_tokens: bool = True
    """Whether a request goes on from the tokens that a lost engine had reported."""

    @classmethod
    def of(cls, workers: Workers, config: RunConfig, limit: Limit) -> Self:
        """Take them from what a backend provides."""
        return cls(
            fleets=workers.fleets,
            replace_engine=workers.replace_engine,
            end_engine=workers.end_engine,
            rebuild=workers.rebuild,
            trainer_parts=workers.trainer_parts,
            stands_by=config.system.escalate_tail and len(workers.fleets) > 1,
            asleep=workers.colocated_engines,
            engine=config.engine,
            deadlines=config.backend.deadlines,
            limit=limit,
            straggler_s=config.weight_sync.timeout_s,
            members=workers.members,
            silence_s=config.elastic.silence_s,
            keeps_tokens=config.elastic.keeps_tokens,
        )
