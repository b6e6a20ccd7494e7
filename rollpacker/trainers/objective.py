"""The GRPO objective over micro-batches: which samples a group gives, the loss of each token, and what is observed.

Under an advantage that compares a group's rewards alone, a group of equal ones has advantage 0 and hence no policy
gradient. It passes forward only, which saves two thirds of its work and keeps the metrics over the whole batch; the
constants of the normalisation count it. With a KL penalty, an entropy bonus or a loss of the user's own, which may have
terms without the advantage, it has a gradient and is trained like any other. With `mask_truncated` a truncated response
passes forward only, too, whatever its group's rewards are: over-long filtering.

Source: GRPO (arXiv 2402.03300), clip bounds and over-long filtering of DAPO (arXiv 2503.14476).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from rollpacker.config.sections.losses import BATCH_ADVANTAGES, TURN_ADVANTAGES, is_own, resolved
from rollpacker.core.ids import ENVIRONMENT
from rollpacker.protocols.rollout import FinishReason
from rollpacker.trainers.advantages import batch_advantages, group_advantages
from rollpacker.trainers.losses import kl_estimate, kl_k3, mismatch_weights, ratios, sums_to_come, token_weight
from rollpacker.trainers.microbatches import Sample
from rollpacker.trainers.own_functions import own_advantage
from rollpacker.trainers.policy_losses import make_policy_loss
from rollpacker.trainers.tokens import Tokens
from rollpacker.trainers.turn_advantages import token_advantages, turn_advantages

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from torch import Tensor

    from rollpacker.config.sections.trainer import TrainerSection
    from rollpacker.protocols.rollout import Response, RolloutGroup
    from rollpacker.protocols.trainer import BatchShape
    from rollpacker.trainers.microbatches import MicroBatch
    from rollpacker.trainers.policy import Scores


@dataclass(slots=True, kw_only=True)
class Sums:
    """Sums and maxima over the sampled tokens that passed on this rank so far; each is observed once per step."""

    num_tokens: float = 0.0
    entropy: float = 0.0
    num_current: float = 0.0
    """Tokens that the trainer's own policy version sampled; the next six are sums over these alone."""
    current_entropy: float = 0.0
    surprisal: float = 0.0
    surprisal_squares: float = 0.0
    """[M] of `surprisal.py`, and below <M>."""
    surprisal_variance: float = 0.0
    mismatch: float = 0.0
    mismatch_max: float = 0.0
    mismatch_kl: float = 0.0
    ratio: float = 0.0
    """Of the trainer's to the engine's probability, as the next."""
    ratio_squares: float = 0.0
    correction: float = 0.0
    """Of the weights of `mismatch_weights`, as the next two."""
    correction_max: float = 0.0
    num_bounded: float = 0.0
    num_trained: float = 0.0
    """Tokens that had a gradient; the next two are sums over these alone."""
    kl: float = 0.0
    num_clipped: float = 0.0
    loss: float = 0.0

    def observe(self, microbatch: MicroBatch, scores: Scores, correction: tuple[Tensor, Tensor] | None) -> None:
        """Add a micro-batch; `correction` is what `mismatch_weights` gave."""
        logprobs_N, behaviour_N = scores.logprobs_N.detach().double(), microbatch.behaviour_N.double()
        entropies_N = scores.entropies_N.detach()
        ratio_N = ratios(logprobs_N, behaviour_N)
        mismatch_N = (logprobs_N - behaviour_N).abs()
        of_current = {
            "current_entropy": entropies_N.double(),
            "surprisal": -behaviour_N,
            "surprisal_squares": (behaviour_N + entropies_N).square(),
            "surprisal_variance": scores.variances_N.double(),
            "mismatch": mismatch_N,
            "mismatch_max": mismatch_N,
        }
        num_stale = 0
        if microbatch.is_stale_N is not None:
            num_stale = int(microbatch.is_stale_N.sum())
            of_current = {name: each_N.masked_fill(microbatch.is_stale_N, 0) for name, each_N in of_current.items()}
        largest = {"mismatch_max": of_current.pop("mismatch_max")}
        sums = of_current | {
            "entropy": entropies_N.double(),
            "mismatch_kl": kl_k3(behaviour_N, logprobs_N),
            "ratio": ratio_N,
            "ratio_squares": ratio_N.square(),
        }
        if correction is not None:
            weights_N, is_bounded_N = correction
            sums |= {"correction": weights_N.double(), "num_bounded": is_bounded_N.double()}
            largest["correction_max"] = sums["correction"]
        self.num_tokens += len(logprobs_N)
        self.num_current += len(logprobs_N) - num_stale
        # One number after the other would wait for an accelerator each time.
        found = torch.stack([each_N.sum() for each_N in sums.values()] + [each_N.max() for each_N in largest.values()])
        for name, value in zip([*sums, *largest], found.tolist(), strict=True):
            known: float = getattr(self, name)
            setattr(self, name, known + value if name in sums else largest_of(known, value))


