"""Packs responses of mixed lengths into micro-batches within a budget.

Invariant: every sample is in exactly one micro-batch, no micro-batch of two or more samples has more positions than the
budget, and the packing is a function of the lengths in their order and of the policy. So the same groups in the same
order give the same floating-point sums.

Rows are padded on the right. A causal model never looks to the right, so padding needs no attention mask and cannot
change a real token's result. It takes the time of real tokens, unless the policy drops it; one pass more takes some
time as well. What that is depends on where the policy passes (`Policy.pass_cost_tokens`).

Of a response that an environment answered, only the tokens that a policy sampled are scored: its observations are
input, and the loss, its constants and all that is observed never see them.

Shapes: B rows, T input positions, K <= T last positions that may be scored (all response tokens lie there), N sampled
tokens of the rows one after the other, R response tokens of one sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from torch import Tensor

    from rollpacker.protocols.rollout import Logprobs, TokenIds

Value = TypeVar("Value", bound=np.generic)

CPU_PASS_TOKENS = 96
"""What one more forward and backward pass costs beside its positions, counted in positions: 2 to 3 ms against 0.027 ms
per position (2-layer Qwen2 of width 64, one CPU thread)."""
ACCELERATOR_PASS_TOKENS = 300
"""The same on an accelerator; estimated, not measured. Weights and gradients cross its memory once more: per parameter
14 bytes at 3.3e12 B/s, against 6 flop per parameter and position at 4e14 flop/s; the number of parameters cancels.
With FSDP2, too: a layer is gathered (twice 2 bytes per parameter at 2e11 B/s, NVLink) while another computes, which
hides it in a pass of 1,333 positions or more."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One response with all that the loss needs of it."""

    prompt_token_ids: TokenIds
    """At least one."""
    response_token_ids: TokenIds
    """Shape [R], at least one."""
    behaviour_logprobs: Logprobs
    """Shape [R]."""
    advantages_R: npt.NDArray[np.float32]
    """Of each token; those that no policy sampled do not count."""
    proximal_logprobs_R: Tensor | None = None
    """Of the sampled tokens alone; None while the current policy is the proximal one."""
    mask_R: npt.NDArray[np.bool_] | None = None
    """Which tokens a policy sampled; None where it sampled all of them."""
    is_stale_R: npt.NDArray[np.bool_] | None = None
    """Which tokens an older policy version sampled; None where none is."""
    is_masked: bool = False
    """Left out of the loss; it passes forward only."""
    is_whole: bool = False
    """One context-parallel rank computes it alone; otherwise all of them share it, also where there is only one."""

    @property
    def num_inputs(self) -> int:
        """Positions of the forward pass; the last token is predicted, never fed."""
        return len(self.prompt_token_ids) + len(self.response_token_ids) - 1

    @property
    def num_trained(self) -> int:
        """Tokens that a policy sampled."""
        return len(self.response_token_ids) if self.mask_R is None else int(self.mask_R.sum())

    @property
    def has_advantage(self) -> bool:
        """Whether any token that a policy sampled has one."""
        return bool(self.of_sampled(self.advantages_R).any())

    def of_sampled(self, values_R: npt.NDArray[Value]) -> npt.NDArray[Value]:
        """Those of the tokens that a policy sampled."""
        return values_R if self.mask_R is None else values_R[self.mask_R]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """Rows of one forward pass."""

    rows: tuple[int, ...]
    """Which samples, as indices into the sequence that was packed."""
    num_inputs_B: tuple[int, ...]
    """Positions of each row without padding; the last ones predict its response."""
    num_tokens_B: tuple[int, ...]
    """Sampled tokens of each row; they add up to N."""
    input_ids_BT: Tensor
    target_ids_BK: Tensor
    """The tokens that the last K positions predict."""
    is_sampled_BK: Tensor
    """True N times, row by row in the order of the flat tensors."""
    behaviour_N: Tensor
    advantages_N: Tensor
    proximal_N: Tensor | None
    is_whole: bool
    """As of all its samples."""
    is_stale_N: Tensor | None = None
    """Which tokens an older policy version sampled; None where none is."""
    reference_N: Tensor | None = None
    """Log-probabilities under the frozen reference; None where no KL penalty is asked for."""

    @property
    def num_scored(self) -> int:
        """K."""
        return self.target_ids_BK.shape[1]


def pass_cost(device: torch.device) -> int:
    """Return what one more pass costs beside its positions, counted in positions."""
    return CPU_PASS_TOKENS if device.type == "cpu" else ACCELERATOR_PASS_TOKENS


