"""The policy losses: what each token of a micro-batch costs, with the gradient by which the policy learns from it.

Of a token, A is its advantage, r the ratio of its probability under the current policy and its anchor, and [r] is r
clipped to 1 - `clip_ratio_low` and 1 + `clip_ratio_high`; sg stops the gradient.

    ppo, ppo_behaviour   -min(r A, [r] A)                        PPO (arXiv 1707.06347), its anchor the proximal policy,
                         with A < 0 at most -dual_clip A         or the behaviour one; dual clip (arXiv 1912.09729)
    reinforce            -A log current                          (Williams 1992)
    tis, cispo           -sg([r]) A log current                  IMPALA (arXiv 1802.01561), MiniMax-M1 (2506.13585)
    topr                 as cispo where A < 0, else with [r] = 1 TOPR (arXiv 2503.14286), token by token
    gspo                 as ppo, also at most -dual_clip A, with r = sg(s) current / sg(current), s the geometric mean
                         of a response's ratios: the token-wise form of GSPO (arXiv 2507.18071, section 4.3)

Invariants: where the anchor is the current policy, each has the gradient of `reinforce`. A loss depends on its own
response alone, which a micro-batch holds whole, also with context parallelism: so all of them stream. TOPR splits by
the sign of what multiplies the log-probability, not by that of the reward as ROLL does: with a baseline, a rewarded
response may have a negative advantage, and would be pushed down without a bound.

Shapes: N response tokens of several responses, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from rollpacker.config.sections.losses import LOSSES, is_own
from rollpacker.trainers.losses import MOST_NATS, log_ratios, per_response, ratios
from rollpacker.trainers.own_functions import own_loss
from rollpacker.trainers.tokens import Tokens

if TYPE_CHECKING:
    from torch import Tensor

    from rollpacker.config.sections.trainer import TrainerSection


Loss = Callable[[Tokens], "tuple[Tensor, Tensor]"]
"""Gives what each token costs, [N], and where it has lost its gradient or some of its weight to a bound, [N] bool."""

_ROUNDING = 1e-4
"""Of a ratio, from one engine's kernels to another's: `tis` and `topr` are bounded by 1, which fresh tokens surpass."""


def make_policy_loss(section: TrainerSection) -> Loss:
    """Return the loss of a resolved section (`rollpacker.config.sections.losses`).

    Raises:
        UnusableFunction: It is the user's own, and cannot be imported.
    """
    name = section.loss
    assert name is not None, "a section is resolved before it makes a loss"
    if is_own(name):
        return own_loss(name)
    function, anchor = _FUNCTIONS[name], LOSSES[name].anchor

    def loss(tokens: Tokens) -> tuple[Tensor, Tensor]:
        anchors = {"proximal": tokens.proximal_N, "behaviour": tokens.behaviour_N}
        return function(tokens, anchors.get(anchor, tokens.current_N), section)

    return loss


def _clipped(tokens: Tokens, anchor_N: Tensor, section: TrainerSection) -> tuple[Tensor, Tensor]:
    loss_N, is_clipped_N = _clip(ratios(tokens.current_N, anchor_N), tokens.advantages_N, section)
    has_no_gradient_N = (tokens.current_N - anchor_N).abs() > MOST_NATS  # `ratios` bounds it
    return loss_N, is_clipped_N | has_no_gradient_N


def _clip(ratio_N: Tensor, advantages_N: Tensor, section: TrainerSection) -> tuple[Tensor, Tensor]:
    """PPO's loss of ratios with a gradient: it is clipped where moving on along A is no longer rewarded."""
    free_gain_N, bounded_gain_N = ratio_N * advantages_N, _bounded(ratio_N, section) * advantages_N
    loss_N, is_clipped_N = -torch.minimum(free_gain_N, bounded_gain_N), bounded_gain_N < free_gain_N
    if section.dual_clip is None:
        return loss_N, is_clipped_N
    most_N = torch.where(advantages_N < 0, -section.dual_clip * advantages_N, torch.inf)
    return torch.minimum(loss_N, most_N), is_clipped_N | (loss_N > most_N)


def _bounded(ratio_N: Tensor, section: TrainerSection) -> Tensor:
    low, high = section.clip_ratio_low, section.clip_ratio_high
    assert low is not None, "a section is resolved before it makes a loss"
    assert high is not None, "a section is resolved before it makes a loss"
    return ratio_N.clamp(1 - low, 1 + high)


def _reinforce(tokens: Tokens, _: Tensor, __: TrainerSection) -> tuple[Tensor, Tensor]:
    return -tokens.advantages_N * tokens.current_N, torch.zeros_like(tokens.current_N, dtype=torch.bool)


def _weighted(tokens: Tokens, anchor_N: Tensor, section: TrainerSection) -> tuple[Tensor, Tensor]:
    ratio_N = ratios(tokens.current_N.detach(), anchor_N)
    weights_N = _bounded(ratio_N, section)
    is_bounded_N = (weights_N - ratio_N).abs() > _ROUNDING * ratio_N  # a bound of 1 is that of each fresh token
    return -weights_N * tokens.advantages_N * tokens.current_N, is_bounded_N


def _topr(tokens: Tokens, anchor_N: Tensor, section: TrainerSection) -> tuple[Tensor, Tensor]:
    loss_N, is_bounded_N = _weighted(tokens, anchor_N, section)
    is_negative_N = tokens.advantages_N < 0
    positive, negative = section.topr_weights
    free_N = -tokens.advantages_N * tokens.current_N
    return torch.where(is_negative_N, negative * loss_N, positive * free_N), is_bounded_N & is_negative_N


def _gspo(tokens: Tokens, anchor_N: Tensor, section: TrainerSection) -> tuple[Tensor, Tensor]:
    log_ratio_N = log_ratios(tokens.current_N.detach(), anchor_N)
    mean_N = per_response(log_ratio_N, tokens.num_tokens_B, torch.mean)
    return _clip(mean_N.exp() * ratios(tokens.current_N, tokens.current_N.detach()), tokens.advantages_N, section)


_FUNCTIONS: dict[str, Callable[[Tokens, Tensor, TrainerSection], tuple[Tensor, Tensor]]] = {
    "ppo": _clipped,
    "ppo_behaviour": _clipped,
    "reinforce": _reinforce,
    "tis": _weighted,
    "cispo": _weighted,
    "topr": _topr,
    "gspo": _gspo,
}
"""Of current tokens, the log-probabilities of the loss's anchor, [N], and the section."""
