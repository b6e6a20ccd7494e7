"""Log-probabilities, entropies and variances from logits whose vocabulary is split over tensor-parallel ranks.

No rank ever holds a full row of logits: four numbers per position travel instead of the vocabulary. Every rank ends up
with the same results, and its backward pass gives the gradient of its own columns.

Shapes: N positions, V columns of this rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch import Tensor


def score_split_tokens(
    logits_NV: Tensor,
    token_ids_N: Tensor,
    temperature: float,
    first_id: int,
    group: dist.ProcessGroup,
    *,
    has_entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities of the tokens, with gradient, and entropies and variances, without, as `score_tokens`.

    This rank's columns are the ids from `first_id` on.
    """
    logprobs_N, entropies_N, variances_N = _SplitScores.apply(  # type: ignore[no-untyped-call]  # left unannotated
        logits_NV, token_ids_N, temperature, first_id, group, has_entropy_gradient
    )
    return logprobs_N, entropies_N, variances_N


class _SplitScores(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917  # autograd passes by position
        ctx: Any,
        logits_NV: Tensor,
        token_ids_N: Tensor,
        temperature: float,
        first_id: int,
        group: dist.ProcessGroup,
        has_entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        scaled_NV = logits_NV.float() / temperature
        largest_N1 = scaled_NV.amax(dim=-1, keepdim=True)
        _all_reduce(largest_N1, dist.ReduceOp.MAX, group)
        scaled_NV -= largest_N1
        column_N1 = (token_ids_N - first_id).unsqueeze(-1)
        is_own_N1 = (column_N1 >= 0) & (column_N1 < scaled_NV.shape[-1])
        column_N1 = torch.where(is_own_N1, column_N1, 0)
        chosen_N1 = torch.where(is_own_N1, scaled_NV.gather(-1, column_N1), 0)
        weights_NV = scaled_NV.exp()
        weighted_NV = weights_NV * scaled_NV
        weighted_N1 = weighted_NV.sum(dim=-1, keepdim=True)
        squared_N1 = weighted_NV.mul_(scaled_NV).sum(dim=-1, keepdim=True)
        sums_N4 = torch.cat((weights_NV.sum(dim=-1, keepdim=True), weighted_N1, squared_N1, chosen_N1), dim=-1)
        _all_reduce(sums_N4, dist.ReduceOp.SUM, group)
        total_N, weighted_N, squared_N, chosen_N = sums_N4.unbind(-1)
        log_total_N = total_N.log()
        means_N = weighted_N / total_N
        entropies_N = log_total_N - means_N
        variances_N = (squared_N / total_N - means_N.square()).clamp_(min=0)  # a log p is a logit less a constant
        weights_NV /= total_N.unsqueeze(-1)
        ctx.save_for_backward(weights_NV, column_N1, is_own_N1, entropies_N)
        ctx.temperature, ctx.dtype, ctx.has_entropy_gradient = temperature, logits_NV.dtype, has_entropy_gradient
        ctx.mark_non_differentiable(*([] if has_entropy_gradient else [entropies_N]), variances_N)
        return chosen_N - log_total_N, entropies_N, variances_N

    @staticmethod
    def backward(ctx: Any, gradient_N: Tensor, of_entropies_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        probabilities_NV, column_N1, is_own_N1, entropies_N = ctx.saved_tensors
        gradient_N1 = gradient_N.unsqueeze(-1) / ctx.temperature
        gradient_NV = probabilities_NV * -gradient_N1
        gradient_NV.scatter_add_(-1, column_N1, gradient_N1 * is_own_N1)
        if ctx.has_entropy_gradient:  # dH/dx = -p (log p + H) of logits x / temperature
            slopes_NV = torch.special.xlogy(probabilities_NV, probabilities_NV)
            slopes_NV += probabilities_NV * entropies_N.unsqueeze(-1)
            gradient_NV -= slopes_NV * (of_entropies_N.unsqueeze(-1) / ctx.temperature)
        return gradient_NV.to(ctx.dtype), None, None, None, None, None


def _all_reduce(tensor: Tensor, how: dist.ReduceOp.RedOpType, group: dist.ProcessGroup) -> None:
    if group.size() > 1:
        dist.all_reduce(tensor, how, group)