def pack(
    samples: Sequence[Sample],
    max_tokens: int,
    device: torch.device,
    num_parts: int = 1,
    pass_cost_tokens: int | None = CPU_PASS_TOKENS,
) -> list[MicroBatch]:
    """Return micro-batches, those of split samples first, and of each kind the longest first.

    Of `num_parts` context-parallel ranks one with whole samples gets as many tokens as its part of split ones has.
    Split ones come first so that the ranks, which have different whole ones, share them in the same order.
    """
    microbatches: list[MicroBatch] = []
    for is_whole, limit in ((False, max_tokens), (True, max_tokens // num_parts)):
        chosen = [index for index, sample in enumerate(samples) if sample.is_whole is is_whole]
        plan = plan_microbatches([samples[index].num_inputs for index in chosen], limit, pass_cost_tokens)
        microbatches += [_collate(samples, tuple(chosen[row] for row in run), device) for run in plan]
    return microbatches


def plan_microbatches(
    lengths: Sequence[int], max_tokens: int, pass_cost_tokens: int | None = CPU_PASS_TOKENS
) -> list[tuple[int, ...]]:
    """Split indices into runs of similar length at the least cost, longest first.

    The cost is padded positions plus `pass_cost_tokens` per run; with None it is the number of runs, which is right
    where rows are not padded and no pipeline idles for want of passes. A run of several stays within `max_tokens`; a
    longer single one goes alone. Equal lengths keep their order. Quadratic in the number of lengths, in numpy: 1 ms for
    256, 10 ms for 1024.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    longest = np.array([lengths[index] for index in order], dtype=np.int64)
    num = len(order)
    cost = np.zeros(num + 1, dtype=np.int64)
    start_of = np.zeros(num + 1, dtype=np.int64)
    starts = np.arange(num)
    num_before = np.concatenate([[0], np.cumsum(longest)])
    for end in range(1, num + 1):
        if pass_cost_tokens is None:
            positions, run_cost = num_before[end] - num_before[:end], 1
        else:
            positions, run_cost = longest[:end] * (end - starts[:end]), pass_cost_tokens
        is_allowed = positions <= max_tokens
        is_allowed[end - 1] = True
        total = np.where(is_allowed, cost[:end] + positions + run_cost, np.iinfo(np.int64).max)
        start_of[end] = total.argmin()
        cost[end] = total[start_of[end]]
    runs: list[tuple[int, ...]] = []
    end = num
    while end:
        start = int(start_of[end])
        runs.append(tuple(order[start:end]))
        end = start
    return runs[::-1]


def _collate(samples: Sequence[Sample], rows: tuple[int, ...], device: torch.device) -> MicroBatch:
    chosen = [samples[row] for row in rows]
    num_inputs = max(sample.num_inputs for sample in chosen)
    # Position p predicts token p + 1: the first response token is predicted by the prompt's last position.
    first_scored = min(len(sample.prompt_token_ids) for sample in chosen) - 1
    # What stands in the padding is never seen; 0 is a legal id of every vocabulary.
    token_ids = np.zeros((len(rows), num_inputs + 1), dtype=np.int64)
    is_sampled = np.zeros((len(rows), num_inputs - first_scored), dtype=np.bool_)
    for row, sample in enumerate(chosen):
        num_prompt, end = len(sample.prompt_token_ids), sample.num_inputs + 1
        token_ids[row, :num_prompt] = sample.prompt_token_ids
        token_ids[row, num_prompt:end] = sample.response_token_ids
        is_sampled[row, num_prompt - 1 - first_scored : end - 1 - first_scored] = (
            True if sample.mask_R is None else sample.mask_R
        )
    behaviour = [sample.of_sampled(sample.behaviour_logprobs) for sample in chosen]
    advantages = [sample.of_sampled(sample.advantages_R) for sample in chosen]
    proximal = [sample.proximal_logprobs_R for sample in chosen if sample.proximal_logprobs_R is not None]
    assert len(proximal) in {0, len(chosen)}, "either every sample has proximal log-probabilities or none"
    tokens = torch.from_numpy(token_ids).to(device)
    return MicroBatch(
        rows=rows,
        num_inputs_B=tuple(sample.num_inputs for sample in chosen),
        num_tokens_B=tuple(sample.num_trained for sample in chosen),
        input_ids_BT=tokens[:, :-1],
        target_ids_BK=tokens[:, first_scored + 1 :],
        is_sampled_BK=torch.from_numpy(is_sampled).to(device),
        behaviour_N=torch.from_numpy(np.concatenate(behaviour)).to(device),
        advantages_N=torch.from_numpy(np.concatenate(advantages)).to(device),
        proximal_N=torch.cat(proximal) if proximal else None,
        is_whole=chosen[0].is_whole,
        is_stale_N=_stale(chosen, device),
    )


def _stale(samples: Sequence[Sample], device: torch.device) -> Tensor | None:
    if all(sample.is_stale_R is None for sample in samples):
        return None
    of_samples = (
        np.zeros(sample.num_trained, dtype=np.bool_)
        if sample.is_stale_R is None
        else sample.of_sampled(sample.is_stale_R)
        for sample in samples
    )
    return torch.from_numpy(np.concatenate(list(of_samples))).to(device)
