"""Objectives other than the default on a real model, against ones written down naively; and what stale tokens do."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rollpacker.config.sections.losses import LOSSES
from rollpacker.core.errors import ForeignVersion
from rollpacker.core.ids import VersionSpan
from rollpacker.trainers.advantages import group_advantages
from tests.trainers.test_torch_trainer import REWARDS, assert_bit_equal, gradients, step, weights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from rollpacker.protocols.rollout import RolloutGroup

ANCHORED_AT_BEHAVIOUR = [name for name, loss in LOSSES.items() if loss.anchor == "behaviour"]


def stale_groups(bench: Any, seed: int = 1, *, scale: float = 0.5) -> list[RolloutGroup]:
    """Groups whose log-probabilities are another policy's."""
    groups, generator = bench.groups(REWARDS), np.random.default_rng(seed)
    for response in (response for group in groups for response in group.responses):
        response.logprobs[:] += generator.normal(0, scale, response.num_tokens)
    return groups


def naive_gradients(
    bench: Any, groups: Sequence[RolloutGroup], loss_of: Callable[[Tensor, Tensor, float, Tensor], Tensor]
) -> dict[str, Tensor]:
    """Of `loss_of`(current, behaviour, advantage, all log-probabilities), summed with equal weights of tokens."""
    model = AutoModelForCausalLM.from_pretrained(bench.model_path).eval()
    num_responses = sum(len(group.responses) for group in groups)
    total = torch.zeros(())
    for group in groups:
        for response, advantage in zip(group.responses, group_advantages(group.rewards, "group_std"), strict=True):
            ids = torch.tensor(np.concatenate([group.prompt_token_ids, response.token_ids]).astype(np.int64))[None]
            logits_RV = model(input_ids=ids).logits[0, len(group.prompt_token_ids) - 1 : -1]
            logprobs_RV = logits_RV.log_softmax(-1)
            current_R = logprobs_RV[torch.arange(response.num_tokens), ids[0, len(group.prompt_token_ids) :]]
            behaviour_R = torch.tensor(response.logprobs)
            total = total + loss_of(current_R, behaviour_R, float(advantage), logprobs_RV).sum() / num_responses / 16
    total.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def require_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=3e-6)


NAIVE: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "ppo_behaviour": lambda current, behaviour, advantage: (
        -torch.minimum(
            (current - behaviour).exp() * advantage, (current - behaviour).exp().clamp(0.8, 1.28) * advantage
        )
    ),
    "reinforce": lambda current, _, advantage: -advantage * current,
    "tis": lambda current, behaviour, advantage: (
        -(current - behaviour).detach().exp().clamp(max=1) * advantage * current
    ),
    "cispo": lambda current, behaviour, advantage: (
        -(current - behaviour).detach().exp().clamp(max=1.28) * advantage * current
    ),
    "topr": lambda current, behaviour, advantage: (
        -((current - behaviour).detach().exp().clamp(max=1) if advantage < 0 else 1.0) * advantage * current
    ),
    "gspo": lambda current, behaviour, advantage: (
        -torch.minimum(
            (current - behaviour).mean().exp() * advantage,
            (current - behaviour).mean().exp().clamp(1 - 0.1, 1 + 0.2) * advantage,
        )
        * torch.ones_like(current)  # each token has the same share of the response
    ),
}


@pytest.mark.parametrize("name", NAIVE)
async def test_the_gradient_of_a_loss_is_that_of_the_objective_written_down_naively_in_every_split(bench, name):
    groups = stale_groups(bench)
    expected = naive_gradients(bench, groups, lambda *inputs: NAIVE[name](*inputs[:3]))
    section = {"loss": name, "max_grad_norm": 1e9}
    section |= {"clip_ratio_low": 0.1, "clip_ratio_high": 0.2} if name == "gspo" else {}
    for split in ((), (2,), (1, 2, 5)):
        require_close(await gradients(bench.trainer(**section), bench, groups, split), expected)


@pytest.mark.parametrize("name", LOSSES)
async def test_with_one_update_per_step_engines_log_probabilities_enter_where_the_loss_is_anchored_there(bench, name):
    """The trap of asynchronous training: with the trainer's own in their place, each of these is REINFORCE."""
    trained = []
    for scale in (0.0, 0.5):
        trainer = bench.trainer(loss=name)
        await step(trainer, bench, stale_groups(bench, scale=scale))
        trained.append(await weights(trainer))
    differ = any(not torch.equal(trained[0][key], trained[1][key]) for key in trained[0])
    assert differ is (name in ANCHORED_AT_BEHAVIOUR)


