"""Totals over vLLM's steps, from what it reports of each one.

vLLM mixes prompts and decoding in one forward pass. A step counts as a decode step when it extended at least one
sequence, and its busy slots are the sequences that got a token, including their first. Capacity, and with it the idle
slots, is that of `EngineStats`: the most requests in flight since the engine was last empty, up to its limit.

With a drafter a step may extend a sequence by several tokens. Steps without prompt tokens that follow another step are
counted by `DraftLengths`: under the rule of their batch's size, with the length that vLLM was started with for it.

Invariant: busy and idle slots of a step add up to the capacity at its end.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

from rollpacker.engines.draft_lengths import DraftLengths, PassPlan

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats


class StepTotals(StatLoggerBase):  # type: ignore[misc]  # vLLM's classes are untyped here
    """Receives one record per step, in the engine's event loop."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        del engine_index  # one engine core
        cache = vllm_config.cache_config
        self.kv_tokens_capacity: int = cache.kv_cache_size_tokens or cache.num_gpu_blocks * cache.block_size
        self._max_num_seqs: int = vllm_config.scheduler_config.max_num_seqs
        self._capacity = 0
        self.draft_lengths = DraftLengths()
        self._lengths_by_batch = _lengths_by_batch(vllm_config)
        self._time_of_last: float | None = None
        """Of the last step, if sequences were left running."""

        self.num_waiting = 0
        """At the end of the last step, as the next one."""
        self.kv_share_used = 0.0
        self.num_preemptions = 0
        self.num_generated_tokens = 0
        self.num_decode_steps = 0
        self.busy_slot_steps = 0
        self.idle_slot_steps = 0
        self.waiting_request_steps = 0
        self.kv_token_steps = 0
        self.num_prefix_query_tokens = 0
        """Prompt tokens that were looked up in the prefix cache."""
        self.num_prefix_hit_tokens = 0
        self.num_drafted = 0
        """Draft tokens that were verified."""
        self.num_accepted = 0

    @property
    def most_drafting(self) -> int:
        """The largest batch that drafts are verified in."""
        lengths = self._lengths_by_batch or [0]
        return self._max_num_seqs if len(lengths) == 1 else max(size for size, length in enumerate(lengths) if length)

    def in_flight(self, num_requests: int) -> None:
        """Record the number of requests in flight, at every change."""
        self._capacity = max(self._capacity, min(self._max_num_seqs, num_requests)) if num_requests else 0

    def begin_version(self, num_requests: int) -> None:
        """Count slots anew, from the number of requests in flight: they go on with other weights."""
        self._capacity = min(self._max_num_seqs, num_requests)

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        del mm_cache_stats, engine_idx
        if scheduler_stats is not None:
            self.num_waiting = scheduler_stats.num_waiting_reqs
            self.kv_share_used = scheduler_stats.kv_cache_usage
            self.num_prefix_query_tokens += scheduler_stats.prefix_cache_stats.queries
            self.num_prefix_hit_tokens += scheduler_stats.prefix_cache_stats.hits
        if iteration_stats is not None:
            self.num_preemptions += iteration_stats.num_preempted_reqs
            self.num_generated_tokens += iteration_stats.num_generation_tokens
            num_extended = len(iteration_stats.inter_token_latencies_iter)
            if scheduler_stats is not None:
                self._count_drafts(scheduler_stats, iteration_stats, num_extended)
            if num_extended:
                num_busy = min(num_extended + len(iteration_stats.time_to_first_tokens_iter), self._capacity)
                self.num_decode_steps += 1
                self.busy_slot_steps += num_busy
                self.idle_slot_steps += self._capacity - num_busy
                self.waiting_request_steps += self.num_waiting
                self.kv_token_steps += round(self.kv_share_used * self.kv_tokens_capacity)

    def _count_drafts(
        self, scheduler_stats: SchedulerStats, iteration_stats: IterationStats, num_extended: int
    ) -> None:
        now, before = time.monotonic(), self._time_of_last
        self._time_of_last = now if scheduler_stats.num_running_reqs else None
        drafts = scheduler_stats.spec_decoding_stats
        num_drafted = drafts.num_draft_tokens if drafts else 0
        num_accepted = drafts.num_accepted_tokens if drafts else 0
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted
        if self._lengths_by_batch is None or before is None or not num_extended or iteration_stats.num_prompt_tokens:
            return
        if (plan := self.draft_lengths.next_pass(num_extended)) is not None:
            length = self._lengths_by_batch[min(num_extended, len(self._lengths_by_batch) - 1)]
            plan = PassPlan(plan.max_sequences, length)
            self.draft_lengths.count(plan, num_extended, num_drafted, num_accepted, now - before)

    def log_engine_initialized(self) -> None:
        """Say nothing."""


def _lengths_by_batch(vllm_config: VllmConfig) -> list[int] | None:
    """The draft length of each batch size from 0 on, the last one of all larger ones; None without a drafter."""
    config = vllm_config.speculative_config
    if config is None:
        return None
    if not config.uses_dynamic_speculative_decoding():
        return [config.num_speculative_tokens]
    lookup: list[int] = build_dynamic_sd_schedule_lookup(
        config.num_speculative_tokens_per_batch_size,
        vllm_config.scheduler_config.max_num_seqs,
        config.num_speculative_tokens,
    )
    return lookup
