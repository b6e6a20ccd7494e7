"""Where the time of a step went, in a run with rollout workers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollpacker.core.events import StepMeasured
from rollpacker.core.ids import EngineId

if TYPE_CHECKING:
    from rollpacker.runtime.rollout.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticTimes:
    """What engines on the trainer's allocation, and those of workers, did in a step."""

    fleet_idle_s: float
    local_engine_s: float
    member_engine_s: float
    local_tokens: int
    member_tokens: int

    def measured(self, step: int, *, train_s: float, trainer_idle_s: float) -> StepMeasured:
        """What the scheduler is told of them."""
        return StepMeasured(
            step=step,
            train_s=train_s,
            trainer_idle_s=trainer_idle_s,
            fleet_idle_s=self.fleet_idle_s,
            local_engine_s=self.local_engine_s,
            member_engine_s=self.member_engine_s,
            local_tokens=self.local_tokens,
            member_tokens=self.member_tokens,
        )


def elastic_times(batch: Batch, members: Collection[EngineId], *, ended_at_s: float) -> ElasticTimes:
    """Take them from the requests of a batch.

    Args:
        batch: Of the step.
        members: The engines of workers; all others are on the trainer's allocation.
        ended_at_s: When the step was over, in seconds since the run began.
    """
    stays: dict[EngineId, list[tuple[float, float]]] = {}
    tokens: dict[bool, int] = {False: 0, True: 0}
    for record in batch.requests.values():
        if record.response is not None and record.finished_at_s is not None:
            stays.setdefault(record.engine, []).append((record.placed_at_s, record.finished_at_s))
            tokens[record.engine in members] += record.response.num_tokens - record.num_begun
    for stretch in batch.book.stretches:
        stays.setdefault(stretch.engine, []).append((stretch.began_at_s, stretch.ended_at_s))
        tokens[stretch.engine in members] += stretch.num_tokens
    busy = {False: 0.0, True: 0.0}
    for engine, spans in stays.items():
        busy[engine in members] += covered_s(spans)
    return ElasticTimes(
        fleet_idle_s=ended_at_s - (batch.generated_at_s or batch.ended_at_s),
        local_engine_s=busy[False],
        member_engine_s=busy[True],
        local_tokens=tokens[False],
        member_tokens=tokens[True],
    )


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """How long at least one of some stretches of time lasts."""
    total, until = 0.0, float("-inf")
    for began, ended in sorted(spans):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total