@pytest.mark.parametrize("advantage", ["batch_std", "reinforce_pp", "reinforce_pp_baseline"])
async def test_an_advantage_of_the_batch_is_the_same_in_every_split(bench, advantage):
    groups = bench.groups(REWARDS)
    whole, split = (bench.trainer(advantage=advantage) for _ in range(2))
    metrics = await step(whole, bench, groups)
    assert metrics == await step(split, bench, groups, split=(1, 4))
    assert_bit_equal(await weights(whole), await weights(split))
    assert metrics.grad_norm > 0.01
    other = bench.trainer()
    assert (await step(other, bench, groups)).grad_norm != pytest.approx(metrics.grad_norm, rel=1e-3)


@pytest.mark.parametrize("section", [{}, {"logits_chunk_tokens": 3}], ids=str)
async def test_the_entropy_bonus_has_the_gradient_of_the_mean_entropy(bench, section):
    groups = bench.groups(REWARDS)

    def loss_of(current: Tensor, _: Tensor, advantage: float, logprobs_RV: Tensor) -> Tensor:
        return -advantage * current + 0.5 * (logprobs_RV.exp() * logprobs_RV).sum(-1)

    trainer = bench.trainer(entropy_coefficient=0.5, max_grad_norm=1e9, **section)
    require_close(await gradients(trainer, bench, groups, (2,)), naive_gradients(bench, groups, loss_of))


@pytest.mark.parametrize(
    ("section", "penalty"),
    [
        ({"kl_estimator": "k1"}, lambda current, reference: current - reference),
        ({"kl_estimator": "k2"}, lambda current, reference: (current - reference) ** 2 / 2),
        ({"kl_estimator": "k3"}, lambda current, reference: (reference - current).exp() - 1 + current - reference),
        (
            {"kl_in": "reward"},
            lambda current, reference: (current - reference).detach().flip(0).cumsum(0).flip(0) * current,
        ),
    ],
    ids=["k1", "k2", "k3", "in the reward"],
)
async def test_the_kl_penalty_has_the_gradient_of_its_form(bench, section, penalty):
    groups, coefficient = bench.groups(REWARDS), 0.3
    trainer = bench.trainer(kl_coefficient=coefficient, max_grad_norm=1e9, **section)
    with torch.no_grad():  # away from the reference: a gradient of the penalty needs a distance
        for parameter in trainer._policy._reference.parameters():
            parameter.mul_(0.8)
    reference = iter(
        [
            bench.logprobs(trainer._policy._reference, group.prompt_token_ids, response.token_ids, 1.0).detach()
            for group in groups
            for response in group.responses
        ]
    )

    def loss_of(current: Tensor, _: Tensor, advantage: float, __: Tensor) -> Tensor:
        return -advantage * current + coefficient * penalty(current, next(reference))

    expected = naive_gradients(bench, groups, loss_of)
    require_close(await gradients(trainer, bench, groups, (2,)), expected)


def of_versions(group: RolloutGroup, versions: Sequence[int]) -> RolloutGroup:
    """With tokens of these versions in turn, those that are left over of the last."""

    def spans(num_tokens: int) -> tuple[VersionSpan, ...]:
        first = [VersionSpan(policy_version=version, num_tokens=1) for version in versions[:-1]][: num_tokens - 1]
        return (*first, VersionSpan(policy_version=versions[-1], num_tokens=num_tokens - len(first)))

    responses = tuple(dataclasses.replace(each, spans=spans(each.num_tokens)) for each in group.responses)
    return dataclasses.replace(group, responses=responses)


async def metrics_of(
    bench: Any, groups: Sequence[RolloutGroup], *, oldest: int, keeps_cache: bool = False, **section: object
):
    """Of step 2, whose policy is still the first one."""
    trainer = bench.trainer(loss="ppo_behaviour", **section)
    trainer._policy_version = 2
    shape = dataclasses.replace(
        bench.shape(groups, step=2, version=2), oldest_policy_version=oldest, keeps_cache=keeps_cache
    )
    await trainer.begin_step(shape)
    await trainer.accumulate(groups)
    return await trainer.finish_step()


def current_entropy_of(bench, groups):
    """The mean entropy of the tokens of version 2, which follow those of older ones."""
    model = AutoModelForCausalLM.from_pretrained(bench.model_path).eval()
    entropies = []
    for group in groups:
        for response in group.responses:
            num_current = response.spans[-1].num_tokens
            with torch.no_grad():
                logits_TV = model(torch.tensor([[*group.prompt_token_ids, *response.token_ids[:-1]]])).logits[0]
            entropies.append(torch.distributions.Categorical(logits=logits_TV[-num_current:]).entropy())
    return torch.cat(entropies).mean().item()


