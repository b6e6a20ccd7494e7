"""What a step takes at most, synchronous and asynchronous, and which share of the GPUs should train: formulas.

With N samples in a step, K GPUs, mu_g and L the mean and the longest generation of a sample, mu_t the training of one,
E epochs, beta the trainer's share of the GPUs and alpha the bound on staleness,

    W           = N / K * (mu_g + E mu_t)
    T_sync     <= W + L
    T_async    <= W + L / (alpha + 1)                                         at the beta* of the next line
    beta*       = E N mu_t / (E N mu_t + N mu_g + K L / (alpha + 1))          the paper's

The paper's beta* makes both sides of a step equally long when generation takes [N mu_g + K L / (alpha + 1)] / ((1 -
beta) K). But a longest sample does not take longer on fewer GPUs: N mu_g / ((1 - beta) K) + L / (alpha + 1) bounds
generation, too, and more tightly. Both sides are then equal at a root of a quadratic, which lies higher.

The asynchronous ones are of a lead that equals the bound, as ROLL Flash has it: with a shorter one engines may run out
of admitted prompts while the trainer works, and a step may take longer.

All are bounds that list scheduling gives (Graham, 1966), not predictions: `time <= bound` can be tested, equality not.
They leave out what a step takes beside generation and training: weights' way, rewards, recomputed tokens.

Source: ROLL Flash, arXiv 2510.11345, its propositions on synchronous and asynchronous step time; the tighter share is
derived here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTheory:
    """A step's work, in seconds of one GPU, and its bounds."""

    num_samples: int
    """N: responses of a step."""
    num_gpus: int
    """K: of engines and trainer together."""
    generation_s: float
    """mu_g: GPU-seconds per sample, of an engine that is busy with as many as it takes."""
    training_s: float
    """mu_t, times E: GPU-seconds per sample of all passes over it."""
    longest_s: float
    """L: the longest sample's own generation, in seconds, in such an engine."""

    @property
    def work_s(self) -> float:
        """W: a step on all GPUs if nobody waited."""
        return self.num_samples / self.num_gpus * (self.generation_s + self.training_s)

    @property
    def synchronous_s(self) -> float:
        """A step takes at most so long when engines and trainer take turns on all GPUs."""
        return self.work_s + self.longest_s

    def asynchronous_s(self, max_staleness: int) -> float:
        """A step takes at most so long at `trainer_share`."""
        return self.work_s + self.longest_s / (max_staleness + 1)

    def split_s(self, share: float, max_staleness: int) -> float:
        """The tighter bound at any share of the trainer, in (0, 1): the longer of its side and the engines'."""
        per_gpu = self.num_samples / self.num_gpus
        generation_s = per_gpu * self.generation_s / (1 - share) + self.longest_s / (max_staleness + 1)
        return max(per_gpu * self.training_s / share, generation_s)

    def trainer_share(self, max_staleness: int) -> float:
        """beta* by the paper's formula."""
        training_s = self.num_samples * self.training_s
        tail_s = self.num_gpus * self.longest_s / (max_staleness + 1)
        return training_s / (training_s + self.num_samples * self.generation_s + tail_s)

    def tighter_trainer_share(self, max_staleness: int) -> float:
        """The beta at which `split_s` is least: t / b = g / (1 - b) + l, or l b^2 - (t + g + l) b + t = 0.

        The root below 1 is written with a sum below the line, so that it holds for l = 0, too.
        """
        per_gpu = self.num_samples / self.num_gpus
        training_s, generation_s = per_gpu * self.training_s, per_gpu * self.generation_s
        tail_s = self.longest_s / (max_staleness + 1)
        total_s = training_s + generation_s + tail_s
        return 2 * training_s / (total_s + math.sqrt(total_s * total_s - 4 * tail_s * training_s))
