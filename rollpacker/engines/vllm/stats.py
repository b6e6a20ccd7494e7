"""Totals over vLLM's steps, from what it reports of each one.

vLLM mixes prompts and decoding in one forward pass. A step counts as a decode step when it extended at least one
sequence, and its busy slots are the sequences that got a token, including their first. Capacity, and with it the idle
slots, is that of `EngineStats`: the most requests in flight since the engine was last empty, up to its limit.

Invariant: busy and idle slots of a step add up to the capacity at its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.metrics.loggers import StatLoggerBase

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

        self.num_running = 0
        """At the end of the last step, as the next two."""
        self.num_waiting = 0
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

    def in_flight(self, num_requests: int) -> None:
        """Record the number of requests in flight, at every change."""
        self._capacity = max(self._capacity, min(self._max_num_seqs, num_requests)) if num_requests else 0

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        del mm_cache_stats, engine_idx
        if scheduler_stats is not None:
            self.num_running = scheduler_stats.num_running_reqs
            self.num_waiting = scheduler_stats.num_waiting_reqs
            self.kv_share_used = scheduler_stats.kv_cache_usage
            self.num_prefix_query_tokens += scheduler_stats.prefix_cache_stats.queries
            self.num_prefix_hit_tokens += scheduler_stats.prefix_cache_stats.hits
        if iteration_stats is not None:
            self.num_preemptions += iteration_stats.num_preempted_reqs
            self.num_generated_tokens += iteration_stats.num_generation_tokens
            num_extended = len(iteration_stats.inter_token_latencies_iter)
            if num_extended:
                num_busy = min(num_extended + len(iteration_stats.time_to_first_tokens_iter), self._capacity)
                self.num_decode_steps += 1
                self.busy_slot_steps += num_busy
                self.idle_slot_steps += self._capacity - num_busy
                self.waiting_request_steps += self.num_waiting
                self.kv_token_steps += round(self.kv_share_used * self.kv_tokens_capacity)

    def log_engine_initialized(self) -> None:
        """Say nothing."""
