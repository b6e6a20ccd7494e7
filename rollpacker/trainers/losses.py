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

Engine and trainer compute with other kernels, so behaviour and proximal differ although their weights are the same.
What was sampled from one and is trained as if from the other biases the gradient, and may make training collapse
(arXiv 2510.26788; vLLM with bfloat16). `mismatch_weights` corrects it: constants that multiply the policy loss of a
token. They depend on its own response alone, so they stream.

Log-probabilities are those of the distribution that the engine samples from: the softmax of logits / temperature.

Shapes: B responses, T positions, V vocabulary, N response tokens of several responses one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_IMPOSSIBLE_NATS = 200.0
"""The surprisal of a token whose probability is 0 in float32, in place of infinity: 0 times it is 0, not NaN."""


def score_tokens(logits_BTV: Tensor, token_ids_BT: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities of the tokens, [B, T] with gradient, and entropies and variances, [B, T] without.

    Of each position's distribution p, in float32 whatever the logits are: the entropy, -SUM p log p in nats, is the
    mean of the surprisal -log p of a token that is drawn from it, and SUM p (log p)^2 - entropy^2 is its variance.
    """
    logits_BTV = logits_BTV.float()
    if temperature != 1:
        logits_BTV = logits_BTV / temperature
    logprobs_BTV = logits_BTV.log_softmax(dim=-1)
    logprobs_BT = logprobs_BTV.gather(-1, token_ids_BT.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        surprisals_BTV = logprobs_BTV.neg().clamp_(max=_IMPOSSIBLE_NATS)
        weighted_BTV = logprobs_BTV.exp().mul_(surprisals_BTV)
        entropies_BT = weighted_BTV.sum(dim=-1)
        variances_BT = weighted_BTV.mul_(surprisals_BTV).sum(dim=-1) - entropies_BT.square()
    return logprobs_BT, entropies_BT, variances_BT.clamp_(min=0)


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


def mismatch_weights(
    correction: Literal["token_truncate", "token_mask", "sequence_mask"],
    proximal_N: Tensor,
    behaviour_N: Tensor,
    num_tokens_B: Sequence[int],
    *,
    low: float,
    high: float,
) -> tuple[Tensor, Tensor]:
    """Return what multiplies the policy loss of each token, [N] without gradient, and where it was bounded, [N] bool.

    With r = proximal / behaviour of a token, and g the geometric mean of r over its response:

    `token_truncate`: min(r, high). Truncated importance sampling (Yao et al. 2025, "Your Efficient RL Framework
    Secretly Brings You Off-Policy RL Training").
    `token_mask`: r, and 0 outside of [low, high]. Masked importance sampling (IcePop, arXiv 2510.18855).
    `sequence_mask`: g, and 0 outside of [low, high]. The mean of log r, not its sum, which grows with the length and
    would mask the long responses (TRL issue 5814; the ratio of GSPO, arXiv 2507.18071).
    """
    log_ratio_N = (proximal_N - behaviour_N).detach()
    if correction == "sequence_mask":
        num_tokens = torch.tensor(num_tokens_B, device=log_ratio_N.device)
        means_B = torch.stack([ratios_R.mean() for ratios_R in torch.split(log_ratio_N, list(num_tokens_B))])
        log_ratio_N = means_B.repeat_interleave(num_tokens)
    ratio_N = log_ratio_N.exp()
    # A NaN is not bounded: the loss becomes NaN, and the run ends.
    if correction == "token_truncate":
        return ratio_N.clamp(max=high), ratio_N > high
    is_masked_N = (ratio_N < low) | (ratio_N > high)
    return ratio_N.masked_fill(is_masked_N, 0.0), is_masked_N


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
