"""Draws a batch's next tokens, each row from its own generator.

The random number of a token is a function of its sample's seed and its position alone, so what else is in the batch
cannot change it. Nothing is kept between draws: the generator is counter-based, SplitMix64 (Steele, Lea and Flood,
"Fast splittable pseudorandom number generators", OOPSLA 2014) started at the scrambled seed and read at the position.

Shapes: B rows, V tokens of the vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""SplitMix64's increment: odd, closest to 2^64 divided by the golden ratio."""


def uniform_numbers(seeds_B: npt.NDArray[np.uint64], positions_B: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """One number in [0, 1) per row, in steps of 2^-24: all that float32 can tell apart below 1."""
    states_B = scramble(seeds_B) + (positions_B.astype(np.uint64) + np.uint64(1)) * _GOLDEN_GAMMA
    top_24_bits_B = scramble(states_B) >> np.uint64(40)
    return top_24_bits_B.astype(np.float32) * np.float32(2**-24)


def sample(
    logits_BV: torch.Tensor, temperatures_B: torch.Tensor | None, uniforms_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a token per row by inverting its cumulative distribution.

    Args:
        logits_BV: Any floating type; all arithmetic is float32.
        temperatures_B: Divides the logits; 0 takes the likeliest token, the first among equals; None means 1 for every
            row.
        uniforms_B: As `uniform_numbers` makes them.

    Returns:
        tokens_B (int64) and logprobs_B (float32), the latter under the distribution that was drawn from; of a row with
        temperature 0 under that of temperature 1, as vLLM gives it. A row whose logits are not all finite or minus
        infinity gets a log-probability that is not finite.
    """
    logprobs_BV = _scaled(logits_BV, temperatures_B).log_softmax(dim=-1)
    probabilities_BV = logprobs_BV.exp()
    cumulative_BV = probabilities_BV.cumsum(dim=-1)
    # a uniform is at most 1 - 2^-24, so the product rounds to below the total, and a token is always found
    threshold_B1 = uniforms_B[:, None] * cumulative_BV[:, -1:]
    tokens_B1 = torch.searchsorted(cumulative_BV, threshold_B1, right=True)
    tokens_B1.clamp_(max=logits_BV.shape[1] - 1)  # where logits are not numbers, nothing is found
    # a GPU adds up a single row in parallel, in an order that differs from place to place, so its sums may rise where a
    # probability is 0; about one uniform in 10^7 falls there
    takes_likeliest_B1 = probabilities_BV.gather(1, tokens_B1) == 0
    if temperatures_B is not None:
        takes_likeliest_B1 |= temperatures_B[:, None] == 0
    tokens_B1 = torch.where(takes_likeliest_B1, logprobs_BV.argmax(dim=-1, keepdim=True), tokens_B1)
    return tokens_B1[:, 0], logprobs_BV.gather(1, tokens_B1)[:, 0]


def keep_likeliest(
    logits_BV: torch.Tensor,
    temperatures_B: torch.Tensor | None,
    top_ks_B: torch.Tensor | None,
    top_ps_B: torch.Tensor | None,
) -> torch.Tensor:
    """Give every token that may not be drawn a logit of minus infinity.

    Of a row's tokens the `top_k` likeliest stay, and of their renormalised distribution the likeliest ones until they
    have `top_p` together (nucleus sampling: Holtzman et al., ICLR 2020, section 3.1). The order is vLLM's. At least one
    token stays; among equals the one with the lower id does.

    Args:
        logits_BV: As `sample` takes them.
        temperatures_B: The same.
        top_ks_B: 0 is all; None means 0 for every row.
        top_ps_B: 1 is all; None means 1 for every row.
    """
    if top_ks_B is None and top_ps_B is None:
        return logits_BV
    sorted_BV, order_BV = _scaled(logits_BV, temperatures_B).sort(dim=-1, descending=True, stable=True)
    is_kept_BV = torch.ones_like(sorted_BV, dtype=torch.bool)
    if top_ks_B is not None:
        ranks_V = torch.arange(logits_BV.shape[1], device=logits_BV.device)
        is_kept_BV = (ranks_V < top_ks_B[:, None]) | (top_ks_B[:, None] == 0)
    if top_ps_B is not None:
        probabilities_BV = sorted_BV.masked_fill(~is_kept_BV, -torch.inf).softmax(dim=-1)
        ahead_BV = probabilities_BV.cumsum(dim=-1) - probabilities_BV
        is_kept_BV = is_kept_BV & ((ahead_BV < top_ps_B[:, None]) | (top_ps_B[:, None] == 1))
        is_kept_BV[:, 0] = True
    return logits_BV.masked_fill(~torch.zeros_like(is_kept_BV).scatter(1, order_BV, is_kept_BV), -torch.inf)


def _scaled(logits_BV: torch.Tensor, temperatures_B: torch.Tensor | None) -> torch.Tensor:
    """Logits divided by their temperatures, float32; by 1 where that is 0."""
    if temperatures_B is None:
        return logits_BV.float()
    return logits_BV.float() / torch.where(temperatures_B == 0, 1, temperatures_B)[:, None]


def scramble(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's output function: a bijection in which every input bit moves about half of the output bits."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
