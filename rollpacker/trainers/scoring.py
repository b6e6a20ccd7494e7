"""A Hugging Face model's forward pass over a micro-batch.

Shapes: B rows, K last positions that are scored, V vocabulary, N response tokens of the rows one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollpacker.trainers.losses import score_tokens
from rollpacker.trainers.policy import Scores

if TYPE_CHECKING:
    from rollpacker.trainers.microbatches import MicroBatch


def score_microbatch(model: Any, microbatch: MicroBatch, temperature: float) -> Scores:
    """Return log-probabilities and entropies of the response tokens."""
    num_scored = microbatch.num_scored
    output = model(input_ids=microbatch.input_ids_BT, use_cache=False, logits_to_keep=num_scored)
    # The few architectures that ignore logits_to_keep return all T positions.
    logits_BKV = output.logits[:, -num_scored:]
    logprobs_BK, entropies_BK = score_tokens(logits_BKV, microbatch.target_ids_BK, temperature)
    is_response_BK = microbatch.is_response_BK
    return Scores(logprobs_N=logprobs_BK[is_response_BK], entropies_N=entropies_BK[is_response_BK])
