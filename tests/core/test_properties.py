"""What holds in every world: the reference model asserts it at each event; here the worlds are drawn.

`tests/fuzz/test_deliberate_bugs.py` runs as many again of those with tail batching, in which each bug is found.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollpacker.core.commands import RoundKind
from rollpacker.core.ids import Domain
from rollpacker.core.settings import SchedulerSettings, StreamSettings
from tests.fuzz.async_world import AsyncWorld, async_scenarios
from tests.fuzz.oracle.assignment import has_place_for_all
from tests.fuzz.scheduler_world import Scenario, SchedulerWorld, scenarios, with_history


@settings(max_examples=40)
@given(scenarios(batching="tail"))
def test_tail_batching_trains_every_prompt_once_on_policy_whatever_happens(scenario: Scenario) -> None:
    SchedulerWorld(scenario).run()


@settings(max_examples=40)
@given(scenarios(batching="plain"))
def test_plain_batching_trains_every_prompt_once_on_policy_whatever_happens(scenario: Scenario) -> None:
    SchedulerWorld(scenario).run()


@settings(max_examples=20)
@given(scenarios())
def test_a_trainer_that_shares_no_gpu_is_streamed_to_in_every_round_whatever_happens(scenario: Scenario) -> None:
    alone = StreamSettings(replicas=(), max_response_tokens=100)
    SchedulerWorld(replace(scenario, settings=replace(scenario.settings, stream=alone))).run()


@settings(max_examples=25)
@given(scenarios(batching="tail", is_dynamic=True))
def test_dynamic_tail_batching_trains_or_drops_every_prompt_once_whatever_happens(scenario: Scenario) -> None:
    SchedulerWorld(scenario).run()


@settings(max_examples=30)
@given(scenarios(batching="plain", is_dynamic=True))
def test_dynamic_plain_batching_trains_or_drops_every_prompt_once_whatever_happens(scenario: Scenario) -> None:
    SchedulerWorld(scenario).run()


@settings(max_examples=40)
@given(scenarios(batching="tail").map(with_history))
def test_a_length_history_trains_every_prompt_once_on_policy_whatever_happens(scenario: Scenario) -> None:
    SchedulerWorld(scenario).run()


@settings(max_examples=50)
@given(async_scenarios())
def test_an_asynchronous_run_trains_every_prompt_once_and_none_too_late_whatever_happens(scenario: Scenario) -> None:
    AsyncWorld(scenario).run()


@settings(max_examples=40)
@given(async_scenarios(is_dynamic=True))
def test_a_dynamic_asynchronous_run_trains_or_drops_every_prompt_once_and_in_time(scenario: Scenario) -> None:
    AsyncWorld(scenario).run()


@settings(max_examples=100)
@given(st.lists(st.integers(0, 2), max_size=6), st.integers(0, 4), st.integers(1, 3), st.integers(0, 3))
def test_the_oracle_finds_places_exactly_where_some_order_of_training_is_in_time(
    births: list[int], num_free: int, batch: int, bound: int
) -> None:
    step, num_free = 2, min(num_free, batch)
    births = [birth for birth in births if birth + bound >= step]

    def is_in_time(order: tuple[int, ...]) -> bool:
        return all(
            birth + bound >= (step if place < num_free else step + 1 + (place - num_free) // batch)
            for place, birth in enumerate(order)
        )

    found = has_place_for_all(births, step=step, num_free=num_free, batch=batch, bound=bound)
    assert found == any(map(is_in_time, permutations(births)))


def steady(eta_prompts: Fraction, *, num_steps: int) -> Scenario:
    return Scenario(
        settings=SchedulerSettings(
            batching="tail",
            num_prompts=8,
            num_responses=2,
            eta_prompts=eta_prompts,
            eta_responses=Fraction(3, 2),
            overlap_rewards=True,
            domain_weights=((Domain("math"), Fraction(1)), (Domain("code"), Fraction(1))),
        ),
        num_keys=(1000, 1000),
        num_epochs=None,
        num_steps=num_steps,
        num_gpus=2,
        width=1,
        kv_tokens=0,
        trouble=0.01,
        seed=7,
    )


@pytest.mark.parametrize(
    ("eta_prompts", "num_short"), [(Fraction(5, 4), 4), (Fraction(9, 8), 8), (Fraction(3, 2), 2), (Fraction(2), 1)]
)
def test_a_long_round_follows_as_many_short_rounds_as_defer_a_batch(eta_prompts: Fraction, num_short: int) -> None:
    cycle = [RoundKind.SHORT] * num_short + [RoundKind.LONG]
    assert SchedulerWorld(steady(eta_prompts, num_steps=3 * len(cycle))).run().kinds == cycle * 3


def test_without_prompt_speculation_no_round_is_long() -> None:
    assert set(SchedulerWorld(steady(Fraction(1), num_steps=12)).run().kinds) == {RoundKind.SHORT}


@settings(max_examples=20)
@given(scenarios(batching="tail"))
def test_without_speculation_tail_batches_are_plain_batches(scenario: Scenario) -> None:
    alike = replace(scenario.settings, eta_prompts=Fraction(1), eta_responses=Fraction(1), overlap_rewards=True)
    endless = replace(scenario, num_epochs=None)
    trained = [
        SchedulerWorld(replace(endless, settings=replace(alike, batching=batching))).run().trained
        for batching in ("tail", "plain")
    ]
    assert trained[0] == trained[1]


def test_commands_do_not_depend_on_the_hash_seed() -> None:
    program = (
        "from fractions import Fraction; from tests.core.test_properties import SchedulerWorld, steady;"
        "world = SchedulerWorld(steady(Fraction(5, 4), num_steps=6)); world.run(); print(world.digest.hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(digests) == 1
