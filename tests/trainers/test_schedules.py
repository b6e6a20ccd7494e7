from __future__ import annotations

import pytest

from rollpacker.config.sections.trainer import TrainerSection
from rollpacker.trainers.schedules import learning_rate


def rates(num_steps: int, **section: object) -> list[float]:
    whole = TrainerSection(learning_rate=1.0, **section)
    return [learning_rate(whole, step, num_steps) for step in range(num_steps + 2)]


def test_constant_without_warmup_is_the_rate_of_the_configuration():
    assert rates(3) == [1.0] * 5


def test_warmup_rises_from_its_first_share_to_the_full_rate_in_its_last_step():
    assert rates(6, warmup_steps=4) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0])


def test_linear_decay_reaches_its_end_one_step_after_the_last():
    assert rates(4, lr_schedule="linear") == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0, 0.0])


def test_linear_decay_ends_at_the_minimum_ratio():
    assert rates(4, lr_schedule="linear", min_lr_ratio=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_cosine_decay_is_half_way_in_the_middle():
    found = rates(4, lr_schedule="cosine", min_lr_ratio=0.1)
    quarter = 0.1 + 0.9 * (1 + 2**-0.5) / 2
    assert found == pytest.approx([1.0, quarter, 0.55, 0.1 + 0.9 * (1 - 2**-0.5) / 2, 0.1, 0.1])


def test_decay_begins_after_warmup():
    assert rates(6, lr_schedule="linear", warmup_steps=2) == pytest.approx([0.5, 1, 1, 0.75, 0.5, 0.25, 0.0, 0.0])


def test_warmup_longer_than_the_run_never_ends():
    assert rates(2, lr_schedule="cosine", warmup_steps=4) == pytest.approx([0.25, 0.5, 0.75, 1.0])
