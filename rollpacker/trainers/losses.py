"""The loss of a batch as a weighted sum over its tokens; pure functions on tensors.

    loss = SUM over tokens of
        weight * (correction * policy loss + kl_coefficient * KL estimate - entropy_coefficient * entropy)

Invariant: the weight of a token is a constant that is known before the batch is (`sequence`, `token_bound`), and its
loss depends on its own response and its group's advantage alone. So the gradient of a batch is the sum of the gradients
of its groups, in whatever split they come (paper, section 4.4). `token_mean` lacks the first half: its constant is
known only once the last response is there; `BATCH_ADVANTAGES` lack the second.

Three policies, three names, never mixed up:

* `behaviour` sampled the tokens: the engine's log-probabilities, of whatever version it held then.
* `proximal` is the trainer's own policy before the first update of the step. Clipping keeps the current policy near it.
* `current` is the policy that is being differentiated.

While no update of the step has been made, proximal and current are one policy and `current.detach()` may stand for
proximal: the ratio is 1 and the gradient is the exact on-policy one. After the first update it may not: the ratio would
stay 1, nothing would clip, and PPO would silently be REINFORCE.

Engine and trainer compute with other kernels, so behaviour and proximal differ although their weights are the same; and
where the engine's weights were older, they are different policies. What was sampled from one and is trained as if from
the other biases the gradient, and may make training collapse (arXiv 2510.26788; vLLM with bfloat16).
`mismatch_weights` corrects it: constants that multiply the policy loss of a token. They depend on its own response
alone, so they stream. A token that they mask still counts in what the loss is divided by: otherwise the others would
learn more, the more is masked. A loss whose anchor is the behaviour policy needs no correction (`policy_losses.py`).

Log-probabilities are float32, of the distribution that the engine samples from: the softmax of logits / temperature.
Their differences are bounded before they are exponents, so that no infinity meets a 0.

Shapes: B responses, T positions, V vocabulary, N response tokens of several responses one after the other, R of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

MOST_NATS = 20.0
"""Of a difference of log-probabilities that becomes a ratio: 5e8, whose square is finite in float32."""
_IMPOSSIBLE_NATS = 200.0
"""The surprisal of a token whose probability is 0 in float32, in place of infinity: 0 times it is 0, not NaN."""


def score_tokens(
    logits_BTV: Tensor, token_ids_BT: Tensor, temperature: float, *, has_entropy_gradient: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities of the tokens, [B, T] with gradient, and entropies and variances, [B, T] without.

    Of each position's distribution p, in float32 whatever the logits are: the entropy, -SUM p log p in nats, is the
    mean of the surprisal -log p of a token that is drawn from it, and SUM p (log p)^2 - entropy^2 is its variance. The
    gradient of the entropies, where it is asked for, takes memory for two more tensors of the logits' size.
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
    if has_entropy_gradient and logprobs_BTV.requires_grad:
        entropies_BT = (logprobs_BTV.exp() * logprobs_BTV.neg().clamp(max=_IMPOSSIBLE_NATS)).sum(dim=-1)
    return logprobs_BT, entropies_BT, variances_BT.clamp_(min=0)


def log_ratios(above_N: Tensor, below_N: Tensor) -> Tensor:
    """Return the logarithms of ratios of probabilities, within `MOST_NATS` of 0; NaN stays NaN."""
    return (above_N - below_N).clamp(-MOST_NATS, MOST_NATS)


def ratios(above_N: Tensor, below_N: Tensor) -> Tensor:
    """Return ratios of probabilities from their logarithms, all of them finite."""
    return log_ratios(above_N, below_N).exp()


def per_response(values_N: Tensor, num_tokens_B: Sequence[int], how: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a number of each response, such as the mean, at each of its tokens."""
    found_B = torch.stack([how(values_R) for values_R in torch.split(values_N, list(num_tokens_B))])
    return found_B.repeat_interleave(torch.tensor(num_tokens_B, device=values_N.device))


def kl_estimate(estimator: Literal["k1", "k2", "k3"], current_N: Tensor, reference_N: Tensor) -> Tensor:
    """Return an estimate of KL(current || reference) per sampled token, [N].

    With r = reference / current, of tokens that the current policy drew (Schulman, "Approximating KL divergence"):
    k1 = -log r has no bias, k2 = (log r)^2 / 2 a small one and low variance, k3 = r - 1 - log r neither, and like k2 is
    never negative. Their gradients estimate other things: that of k2 has the mean of the divergence's own, that of k3
    the mean of KL(reference || current)'s, that of k1 the mean 0 (arXiv 2506.09477).
    """
    if estimator == "k1":
        return current_N - reference_N
    return kl_k3(current_N, reference_N) if estimator == "k3" else (current_N - reference_N).square() / 2


def kl_k3(current_N: Tensor, reference_N: Tensor) -> Tensor:
    """Return k3 of `kl_estimate`; r is at most e^`MOST_NATS`."""
    log_ratio_N = (reference_N - current_N).clamp(max=MOST_NATS)
    return log_ratio_N.expm1() - log_ratio_N


def sums_to_come(values_N: Tensor, num_tokens_B: Sequence[int]) -> Tensor:
    """Return the sum from each token to the end of its response, [N]."""
    return torch.cat([values_R.flip(0).cumsum(0).flip(0) for values_R in torch.split(values_N, list(num_tokens_B))])


def mismatch_weights(
    correction: Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "k3_mask"],
    proximal_N: Tensor,
    behaviour_N: Tensor,
    num_tokens_B: Sequence[int],
    *,
    low: float,
    high: float,
    most_k3: float,
) -> tuple[Tensor, Tensor]:
    """Return what multiplies the policy loss of each token, [N] without gradient, and where it was bounded, [N] bool.

    With r = proximal / behaviour of a token, p the product of r over its response, and g its geometric mean:

    `token_truncate`: min(r, high). Truncated importance sampling (Yao et al. 2025, "Your Efficient RL Framework
    Secretly Brings You Off-Policy RL Training").
    `token_mask`: r, and 0 outside of [low, high]. Masked importance sampling (IcePop, arXiv 2510.18855).
    `sequence_truncate`: min(p, high). Without bias up to the bound, but of a large variance: a mean ratio of 1.1 makes
    2.6 of 10 tokens and 14,000 of 100.
    `sequence_mask`: g, and 0 outside of [low, high]. The mean of log r, not its sum, which grows with the length and
    would mask the long responses (TRL issue 5814; the ratio of GSPO, arXiv 2507.18071).
    `k3_mask`: 1, and 0 where the mean of r - 1 - log r over the response is above `most_k3`. It rejects what is far
    from the policy, and corrects nothing within.
    """
    log_ratio_N = log_ratios(proximal_N, behaviour_N).detach()
    if correction == "k3_mask":
        divergence_N = per_response(log_ratio_N.expm1() - log_ratio_N, num_tokens_B, torch.mean)
        is_far_N = divergence_N > most_k3
        # A NaN is not masked, below neither: the loss becomes NaN, and the run ends.
        return torch.where(divergence_N.isnan(), divergence_N, (~is_far_N).to(divergence_N.dtype)), is_far_N
    if correction.startswith("sequence"):
        how = torch.sum if correction == "sequence_truncate" else torch.mean
        log_ratio_N = per_response(log_ratio_N, num_tokens_B, how).clamp(-MOST_NATS, MOST_NATS)
    ratio_N = log_ratio_N.exp()
    if correction.endswith("truncate"):
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
