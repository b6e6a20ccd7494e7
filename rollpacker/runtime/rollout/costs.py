"""What a round cost, and which engines went and came: what the recorder is told of engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollpacker.core.events import DraftPasses, DraftsMeasured, RoundMeasured
from rollpacker.core.ids import EngineId, worker_of
from rollpacker.protocols.engine import EngineStats
from rollpacker.runtime.rollout.batch import Batch

if TYPE_CHECKING:
    from rollpacker.runtime.rollout.engines import Engines
    from rollpacker.runtime.rollout.members import MemberEngines


@dataclass(frozen=True, slots=True, kw_only=True)
class Turnover:
    """Engines that were lost and replaced since the last count."""

    num_lost: int
    num_replaced: int
    """Joined in the place of lost ones."""
    switch_time_s: float
    """In which engines of another degree took the place of those before, without the transfer of weights to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """What the engines did in a round."""

    tensor_parallel: int
    """Of the engines that finished it."""
    escalated_from: int | None
    """Degree of those that had begun it, if others took their place."""
    num_engines: int
    """When it was over."""
    parallelism_gain: float | None
    """Tokens per second over those of its kind's rounds on the degree of before, if any is remembered."""
    num_engines_lent: int
    """To the trainer, before the round was over."""
    before: Mapping[EngineId, EngineStats]
    after: Mapping[EngineId, EngineStats]

    def growth(self, counter: str) -> int:
        """How much a counter grew, over the engines that are still alive."""
        return sum(self._growths(counter).values())

    def _growths(self, counter: str) -> Mapping[EngineId, int]:
        before = {engine: getattr(stats, counter) for engine, stats in self.before.items()}
        return {engine: getattr(stats, counter) - before.get(engine, 0) for engine, stats in self.after.items()}

    def local_growth(self, counter: str) -> int:
        """The same, over those on the trainer's allocation."""
        return sum(number for engine, number in self._growths(counter).items() if worker_of(engine) is None)

    def mean_per_pass(self, counter: str) -> float:
        """How much a counter grew in a forward pass of an engine, on average; 0 without any pass."""
        num_passes = self.growth("num_decode_steps")
        return self.growth(counter) / num_passes if num_passes else 0.0

    def draft_passes(self) -> Mapping[EngineId, tuple[DraftPasses, ...]]:
        """Decode passes by rules for drafts, of each engine that had any."""
        before = {
            (engine, *passes[:2]): passes for engine, stats in self.before.items() for passes in stats.draft_passes
        }
        grown = {
            engine: [_growth(before.get((engine, *passes[:2])), passes) for passes in stats.draft_passes]
            for engine, stats in self.after.items()
        }
        made = {engine: tuple(passes for passes in each if passes.num_passes) for engine, each in grown.items()}
        return {engine: passes for engine, passes in made.items() if passes}

    @property
    def gpu_memory_peak_gb(self) -> float | None:
        """The largest of all engines; None without GPUs."""
        peaks = [stats.gpu_memory_peak_gb for stats in self.after.values() if stats.gpu_memory_peak_gb is not None]
        return max(peaks, default=None)

    @property
    def kv_cache_share(self) -> float:
        """Mean share of an engine's KV cache that was in use during forward passes."""
        capacity = sum(stats.kv_tokens_capacity for stats in self.after.values()) / max(1, len(self.after))
        return self.mean_per_pass("kv_token_steps") / capacity if capacity else 0.0


class RoundMeter:
    """Measures what rounds cost, each from where the one before it ended.

    Args:
        engines: Of the trainer's allocation.
        members: Of rollout workers.
    """

    def __init__(self, engines: Engines, members: MemberEngines) -> None:
        self._engines = engines
        self._members = members
        self._stats: Mapping[EngineId, EngineStats] = {}
        """As the last round left them."""
        self._left: dict[EngineId, EngineStats] = {}
        """Of engines that others took the place of in this round, as they left."""
        self._left_degree = 0

    async def begin(self, stats: Mapping[EngineId, EngineStats] | None = None) -> None:
        """Let the next round begin now."""
        of_engines = await self._engines.stats() if stats is None else stats
        self._stats = {**of_engines, **await self._members.stats()}

    async def leave(self) -> None:
        """Note what engines have done, in whose place others come in the midst of the round."""
        self._left, self._left_degree = dict(await self._engines.stats()), self._engines.tensor_parallel

    def take_over(self, stats: Mapping[EngineId, EngineStats]) -> None:
        """Count what these others do from now on."""
        self._stats = {**self._stats, **stats}

    async def measure(self) -> RoundCosts:
        """End a round."""
        before = self._stats
        await self.begin()
        left, self._left = self._left, {}
        return RoundCosts(
            tensor_parallel=self._engines.tensor_parallel,
            escalated_from=self._left_degree if left else None,
            num_engines=len(self._stats),
            parallelism_gain=None,
            num_engines_lent=self._engines.num_lent,
            before=before,
            after={**left, **self._stats},
        )


def _growth(before: DraftPasses | None, after: DraftPasses) -> DraftPasses:
    if before is None:
        return after
    return after._replace(
        num_passes=after.num_passes - before.num_passes,
        num_sequence_passes=after.num_sequence_passes - before.num_sequence_passes,
        num_drafted=after.num_drafted - before.num_drafted,
        num_accepted=after.num_accepted - before.num_accepted,
        time_s=after.time_s - before.time_s,
    )


def measurements(batch: Batch, costs: RoundCosts, switch_time_s: float) -> tuple[DraftsMeasured | RoundMeasured, ...]:
    """What the scheduler is told of a round that is over, in this order.

    Args:
        batch: The round's.
        costs: Of the round. Of each engine that had rules for drafts, its passes by them are told.
        switch_time_s: Of the change of engines before it.
    """
    number = batch.begin.round
    round_measured = RoundMeasured(
        round=number,
        num_preemptions=costs.local_growth("num_preemptions"),
        rollout_time_s=(batch.generated_at_s or batch.ended_at_s) - batch.began_at_s,
        num_tokens=batch.num_needed_tokens,
        switch_time_s=switch_time_s,
        lengths_tokens=tuple(request.response.num_tokens for request in batch.requests.values() if request.response),
    )
    drafts = costs.draft_passes().items()
    return *(DraftsMeasured(round=number, engine=each, passes=passes) for each, passes in drafts), round_measured
