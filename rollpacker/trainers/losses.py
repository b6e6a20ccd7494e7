"""The loss of a batch as a weighted sum over its tokens; pure functions on tensors.

    loss = SUM over tokens of  weight * (clipped policy loss + kl_coefficient * k3)

Invariant: the weight of a token is a constant that is known before the batch is (`sequence`, `token_bound`), and its
loss depends on its own response and its group's advantage alone. So the gradient of a batch is the sum of the gradients
of its groups, in whatever split they come (paper, section 4.4). `token_mean` lacks the first half: its constant is
known only once the last response is there.

Three policies, three names, never mixed up:

* `behaviour` sampled the tokens: the engine's log-probabilities.
* `proximal` is the trainer's own policy before the first update of the step. Clipping keeps the current policy near it.
* `current` is the policy that is being differentiated. The ratio is current / proximal.

While no update of the step has been made, proximal and current are one policy and `current.detach()` may stand for
proximal: the ratio is 1 and the gradient is the exact on-policy one. After the first update it may not: the ratio would
stay 1, nothing would clip, and PPO would silently be REINFORCE.

Log-probabilities are those of the distribution that the engine samples from: the softmax of logits / temperature.

Shapes: B responses, T positions, V vocabulary, N response tokens of several responses one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from torch import Tensor


def score_tokens(logits_BTV: Tensor, token_ids_BT: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each token, [B, T] with gradient, and each position's entropy, [B, T] without.

    In float32 whatever the logits are. Entropies are in nats.
    """
    logits_BTV = logits_BTV.float()
    if temperature != 1:
        logits_BTV = logits_BTV / temperature
    logprobs_BTV = logits_BTV.log_softmax(dim=-1)
    logprobs_BT = logprobs_BTV.gather(-1, token_ids_BT.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        # entr(0) is 0, where p * log p would be NaN for a logit of -inf.
        entropies_BT = torch.special.entr(logprobs_BTV.exp()).sum(dim=-1)
    return logprobs_BT, entropies_BT


def clipped_policy_loss(
    current_N: Tensor, proximal_N: Tensor, advantages_N: Tensor, clip_ratio_low: float, clip_ratio_high: float
) -> tuple[Tensor, Tensor]:
    """Return the loss per token, [N], and whether clipping took its gradient, [N] bool.

    The loss is `-min(ratio * A, clip(ratio, 1 - low, 1 + high) * A)`. It is clipped where moving on in the direction
    of the advantage A is no longer rewarded: ratio above 1 + high with A > 0, or below 1 - low with A < 0.
    """
    ratio_N = (current_N - proximal_N).exp()
    bounded_N = ratio_N.clamp(1 - clip_ratio_low, 1 + clip_ratio_high)
    free_gain_N, bounded_gain_N = ratio_N * advantages_N, bounded_N * advantages_N
    return -torch.minimum(free_gain_N, bounded_gain_N), bounded_gain_N < free_gain_N


def kl_k3(current_N: Tensor, reference_N: Tensor) -> Tensor:
    """Return the estimate of KL(current || reference) per sampled token, [N], never negative.

    `k3 = r - 1 - log r` with r = reference / current: unbiased and of low variance (Schulman, "Approximating KL
    divergence").
    """
    log_ratio_N = reference_N - current_N
    return log_ratio_N.expm1() - log_ratio_N


def token_weight(
    normalisation: Literal["sequence", "token_bound", "token_mean"],
    *,
    num_tokens: int,
    num_responses: int,
    max_response_tokens: int,
    num_batch_tokens: int | None,
) -> float:
    """Return the weight of each token of a response of `num_tokens` in an update of `num_responses`.

    `sequence`: 1 / (num_tokens * num_responses), every response counts the same.
    `token_bound`: 1 / (num_responses * max_response_tokens), every token counts the same whatever the batch holds.
    `token_mean`: 1 / num_batch_tokens, every token counts the same and the weights add up to 1; the only one that
    needs `num_batch_tokens`, the response tokens of the whole update.
    """
    match normalisation:
        case "sequence":
            return 1 / (num_tokens * num_responses)
        case "token_bound":
            return 1 / (num_responses * max_response_tokens)
        case "token_mean":
            assert num_batch_tokens is not None, "token_mean was asked for before the batch was complete"
            return 1 / num_batch_tokens
