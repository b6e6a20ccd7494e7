"""What the scheduler is told of a run."""

import pytest

from rollpacker.config.compose import compose
from rollpacker.core.ids import Domain
from rollpacker.runtime.scheduling import scheduler_settings

REAL = ("reward=sandbox", "model.path=m", "data.path=d")
MODELLED = ("backend=sim", "model=qwen2.5-7b")


@pytest.mark.parametrize(
    ("words", "limits_s"),
    [
        (REAL, (2, 30)),
        ((*REAL, "reward.sandbox.max_case_s=6"), (2, 6)),
        ((*REAL, "reward.sandbox.max_case_s=1"), (1, 1)),
        (MODELLED, (2, 30)),
        ((*MODELLED, "reward.timeout_s=10"), (2, 10)),
    ],
)
def test_no_adaptive_limit_is_above_what_the_run_gives_a_test_case(words, limits_s):
    config = compose(["system=reward", "run.dir=r", *words])
    budget = scheduler_settings(config, {Domain("code"): 8}).reward_budget
    assert budget is not None
    assert (budget.min_limit_s, budget.max_limit_s) == limits_s
