"""The GRPO objective over micro-batches: which samples a group gives, the loss of each token, and what is observed.

A group whose rewards are all equal has advantage 0 and hence no policy gradient. It passes forward only, which saves
two thirds of its work and keeps the metrics over the whole batch; the constants of the normalisation count it. With a
KL penalty it has a gradient and is trained like any other. With `mask_truncated` a truncated response passes forward
only, too, whatever its group's rewards are: over-long filtering.

Source: GRPO (arXiv 2402.03300), clip bounds and over-long filtering of DAPO (arXiv 2503.14476).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rollpacker.protocols.rollout import FinishReason
from rollpacker.trainers.advantages import group_advantages
from rollpacker.trainers.losses import clipped_policy_loss, kl_k3, token_weight
from rollpacker.trainers.microbatches import Sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rollpacker.config.sections.trainer import TrainerSection
    from rollpacker.protocols.rollout import RolloutGroup
    from rollpacker.protocols.trainer import BatchShape
    from rollpacker.trainers.microbatches import MicroBatch
    from rollpacker.trainers.policy import Scores


@dataclass(slots=True, kw_only=True)
class Sums:
    """Sums over the response tokens that passed on this rank so far; each token is observed once per step."""

    num_tokens: int = 0
    entropy: float = 0.0
    mismatch: float = 0.0
    mismatch_max: float = 0.0
    kl: float = 0.0
    num_clipped: int = 0
    loss: float = 0.0

    def observe(self, microbatch: MicroBatch, scores: Scores) -> None:
        logprobs_N = scores.logprobs_N.detach()
        mismatch_N = (logprobs_N - microbatch.behaviour_N).abs().double()
        self.num_tokens += len(logprobs_N)
        self.entropy += float(scores.entropies_N.double().sum())
        self.mismatch += float(mismatch_N.sum())
        # Not max(): it would drop a NaN, the worst mismatch of all.
        self.mismatch_max = float(mismatch_N.new_tensor([self.mismatch_max, float(mismatch_N.max())]).max())


@dataclass(frozen=True, slots=True, kw_only=True)
class Divisors:
    """What the loss of an update is divided by."""

    num_responses: int
    max_response_tokens: int
    num_tokens: int | None
    """Response tokens of the update that are not masked; None while it streams."""


class Objective:
    """The loss that a trainer section configures."""

    def __init__(self, section: TrainerSection) -> None:
        self._section = section
        self.streams = section.num_minibatches == 1 and section.loss_normalisation != "token_mean"
        """Whether groups are trained as they come; else they wait for `finish_step`."""
        self.has_reference = section.kl_coefficient > 0

    def samples_of(self, group: RolloutGroup) -> list[Sample]:
        advantages_R = group_advantages(group.rewards, self._section.advantage)
        return [
            Sample(
                prompt_token_ids=group.prompt_token_ids,
                response_token_ids=response.token_ids,
                behaviour_logprobs=response.logprobs,
                advantage=float(advantage),
                is_masked=self._section.mask_truncated and response.finish_reason is FinishReason.LENGTH,
            )
            for response, advantage in zip(group.responses, advantages_R, strict=True)
        ]

    def has_gradient(self, sample: Sample) -> bool:
        return not sample.is_masked and (sample.advantage != 0 or self.has_reference)

    def divisors(self, shape: BatchShape, samples: Sequence[Sample]) -> Divisors:
        """Return those of an update on some samples, which are all of it unless it streams."""
        return Divisors(
            num_responses=shape.num_responses if self._section.num_minibatches == 1 else len(samples),
            max_response_tokens=shape.max_response_tokens,
            num_tokens=(
                None
                if self.streams
                else sum(len(sample.response_token_ids) for sample in samples if not sample.is_masked)
            ),
        )

    def loss(self, sums: Sums, divisors: Divisors, microbatch: MicroBatch, scores: Scores) -> Tensor:
        """Return the loss of a micro-batch, and add to `sums`. Tokens without proximal log-probabilities are observed.

        `losses.py` explains why the current policy may replace the proximal one where they are absent.
        """
        current_N = scores.logprobs_N
        if microbatch.proximal_N is None:
            sums.observe(microbatch, scores)
            proximal_N = current_N.detach()
        else:
            proximal_N = microbatch.proximal_N
        loss_N, is_clipped_N = clipped_policy_loss(
            current_N, proximal_N, microbatch.advantages_N, self._section.clip_ratio_low, self._section.clip_ratio_high
        )
        sums.num_clipped += int(is_clipped_N.sum())
        if microbatch.reference_N is not None:
            kl_N = kl_k3(current_N, microbatch.reference_N)
            sums.kl += float(kl_N.detach().double().sum())
            loss_N = loss_N + self._section.kl_coefficient * kl_N
        weights_B = [
            token_weight(
                self._section.loss_normalisation,
                num_tokens=num_tokens,
                num_responses=divisors.num_responses,
                max_response_tokens=divisors.max_response_tokens,
                num_batch_tokens=divisors.num_tokens,
            )
            for num_tokens in microbatch.num_tokens_B
        ]
        weights_N = torch.tensor(weights_B, device=loss_N.device).repeat_interleave(
            torch.tensor(microbatch.num_tokens_B, device=loss_N.device)
        )
        return (weights_N * loss_N).sum()