def largest_of(one: float, other: float) -> float:
    """Return the larger number; NaN, the worst mismatch of all, is larger than any."""
    return math.nan if math.isnan(one) or math.isnan(other) else max(one, other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divisors:
    """What the loss of an update is divided by."""

    num_responses: int
    max_response_tokens: int
    num_tokens: int | None
    """Sampled tokens of the update's responses that are not masked; None while it streams."""


class Objective:
    """The loss that a trainer section configures."""

    def __init__(self, section: TrainerSection) -> None:
        self._section = section = resolved(section)
        self._policy_loss = make_policy_loss(section)
        kind = section.advantage
        self._advantages = own_advantage(kind) if is_own(kind) else functools.partial(group_advantages, kind=kind)
        self.streams = not section.needs_whole_batch
        """Whether groups are trained as they come; else they wait for `complete_batch`."""
        self.has_reference = section.kl_coefficient > 0
        self.has_correction = section.mismatch != "none"

    def samples_of(self, group: RolloutGroup, shape: BatchShape) -> list[Sample]:
        """Return a group's samples for the step of its batch."""
        section = self._section
        if section.advantage in TURN_ADVANTAGES:
            of_turns = turn_advantages(
                group, section.advantage, discount=section.turn_discount, weight=section.turn_weight
            )
            advantages = token_advantages(group, of_turns)
        else:
            advantages = [
                np.full(response.num_tokens, advantage, dtype=np.float32)
                for response, advantage in zip(group.responses, self._advantages(group.rewards), strict=True)
            ]
        return [
            Sample(
                prompt_token_ids=group.prompt_token_ids,
                response_token_ids=response.token_ids,
                behaviour_logprobs=response.logprobs,
                advantages_R=advantages_R,
                mask_R=response.mask,
                is_stale_R=_stale(response, shape),
                is_masked=section.mask_truncated and response.finish_reason is FinishReason.LENGTH,
            )
            for response, advantages_R in zip(group.responses, advantages, strict=True)
        ]

    def with_batch_advantages(
        self, groups: Sequence[list[Sample]], rewards: Sequence[Sequence[float]]
    ) -> list[list[Sample]]:
        """Return the groups of a whole batch, with advantages that depend on all their rewards where it has such."""
        if self._section.advantage not in BATCH_ADVANTAGES:
            return list(groups)
        num_tokens = [[sample.num_trained for sample in group] for group in groups]
        advantages = batch_advantages(rewards, num_tokens, self._section.advantage)
        return [
            [
                dataclasses.replace(sample, advantages_R=np.full_like(sample.advantages_R, advantage))
                for sample, advantage in zip(group, of_group, strict=True)
            ]
            for group, of_group in zip(groups, advantages, strict=True)
        ]

    def has_gradient(self, sample: Sample) -> bool:
        has_more = self.has_reference or self._section.entropy_coefficient > 0 or is_own(self._section.loss)
        return not sample.is_masked and (sample.has_advantage or has_more)

    def divisors(self, shape: BatchShape, samples: Sequence[Sample]) -> Divisors:
        """Return those of an update on some samples, which are all of it unless it streams."""
        return Divisors(
            num_responses=shape.num_responses if self.streams else len(samples),
            max_response_tokens=shape.max_response_tokens,
            num_tokens=(
                None if self.streams else sum(sample.num_trained for sample in samples if not sample.is_masked)
            ),
        )

    def observe(self, sums: Sums, microbatch: MicroBatch, scores: Scores) -> tuple[Tensor, Tensor] | None:
        """Add to `sums` what passed through the proximal policy; returns the correction of its tokens' loss."""
        correction = self._correction(microbatch, scores.logprobs_N)
        sums.observe(microbatch, scores, correction)
        return correction

    def _correction(self, microbatch: MicroBatch, proximal_N: Tensor) -> tuple[Tensor, Tensor] | None:
        section = self._section
        if section.mismatch is None or section.mismatch == "none":
            return None
        return mismatch_weights(
            section.mismatch,
            proximal_N,
            microbatch.behaviour_N,
            microbatch.num_tokens_B,
            low=section.mismatch_low,
            high=section.mismatch_high,
            most_k3=section.mismatch_k3,
        )

    def loss(self, sums: Sums, divisors: Divisors, microbatch: MicroBatch, scores: Scores) -> Tensor:
        """Return the loss of a micro-batch, and add to `sums`. Tokens without proximal log-probabilities are observed.

        `losses.py` explains why the current policy may replace the proximal one where they are absent.
        """
        current_N = scores.logprobs_N
        if microbatch.proximal_N is None:
            proximal_N = current_N.detach()
            correction = self.observe(sums, microbatch, scores)
        else:
            proximal_N = microbatch.proximal_N
            correction = self._correction(microbatch, proximal_N)
        advantages_N, reference_N = microbatch.advantages_N, microbatch.reference_N
        section = self._section
        if reference_N is not None and section.kl_in == "reward":
            divergence_N = kl_estimate("k1", proximal_N, reference_N)
            advantages_N = advantages_N - section.kl_coefficient * sums_to_come(divergence_N, microbatch.num_tokens_B)
        loss_N, is_clipped_N = self._policy_loss(
            Tokens(
                current_N=current_N,
                proximal_N=proximal_N,
                behaviour_N=microbatch.behaviour_N,
                advantages_N=advantages_N,
                num_tokens_B=microbatch.num_tokens_B,
            )
        )
        sums.num_trained += len(current_N)
        sums.num_clipped += int(is_clipped_N.sum())
        if correction is not None:
            loss_N = loss_N * correction[0]
        if reference_N is not None:
            sums.kl += float(kl_k3(current_N.detach(), reference_N).double().sum())
            if section.kl_in == "loss":
                assert section.kl_estimator is not None, "a section is resolved"
                kl_N = kl_estimate(section.kl_estimator, current_N, reference_N)
                loss_N = loss_N + section.kl_coefficient * kl_N
        if section.entropy_coefficient:
            loss_N = loss_N - section.entropy_coefficient * scores.entropies_N
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


def _stale(response: Response, shape: BatchShape) -> npt.NDArray[np.bool_] | None:
    """Which tokens the trainer's own version did not sample, or not over its own cache; None if it did all."""
    if shape.keeps_cache and response.request.round < shape.step:
        return np.ones(response.num_tokens, dtype=np.bool_)
    is_stale = [span.policy_version not in {shape.policy_version, ENVIRONMENT} for span in response.spans]
    if not any(is_stale):
        return None
    return np.repeat(np.array(is_stale), [span.num_tokens for span in response.spans])