@pytest.mark.parametrize("section", [{}, {"num_minibatches": 2}], ids=str)
async def test_stale_tokens_are_left_out_of_what_tests_engines_and_count_in_all_else(bench, section):
    fresh = [of_versions(group, (2,)) for group in bench.groups(REWARDS)]
    mixed = [of_versions(group, (0, 1, 2)) for group in bench.groups(REWARDS)]
    for response in (response for group in mixed for response in group.responses):
        response.logprobs[: min(2, response.num_tokens - 1)] -= 0.7  # of older policies, these are right
    plain = await metrics_of(bench, fresh, oldest=2, **section)
    metrics = await metrics_of(bench, mixed, oldest=0, **section)
    assert metrics.logprob_mismatch_max == pytest.approx(plain.logprob_mismatch_max, abs=1e-5)
    assert metrics.logprob_mismatch_mean < 1e-5
    assert metrics.entropy == pytest.approx(plain.entropy)
    assert metrics.num_tokens == plain.num_tokens
    assert plain.effective_sample_share == pytest.approx(1)
    ratios, current = [], []
    for group in mixed:
        for response in group.responses:
            num_stale = min(2, response.num_tokens - 1)
            ratios += [np.exp(0.7)] * num_stale + [1.0] * (response.num_tokens - num_stale)
            current += (-response.logprobs[num_stale:]).tolist()
    weights = np.array(ratios)
    expected = weights.sum() ** 2 / (len(weights) * (weights**2).sum())
    assert 0.5 < expected < 0.99
    assert metrics.effective_sample_share == pytest.approx(expected, rel=1e-4)
    assert metrics.mismatch_kl == pytest.approx((weights - 1 - np.log(weights)).mean(), rel=1e-3)
    assert metrics.surprisal == pytest.approx(np.mean(current), rel=1e-5)
    assert plain.current_entropy == pytest.approx(plain.entropy)
    assert metrics.current_entropy == pytest.approx(current_entropy_of(bench, mixed), rel=1e-5)
    assert metrics.current_entropy != pytest.approx(metrics.entropy, rel=1e-3)


@pytest.mark.parametrize("loss", ["tis", "topr", "cispo"])
async def test_fresh_tokens_are_not_counted_as_clipped_for_a_rounding(bench, loss):
    groups, generator = bench.groups(REWARDS), np.random.default_rng(0)
    for response in (response for group in groups for response in group.responses):
        response.logprobs[:] += generator.normal(0, 1e-6, response.num_tokens)
    assert (await step(bench.trainer(loss=loss), bench, groups)).clip_fraction == 0.0


async def test_a_wrong_weight_of_an_engine_does_not_hide_behind_stale_tokens(bench):
    groups = [of_versions(group, (1, 2)) for group in bench.groups(REWARDS)]
    for response in (response for group in groups for response in group.responses):
        response.logprobs[-1] -= 0.4
    assert (await metrics_of(bench, groups, oldest=1)).logprob_mismatch_max == pytest.approx(0.4, abs=1e-4)


async def test_a_batch_of_stale_tokens_alone_tests_no_engine(bench):
    metrics = await metrics_of(bench, [of_versions(group, (1,)) for group in bench.groups(REWARDS)], oldest=1)
    tested = (metrics.surprisal, metrics.surprisal_z, metrics.logprob_mismatch_max, metrics.logprob_mismatch_mean)
    assert tested == (None,) * 4
    assert metrics.entropy > 0


@pytest.mark.parametrize(("keeps_cache", "tests_engines"), [(True, False), (False, True)])
async def test_tokens_over_the_cache_of_an_older_version_test_no_engine(bench, keeps_cache, tests_engines):
    groups = [of_versions(group, (2,)) for group in bench.groups(REWARDS)]  # which rounds before step 2 began
    metrics = await metrics_of(bench, groups, oldest=2, keeps_cache=keeps_cache)
    tested = (metrics.surprisal, metrics.surprisal_z, metrics.logprob_mismatch_max, metrics.logprob_mismatch_mean)
    assert [value is not None for value in tested] == 4 * [tests_engines]


async def test_tokens_older_than_the_step_announced_are_refused(bench):
    with pytest.raises(ForeignVersion, match="versions 1 to 2"):
        await metrics_of(bench, [of_versions(group, (0, 2)) for group in bench.groups(REWARDS)], oldest=1)


async def test_minibatches_of_a_loss_that_reads_the_engine_are_clipped_against_it_from_the_first_one_on(bench):
    calm = await step(bench.trainer(num_minibatches=2, learning_rate=1e-7), bench, stale_groups(bench))
    assert calm.clip_fraction == 0.0
    section = {"loss": "ppo_behaviour", "num_minibatches": 2, "learning_rate": 1e-7}
    stale = await step(bench.trainer(**section), bench, stale_groups(bench))
    assert 0.1 < stale.clip_fraction < 0.9
