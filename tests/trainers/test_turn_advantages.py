"""Advantages of single turns, held against the formulas in exact numbers; the gradient, against finite differences."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rollpacker.core.ids import ENVIRONMENT, VersionSpan
from rollpacker.protocols.rollout import Turn
from rollpacker.trainers.turn_advantages import returns_of, token_advantages, turn_advantages
from tests.trainers.test_trajectories import learned, with_noise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.protocols.rollout import RolloutGroup

DISCOUNT, WEIGHT = Fraction(3, 4), Fraction(1, 2)

STATES = [[0, 1, 2], [0, 1], [0, 2, 1, 1], [0]]
"""What the environment of each response of a group showed before each turn; 0 is nothing, before the first."""
REWARDS = [[0, 0, 1], [0, -1], [1, 0, 0, 2], [0]]

NUM_TOKENS = (2, 1, 3, 2)
"""Of the turns of a response, by place."""


def reference(kind: str) -> list[list[float]]:
    """The formulas of the paper, in fractions up to the square roots."""
    returns = [
        [
            sum(Fraction(reward) * DISCOUNT**later for later, reward in enumerate(rewards[place:]))
            for place in range(len(rewards))
        ]
        for rewards in REWARDS
    ]
    if kind == "step_reinforce":
        everything = [each for of_response in returns for each in of_response]
        return [[_z(each, everything) for each in of_response] for of_response in returns]
    sums = [Fraction(sum(rewards)) for rewards in REWARDS]
    found = []
    for states, of_response, total in zip(STATES, returns, sums, strict=True):
        row = []
        for state, value in zip(states, of_response, strict=True):
            alike = [
                other
                for those, others in zip(STATES, returns, strict=True)
                for that, other in zip(those, others, strict=True)
                if that == state
            ]
            row.append(_z(total, sums) + float(WEIGHT) * _z(value, alike))
        found.append(row)
    return found


def _z(value: Fraction, values: Sequence[Fraction]) -> float:
    mean = Fraction(sum(values)) / len(values)
    if len(set(values)) == 1:
        return 0.0
    variance = sum((each - mean) ** 2 for each in values) / (len(values) - 1)
    return float(value - mean) / (math.sqrt(variance) + 1e-6)


def with_turns(group: RolloutGroup) -> RolloutGroup:
    """Cut the responses of a group into `STATES`, each turn with `NUM_TOKENS` after two tokens of its environment."""
    responses, turns = [], []
    generator = np.random.default_rng(5)
    for response, states, rewards in zip(group.responses, STATES, REWARDS, strict=True):
        ids: list[int] = []
        spans, of_response = [], []
        for state, reward, num_tokens in zip(states, rewards, NUM_TOKENS, strict=False):
            shown = [] if state == 0 else [state, 7]
            spans += [VersionSpan(ENVIRONMENT, len(shown))] if shown else []
            ids += shown
            of_response.append(Turn(len(ids), len(ids) + num_tokens, float(reward)))
            ids += generator.integers(1, 20, num_tokens).tolist()
            spans.append(VersionSpan(0, num_tokens))
        logprobs = np.full(len(ids), -1.0, dtype=np.float32)
        token_ids = np.array(ids, dtype=np.int32)
        responses.append(dataclasses.replace(response, token_ids=token_ids, logprobs=logprobs, spans=tuple(spans)))
        turns.append(tuple(of_response))
    sums = tuple(float(sum(rewards)) for rewards in REWARDS)
    return dataclasses.replace(group, responses=tuple(responses), rewards=sums, turns=tuple(turns))


def settings(kind: str) -> dict[str, Any]:
    return {"advantage": kind, "turn_discount": float(DISCOUNT)} | (
        {"turn_weight": float(WEIGHT)} if kind == "gigpo" else {}
    )


def found_advantages(group: RolloutGroup, kind: str) -> list[list[float]]:
    return turn_advantages(group, kind, discount=float(DISCOUNT), weight=float(WEIGHT))


def test_a_return_is_what_came_from_a_turn_on_discounted_by_turns():
    assert returns_of([1.0, 0.0, 4.0], 0.5) == [2.0, 2.0, 4.0]
    assert returns_of([1.0, 2.0, 3.0], 0.0) == [1.0, 2.0, 3.0]
    assert returns_of([], 0.9) == []


@pytest.mark.parametrize("kind", ["gigpo", "step_reinforce"])
def test_advantages_of_turns_are_those_of_the_formula(bench, kind):
    group = with_turns(bench.groups([(0, 0, 0, 0)])[0])
    for found, expected in zip(found_advantages(group, kind), reference(kind), strict=True):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_turns_that_began_in_a_state_of_their_own_have_the_advantage_of_their_episode_alone(bench):
    group = with_turns(bench.groups([(0, 0, 0, 0)])[0])
    alone = [
        dataclasses.replace(each, token_ids=np.arange(each.num_tokens, dtype=np.int32) + 100 * place)
        for place, each in enumerate(group.responses)
    ]
    for place, of_turns in enumerate(found_advantages(dataclasses.replace(group, responses=tuple(alone)), "gigpo")):
        sums = [Fraction(sum(rewards)) for rewards in REWARDS]
        assert of_turns[1:] == pytest.approx([_z(sums[place], sums)] * (len(of_turns) - 1), rel=1e-5)


@pytest.mark.parametrize("kind", ["gigpo", "step_reinforce"])
def test_only_tokens_that_a_policy_sampled_have_an_advantage(bench, kind):
    group = with_turns(bench.groups([(0, 0, 0, 0)])[0])
    of_turns = found_advantages(group, kind)
    for advantages_R, response, turns, expected in zip(
        token_advantages(group, of_turns), group.responses, group.turns, of_turns, strict=True
    ):
        mask = np.ones(response.num_tokens, dtype=np.bool_) if response.mask is None else response.mask
        assert not advantages_R[~mask].any()
        assert advantages_R[mask].tolist() == pytest.approx(
            [value for turn, value in zip(turns, expected, strict=True) for _ in range(turn.end - turn.begin)]
        )


@pytest.mark.parametrize("kind", ["gigpo", "step_reinforce"])
async def test_the_gradient_is_that_of_finite_differences_of_the_loss_written_down_naively(bench, kind):
    group = with_turns(bench.groups([(0, 0, 0, 0)])[0])
    trainer = bench.trainer(loss="reinforce", loss_normalisation="token_mean", max_grad_norm=1e9, **settings(kind))
    found, metrics = await learned(trainer, bench, [group])
    share = 1 - trainer._section.adam_betas[0]
    model = AutoModelForCausalLM.from_pretrained(bench.model_path).eval().double()
    num_sampled = sum(turn.end - turn.begin for turns in group.turns for turn in turns)
    assert metrics.num_tokens == num_sampled

    def loss() -> float:
        total = 0.0
        with torch.no_grad():
            for response, turns, advantages in zip(group.responses, group.turns, reference(kind), strict=True):
                logprobs_R = bench.logprobs(model, group.prompt_token_ids, response.token_ids, 1.0)
                for turn, advantage in zip(turns, advantages, strict=True):
                    total -= advantage * float(logprobs_R[turn.begin : turn.end].sum()) / num_sampled
        return total

    for name, parameter in list(model.named_parameters())[::3]:
        gradient = found[name].double() / share
        norm, slope, step = float(gradient.norm()), 0.0, 3e-3
        direction = gradient / norm  # the steepest, as the model's norms are computed in single precision
        for sign in (1, -1):
            parameter.data += sign * step * direction
            slope += sign * loss() / (2 * step)
            parameter.data -= sign * step * direction
        assert norm == pytest.approx(slope, rel=1e-2), name


@pytest.mark.parametrize("kind", ["gigpo", "step_reinforce"])
async def test_noise_at_what_an_environment_wrote_changes_no_bit_of_the_gradient(bench, kind):
    groups = [with_turns(bench.groups([(0, 0, 0, 0)])[0])]
    gradient, metrics = await learned(bench.trainer(**settings(kind)), bench, groups)
    noisy_gradient, noisy_metrics = await learned(bench.trainer(**settings(kind)), bench, with_noise(groups))
    assert all(torch.equal(gradient[name], noisy_gradient[name]) for name in gradient)
    assert any(each.abs().max() > 0 for each in gradient.values())
    assert metrics == noisy_metrics


@pytest.mark.parametrize("kind", ["gigpo", "step_reinforce"])
async def test_groups_may_come_in_any_split(bench, kind):
    """Each depends on itself alone."""
    groups = [with_turns(each) for each in bench.groups([(0, 0, 0, 0), (0, 0, 0, 0)])]
    whole, _ = await learned(bench.trainer(**settings(kind)), bench, groups)
    trainer = bench.trainer(**settings(kind))
    await trainer.begin_step(bench.shape(groups, step=0, version=0))
    for group in groups:
        await trainer.accumulate([group])
    await trainer.finish_step()
    state = trainer._policy._optimizer.state
    for name, parameter in trainer._policy._parameters.items():
        torch.testing.assert_close(state[parameter]["exp_avg"], whole[name], rtol=1e-5, atol=1e-7)
