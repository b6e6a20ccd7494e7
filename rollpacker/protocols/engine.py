"""What generates responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.core.commands import DraftRule
    from rollpacker.core.events import DraftPasses, EngineProgress
    from rollpacker.core.ids import RequestId
    from rollpacker.protocols.rollout import GenerationRequest, Response
    from rollpacker.protocols.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """The state of an engine, and totals since it began."""

    kv_tokens_capacity: int
    num_preemptions: int
    """Total."""
    num_generated_tokens: int
    """Total."""
    num_decode_steps: int
    """Total forward passes that extended running sequences; those over prompts are not counted."""
    busy_slot_steps: int
    """Total over decode steps of the decode slots in use."""
    idle_slot_steps: int
    """Total over decode steps of the idle decode slots; the bubble. A step has as many slots as requests were in flight
    at most since the engine was last empty or got its weights, up to its limit: slots that were never needed do not
    count."""
    policy_version: int
    waiting_request_steps: int = 0
    """Total over decode steps of the requests that waited."""
    kv_token_steps: int = 0
    """Total over decode steps of the tokens in the KV cache."""
    num_prefix_query_tokens: int = 0
    """Total prompt tokens that were looked up in the cache of prefixes; 0 where an engine has none."""
    num_prefix_hit_tokens: int = 0
    """Of these, the ones that were found and not computed again."""
    gpu_memory_peak_gb: float | None = None
    """Most that a worker held of its GPU since it began to load its weights, 1e9 bytes; None without a GPU."""
    draft_passes: tuple[DraftPasses, ...] = ()
    """Totals of the decode passes under each rule of `use_draft_lengths` and draft length; empty without a drafter."""


class Engine(Protocol):
    """Generates responses with one policy version at a time. Not required to be thread-safe: one driver owns it."""

    async def generate(self, requests: Sequence[GenerationRequest]) -> None:
        """Queue requests, in order. Each one comes back from `collect` exactly once, finished or aborted."""

    async def abort(self, requests: Sequence[RequestId]) -> None:
        """Stop requests; their partial responses come back from `collect`. Unknown or finished ones are ignored."""

    async def collect(self) -> Sequence[Response]:
        """Wait until at least one response is there, and take all that are."""

    async def progress(self) -> EngineProgress:
        """How far everything in flight is."""

    async def use_draft_lengths(self, rules: Sequence[DraftRule]) -> None:
        """Verify so many draft tokens per sequence from the next pass on; without a rule none.

        An engine without a drafter ignores it.
        """

    async def load_weights(self, weights: Weights) -> str:
        """Replace the policy; returns the checksum of the weights now held.

        No request may be in flight, unless the engine keeps requests (`system.interrupt=keep`): then they go on with
        the KV cache that they have.
        """

    async def sleep(self) -> None:
        """Free the memory of weights and KV cache; no request may be in flight."""

    async def stand_by(self) -> None:
        """Take back, asleep, the memory of the weights alone, which can be loaded then: requests wait for `wake`."""

    async def wake(self) -> None:
        """Take the memory back; weights must be loaded before the next request, unless it stood by and has them."""

    async def stats(self) -> EngineStats: ...

    async def close(self) -> None:
        """End all work; a pending `collect` returns what is left."""
