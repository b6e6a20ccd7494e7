from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from rollpacker.core.errors import ConfigError
from rollpacker.core.ids import Domain
from rollpacker.core.settings import SchedulerSettings
from tests.core.player import make_settings


def test_settings_survive_json_exactly() -> None:
    settings = make_settings(eta_prompts=Fraction("1.1"), domain_weights=((Domain("b"), Fraction(1, 3)),))
    assert settings.to_plain()["eta_prompts"] == "11/10"
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
