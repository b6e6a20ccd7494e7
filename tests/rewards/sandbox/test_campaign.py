"""Adaptive limits with real programs: the short version of `tests/benchmarks/sandbox.py`."""

from fractions import Fraction

from rollpacker.core.settings import RewardBudgetSettings
from tests.rewards.sandbox import campaign

SCALED = RewardBudgetSettings(factor=Fraction(3, 2), min_limit_s=0.2, max_limit_s=1.5)
"""The paper's 1.5, 2 s and 30 s, but shorter."""


async def test_adaptive_limits_stop_hanging_programs_early_and_change_no_reward(tmp_path):
    """With this seed, each program that hangs is sent when one of its prompt has passed, whatever the order of the last
    three. So it is stopped at 1.5 times what that one took, and not at the fixed limit."""
    values = {
        "num_prompts": 2,
        "num_responses": 10,
        "busy_s": (0.001, 0.02),
        "hanging": 0.2,
        "num_workers": 2,
        "seed": 2,
    }
    adaptive = await campaign.run(tmp_path, settings=SCALED, **values)
    fixed = await campaign.run(tmp_path, max_case_s=1.5, **values)
    assert adaptive.failed == fixed.failed == []
    assert adaptive.rewards == fixed.rewards
    assert (len(adaptive.hanging_s), adaptive.num_correct) == (4, 16)
    assert all(time_s > 1.5 for time_s in fixed.hanging_s)
    assert sum(time_s < 1.5 for time_s in adaptive.hanging_s) >= 2, "unless correct ones took a second"
    assert adaptive.own_s < fixed.own_s


async def test_a_correct_program_fails_only_by_exceeding_its_limit(tmp_path):
    """Every program takes longer than the least limit at times, so that the anchors decide."""
    tight = RewardBudgetSettings(factor=Fraction(3, 2), min_limit_s=0.02, max_limit_s=20.0)
    found = await campaign.run(
        tmp_path, settings=tight, num_prompts=2, num_responses=12, busy_s=(0.005, 0.1), hanging=0.0, num_workers=2
    )
    assert found.num_correct + len(found.failed) == 24
    assert found.num_correct >= 2
    assert all(reason == "timeout" and time_s > limits[0] for limits, time_s, reason in found.failed)
