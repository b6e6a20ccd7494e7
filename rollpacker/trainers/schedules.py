"""The learning rate as a pure function of the pipeline step.

Invariant: it knows the step and nothing of the past, so a resumed run needs no scheduler state, and a step that makes
several optimizer updates makes them all at one rate. No step has rate 0 unless the configuration asks for it: warm-up
starts at `1/warmup_steps`, and decay reaches `min_lr_ratio` one step after the last.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollpacker.config.sections.trainer import TrainerSection


def learning_rate(section: TrainerSection, step: int, num_steps: int) -> float:
    """Return the rate of a step (from 0) of a run of `num_steps`.

    Warm-up rises linearly and reaches the full rate in its last step. After it the rate stays (`constant`), or falls
    on a line or a half cosine to `min_lr_ratio` of it at `step == num_steps`, and stays there.
    """
    if step < section.warmup_steps:
        return section.learning_rate * (step + 1) / section.warmup_steps
    if section.lr_schedule == "constant":
        return section.learning_rate
    num_decay_steps = max(1, num_steps - section.warmup_steps)
    progress = min(1.0, (step - section.warmup_steps) / num_decay_steps)
    remaining = 1 - progress if section.lr_schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return section.learning_rate * (section.min_lr_ratio + (1 - section.min_lr_ratio) * remaining)
