from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from rollpacker.core.ids import Domain
from rollpacker.core.settings import (
    DynamicSamplingSettings,
    EvaluationSettings,
    FillSettings,
    HeldOutSet,
    ParallelismSettings,
    RewardBudgetSettings,
    SchedulerSettings,
    SpeculativeDecodingSettings,
    StreamSettings,
)
from rollpacker.core.tail_escalation_settings import TailEscalationSettings
from rollpacker.metrics.codec import from_plain, to_plain
from tests.core.plans import degree_costs
from tests.core.player import make_settings
from tests.core.test_fleet import ELASTIC
from tests.core.turns import RULES


def test_settings_survive_json_exactly() -> None:
    settings = make_settings(eta_prompts=Fraction("1.1"), domain_weights=((Domain("b"), Fraction(1, 3)),))
    assert to_plain(settings)["eta_prompts"] == "11/10"
    assert from_plain(SchedulerSettings, json.loads(json.dumps(to_plain(settings)))) == settings
    settings = make_settings(
        reward_budget=RewardBudgetSettings(factor=Fraction(5, 3)),
        parallelism=ParallelismSettings(
            degrees=(1, 2), initial=2, costs=(degree_costs(1), degree_costs(2)), prompt_tokens=7
        ),
        speculative_decoding=SpeculativeDecodingSettings(max_sequences=5, min_gain=Fraction(9, 8)),
        stream=StreamSettings(
            replicas=((0, 1), (2,)), max_response_tokens=9, first_share=Fraction(1, 3), must_fit=False
        ),
    )
    assert from_plain(SchedulerSettings, json.loads(json.dumps(to_plain(settings)))) == settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_prompts": 0}, "num_prompts=0 is below 1"),
        ({"num_responses": -1}, "num_responses=-1 is below 1"),
        ({"eta_prompts": Fraction(9, 10)}, "eta_prompts=9/10 is below 1"),
        ({"eta_responses": Fraction(0)}, "eta_responses=0 is below 1"),
        ({"domain_weights": ()}, "each domain has one weight above 0"),
        ({"domain_weights": ((Domain("math"), Fraction(0)),)}, "each domain has one weight above 0"),
        ({"domain_weights": ((Domain("math"), Fraction(1)),) * 2}, "each domain has one weight above 0"),
        (
            {"domain_weights": ((Domain("math"), Fraction(99)), (Domain("code"), Fraction(1)))},
            "has no place in a batch of 4",
        ),
    ],
)
def test_nonsense_is_refused_with_its_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_settings(**changes)


FILLING = EvaluationSettings(
    sets=(HeldOutSet(name="unseen", keys=("a",), num_samples=1),),
    every_steps=1,
    at_start=False,
    at_end=False,
    fill=FillSettings(num_slots=1, max_tokens=1, grace_s=0.0),
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dynamic_sampling": DynamicSamplingSettings()}, "nobody knows what is left of a round"),
        ({"elastic": ELASTIC}, "would go to those of workers"),
        ({"environment": RULES}, "how long a trajectory of several turns goes on"),
        ({"evaluation": FILLING}, "uses the engines that escalation changes"),
    ],
)
def test_what_escalation_excludes_is_refused(changes: dict[str, Any], message: str) -> None:
    costs = (degree_costs(1), degree_costs(2))
    planner = ParallelismSettings(degrees=(1, 2), initial=1, costs=costs)
    make_settings(parallelism=planner, **changes)
    escalating = replace(planner, escalation=TailEscalationSettings(max_response_tokens=9))
    with pytest.raises(ValueError, match=message):
        make_settings(parallelism=escalating, **changes)


DRAFTS = {"max_sequences": 8}
STREAM = {"replicas": ((0,),), "max_response_tokens": 9}
PLANNER = {"degrees": (1, 2), "initial": 1}


@pytest.mark.parametrize(
    ("settings", "values", "message"),
    [
        (RewardBudgetSettings, {"factor": Fraction(1, 2)}, "factor=1/2 is below 1"),
        (RewardBudgetSettings, {"min_limit_s": 40.0}, "min_limit_s=40 <= max_limit_s=30"),
        (RewardBudgetSettings, {"max_limit_s": float("nan")}, "max_limit_s=nan"),
        (ParallelismSettings, PLANNER | {"degrees": ()}, r"degrees=\(\) has none"),
        (ParallelismSettings, PLANNER | {"degrees": (1, 4)}, r"degrees=\(1, 4\): each is twice"),
        (ParallelismSettings, PLANNER | {"initial": 4}, "initial=4 is not among"),
        (ParallelismSettings, PLANNER | {"max_growth": Fraction(1, 2)}, "max_growth=1/2 is below 1"),
        (ParallelismSettings, PLANNER | {"costs": (degree_costs(1),)}, r"costs of the degrees \(1,\)"),
        (ParallelismSettings, PLANNER | {"patience": 0}, "patience=0 is below 1"),
        (SpeculativeDecodingSettings, {"max_sequences": 0}, "max_sequences=0 is below 1"),
        (SpeculativeDecodingSettings, DRAFTS | {"lengths": (1, 2)}, r"lengths=\(1, 2\): ascending from 0"),
        (SpeculativeDecodingSettings, DRAFTS | {"lengths": (0, 2, 2)}, r"lengths=\(0, 2, 2\): ascending from 0"),
        (SpeculativeDecodingSettings, DRAFTS | {"trial_every": 1}, "not 1 < trial_every=1"),
        (SpeculativeDecodingSettings, DRAFTS | {"rarest_trial_every": 4}, "not 1 < trial_every=8 <= rarest_trial"),
        (SpeculativeDecodingSettings, DRAFTS | {"num_trial_passes": 0}, "num_trial_passes=0 is below 1"),
        (SpeculativeDecodingSettings, DRAFTS | {"min_gain": Fraction(1, 2)}, "min_gain=1/2 is below 1"),
        (StreamSettings, STREAM | {"replicas": ((0, 1), (1,))}, r"replicas=\(\(0, 1\), \(1,\)\)"),
        (StreamSettings, STREAM | {"replicas": ((0,), ())}, r"replicas=\(\(0,\), \(\)\)"),
        (StreamSettings, STREAM | {"max_response_tokens": 0}, "max_response_tokens=0 is below 1"),
        (StreamSettings, STREAM | {"first_share": Fraction(3, 4)}, "first_share=3/4 <= last_share=1/2"),
        (StreamSettings, STREAM | {"every_share": Fraction(0)}, "every_share=0 <= 1"),
    ],
)
def test_nonsense_of_the_other_machines_is_refused_with_its_value(
    settings: type[Any], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        settings(**values)


@pytest.mark.parametrize(("most", "sizes"), [(1, (1,)), (2, (1, 2)), (5, (1, 2, 4, 8)), (64, (1, 2, 4, 8, 16, 32, 64))])
def test_ranges_of_batch_sizes_are_powers_of_two_and_hold_the_largest_batch(most: int, sizes: tuple[int, ...]) -> None:
    assert SpeculativeDecodingSettings(max_sequences=most).batch_sizes == sizes
