from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from rollpacker.core.errors import ConfigError
from rollpacker.core.ids import Domain
from rollpacker.core.settings import ParallelismSettings, RewardBudgetSettings, SchedulerSettings, StreamSettings
from tests.core.plans import degree_costs
from tests.core.player import make_settings


def test_settings_survive_json_exactly() -> None:
    settings = make_settings(eta_prompts=Fraction("1.1"), domain_weights=((Domain("b"), Fraction(1, 3)),))
    assert settings.to_plain()["eta_prompts"] == "11/10"
    assert SchedulerSettings.from_plain(json.loads(json.dumps(settings.to_plain()))) == settings
    settings = make_settings(
        reward_budget=RewardBudgetSettings(factor=Fraction(5, 3)),
        parallelism=ParallelismSettings(
            degrees=(1, 2), initial=2, costs=(degree_costs(1), degree_costs(2)), prompt_tokens=7
        ),
        stream=StreamSettings(
            replicas=((0, 1), (2,)), max_response_tokens=9, first_share=Fraction(1, 3), must_fit=False
        ),
    )
    assert SchedulerSettings.from_plain(json.loads(json.dumps(settings.to_plain()))) == settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batching": "tial"}, "system.batching='tial'\nAllowed are plain and tail"),
        ({"num_prompts": 0}, "rollout.num_prompts=0\nIt is at least 1"),
        ({"num_responses": -1}, "rollout.num_responses=-1"),
        ({"eta_prompts": Fraction(9, 10)}, "system.eta_prompts=9/10\nIt is at least 1"),
        ({"eta_responses": Fraction(0)}, "system.eta_responses=0"),
        ({"domain_weights": ()}, "No domain has a weight"),
        ({"domain_weights": ((Domain("math"), Fraction(0)),)}, "data.domain_weights.math=0"),
        ({"domain_weights": ((Domain("math"), Fraction(1)),) * 2}, "A domain has two weights: math, math"),
        (
            {"domain_weights": ((Domain("math"), Fraction(99)), (Domain("code"), Fraction(1)))},
            "Domain 'code' gets no place in a batch of rollout.num_prompts=4: its share is 1.00%",
        ),
    ],
)
def test_nonsense_is_refused_with_its_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        make_settings(**changes)
    assert message in str(refusal.value)
    assert refusal.value.remedy


STREAM = {"replicas": ((0,),), "max_response_tokens": 9}
PLANNER = {"degrees": (1, 2), "initial": 1}


@pytest.mark.parametrize(
    ("settings", "values", "message"),
    [
        (RewardBudgetSettings, {"factor": Fraction(1, 2)}, "system.reward.factor=1/2"),
        (RewardBudgetSettings, {"min_limit_s": 40.0}, "system.reward.min_limit_s=40 with system.reward.max_limit_s=30"),
        (RewardBudgetSettings, {"max_limit_s": float("nan")}, "system.reward.max_limit_s=nan"),
        (ParallelismSettings, PLANNER | {"degrees": ()}, "engine.degrees=[]"),
        (ParallelismSettings, PLANNER | {"degrees": (1, 4)}, "engine.degrees=[1, 4]\nEach degree is twice"),
        (ParallelismSettings, PLANNER | {"initial": 4}, "engine.tensor_parallel=4\nAllowed are"),
        (ParallelismSettings, PLANNER | {"max_growth": Fraction(1, 2)}, "system.planner.max_growth=1/2"),
        (ParallelismSettings, PLANNER | {"costs": (degree_costs(1),)}, "engine.profile has costs of the degrees [1]"),
        (ParallelismSettings, PLANNER | {"patience": 0}, "system.planner.patience=0"),
        (StreamSettings, STREAM | {"replicas": ((0, 1), (1,))}, "on the GPUs [[0, 1], [1]]"),
        (StreamSettings, STREAM | {"replicas": ((0,), ())}, "on the GPUs [[0], []]"),
        (StreamSettings, STREAM | {"max_response_tokens": 0}, "rollout.max_response_tokens=0"),
        (StreamSettings, STREAM | {"first_share": Fraction(3, 4)}, "system.stream.first_share=3/4 with"),
        (StreamSettings, STREAM | {"every_share": Fraction(0)}, "system.stream.every_share=0"),
    ],
)
def test_nonsense_of_the_other_machines_is_refused_with_its_value(
    settings: type[Any], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        settings(**values)
    assert message in str(refusal.value)
    assert refusal.value.remedy
