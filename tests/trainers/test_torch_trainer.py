from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rollpacker.core.errors import ForeignVersion, ImpossibleEvent, PolicyDiverged
from rollpacker.core.ids import VersionSpan
from rollpacker.protocols.rollout import FinishReason
from rollpacker.protocols.tensors import checksum_of_tensors
from rollpacker.trainers.advantages import group_advantages
from rollpacker.trainers.checkpoints import read_state
from rollpacker.trainers.torch_policy import TorchState
from tests.trainers.giving_up import GivenUp, give_up
from tests.trainers.streaming import (
    NUM_BATCHES,
    compare,
    random_rewards,
    relabelled,
    require_rounding_only,
    state_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rollpacker.protocols.rollout import RolloutGroup
    from rollpacker.protocols.trainer import UpdateMetrics
    from rollpacker.trainers.grpo import GrpoTrainer

REWARDS = [(1, 0, 0, 1), (0, 0, 0, 1), (1, 1, 1, 1), (0.5, 0, 1, 0), (0, 0, 0, 0), (1, 1, 0, 1)]
"""Two of the groups have no signal."""


async def step(
    trainer: GrpoTrainer, bench: Any, groups: Sequence[RolloutGroup], *, number: int = 0, split: Sequence[int] = ()
) -> UpdateMetrics:
    """One whole step on groups that are relabelled to the step's version; `split` cuts them into calls."""
    groups = [relabelled(group, number) for group in groups]
    await trainer.begin_step(bench.shape(groups, step=number, version=number))
    bounds = [0, *split, len(groups)]
    for start, end in itertools.pairwise(bounds):
        await trainer.accumulate(groups[start:end])
    return await trainer.finish_step()


async def gradients(trainer: GrpoTrainer, bench: Any, groups: Sequence[RolloutGroup], split: Sequence[int] = ()):
    """The gradient of one update: AdamW's first moment after its first step is 1 - beta1 of it."""
    await step(trainer, bench, groups, split=split)
    share = 1 - trainer._section.adam_betas[0]
    return {
        name: trainer._policy._optimizer.state[p]["exp_avg"] / share for name, p in trainer._policy._parameters.items()
    }


async def weights(trainer: GrpoTrainer) -> dict[str, Tensor]:
    payload: dict[str, Tensor] = (await trainer.export_weights()).payload
    return payload


def assert_bit_equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    different = [name for name in left if not torch.equal(left[name], right[name])]
    assert not different


def straightforward_loss(
    model: torch.nn.Module,
    bench: Any,
    groups: Sequence[RolloutGroup],
    normalisation: str,
    temperature: float,
    *,
    kl_to: torch.nn.Module | None = None,
    kl_coefficient: float = 0.0,
    mask_truncated: bool = False,
) -> Tensor:
    """The on-policy objective, response by response, without padding, packing or ratio."""
    num_responses = sum(len(group.responses) for group in groups)
    masked = {FinishReason.LENGTH} if mask_truncated else set()
    num_tokens = sum(
        response.num_tokens for group in groups for response in group.responses if response.finish_reason not in masked
    )
    total = torch.zeros(())
    for group in groups:
        advantages = group_advantages(group.rewards, "group_std")
        for response, advantage in zip(group.responses, advantages, strict=True):
            if response.finish_reason in masked:
                continue
            current = bench.logprobs(model, group.prompt_token_ids, response.token_ids, temperature)
            loss = -float(advantage) * current
            if kl_to is not None:
                with torch.no_grad():
                    reference = bench.logprobs(kl_to, group.prompt_token_ids, response.token_ids, temperature)
                ratio = (reference - current).exp()
                loss = loss + kl_coefficient * (ratio - 1 - ratio.log())
            weight = {
                "sequence": 1 / num_responses / response.num_tokens,
                "token_bound": 1 / num_responses / 16,
                "token_mean": 1 / num_tokens,
            }[normalisation]
            total = total + weight * loss.sum()
    return total


@pytest.mark.parametrize("normalisation", ["sequence", "token_bound", "token_mean"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_the_gradient_is_that_of_the_objective_written_down_naively(bench, normalisation, temperature):
    groups = bench.groups(REWARDS, temperature=temperature)
    model = AutoModelForCausalLM.from_pretrained(bench.model_path).eval()
    straightforward_loss(model, bench, groups, normalisation, temperature).backward()
    trainer = bench.trainer(loss_normalisation=normalisation, temperature=temperature, max_grad_norm=1e9)
    found = await gradients(trainer, bench, groups)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("normalisation", ["sequence", "token_bound", "token_mean"])
async def test_a_response_that_was_cut_is_left_out_of_the_loss_and_counts_in_its_groups_advantages(
    bench, normalisation
):
    groups = [
        dataclasses.replace(
            group,
            responses=(
                dataclasses.replace(group.responses[0], finish_reason=FinishReason.LENGTH),
                *group.responses[1:],
            ),
        )
        for group in bench.groups(REWARDS)
    ]
    model = AutoModelForCausalLM.from_pretrained(bench.model_path).eval()
    straightforward_loss(model, bench, groups, normalisation, 1.0, mask_truncated=True).backward()
    section = {"loss_normalisation": normalisation, "mask_truncated": True, "max_grad_norm": 1e9}
    found = await gradients(bench.trainer(**section), bench, groups)
    unmasked = await gradients(bench.trainer(**section | {"mask_truncated": False}), bench, groups)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=2e-6)
    assert any((found[name] - unmasked[name]).abs().max() > 1e-4 for name in found)


@pytest.mark.parametrize("section", [{}, {"num_minibatches": 2}])
async def test_where_no_token_has_a_gradient_nothing_is_known_of_clipping_and_of_the_reference(bench, section):
    groups = [
        dataclasses.replace(
            group,
            responses=tuple(dataclasses.replace(each, finish_reason=FinishReason.LENGTH) for each in group.responses),
        )
        for group in bench.groups(REWARDS)
    ]
    metrics = await step(bench.trainer(mask_truncated=True, kl_coefficient=0.1, **section), bench, groups)
    assert (metrics.clip_fraction, metrics.kl_to_reference) == (None, None)
    assert (metrics.loss, metrics.grad_norm) == (0, 0)
    assert metrics.num_tokens == sum(response.num_tokens for group in groups for response in group.responses)


async def test_no_memory_is_held_for_gradients_between_steps(bench):
    trainer = bench.trainer()
    parameters = trainer._policy._parameters.values()
    assert all(parameter.grad is None for parameter in parameters)
    await step(trainer, bench, bench.groups(REWARDS))
    assert all(parameter.grad is None for parameter in parameters)


@pytest.mark.parametrize("normalisation", ["sequence", "token_bound"])
async def test_a_streamed_step_has_the_gradient_of_the_whole_batch_in_every_split(bench, normalisation):
    groups = bench.groups(REWARDS)
    whole = await gradients(bench.trainer(loss_normalisation=normalisation), bench, groups)
    random = np.random.default_rng(0)
    for _ in range(6):
        split = sorted(random.integers(0, len(groups) + 1, random.integers(1, 6)).tolist())
        trainer = bench.trainer(
            loss_normalisation=normalisation, max_tokens_per_microbatch=int(random.integers(10, 400))
        )
        order = [groups[index] for index in random.permutation(len(groups))]
        found = await gradients(trainer, bench, order, split)
        for name, gradient in whole.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


async def test_fifty_random_steps_that_stream_are_those_that_do_not(bench):
    trainer = bench.trainer()
    batches = [bench.groups(random_rewards(seed), seed=seed) for seed in range(NUM_BATCHES)]
    require_rounding_only(await compare(trainer, state_of(trainer._policy), batches, can_lend=False), NUM_BATCHES)


@pytest.mark.parametrize("section", [{"loss_normalisation": "token_mean"}, {"num_minibatches": 3}])
async def test_where_groups_are_held_the_split_changes_no_decision(bench, section):
    groups = bench.groups(REWARDS)
    whole, split = bench.trainer(**section), bench.trainer(**section)
    first = await step(whole, bench, groups)
    second = await step(split, bench, groups, split=(1, 2, 5))
    assert second.loss == pytest.approx(first.loss, abs=1e-6)
    assert second.grad_norm == pytest.approx(first.grad_norm, rel=1e-4)


async def test_held_groups_of_token_mean_give_bit_equal_weights_in_every_split(bench):
    groups = bench.groups(REWARDS)
    whole, split = (bench.trainer(loss_normalisation="token_mean") for _ in range(2))
    await step(whole, bench, groups)
    await step(split, bench, groups, split=(1, 2, 5))
    assert_bit_equal(await weights(whole), await weights(split))


@pytest.mark.parametrize("section", [{}, {"num_minibatches": 2}, {"kl_coefficient": 0.1}])
async def test_the_same_groups_in_the_same_order_give_bit_equal_weights(bench, section):
    groups = bench.groups(REWARDS)
    trainers = [bench.trainer(**section) for _ in range(2)]
    for number in range(2):
        for trainer in trainers:
            await step(trainer, bench, groups, number=number, split=(2, 3))
    assert_bit_equal(await weights(trainers[0]), await weights(trainers[1]))
    assert (await trainers[0].export_weights()).checksum == (await trainers[1].export_weights()).checksum


async def test_metrics_of_an_on_policy_step(bench):
    groups = bench.groups(REWARDS)
    trainer = bench.trainer(learning_rate=0.5, warmup_steps=2, max_grad_norm=1e9)
    metrics = await step(trainer, bench, groups)
    responses = [response for group in groups for response in group.responses]
    assert metrics.policy_version == 1
    assert metrics.num_tokens == sum(response.num_tokens for response in responses)
    assert metrics.learning_rate == 0.25
    assert metrics.clip_fraction == 0.0
    assert metrics.kl_to_reference is None
    assert metrics.logprob_mismatch_max < 1e-5
    assert metrics.logprob_mismatch_mean < 1e-6
    model = AutoModelForCausalLM.from_pretrained(bench.model_path).eval()
    entropies = []
    for group in groups:
        for response in group.responses:
            ids = torch.tensor(np.concatenate([group.prompt_token_ids, response.token_ids]).astype(np.int64))
            logits = model(input_ids=ids[None]).logits[0, len(group.prompt_token_ids) - 1 : -1]
            entropies.append(torch.distributions.Categorical(logits=logits).entropy())
    assert metrics.entropy == pytest.approx(torch.cat(entropies).mean().item(), rel=1e-5)
    model.zero_grad()
    straightforward_loss(model, bench, groups, "token_bound", 1.0).backward()
    norm = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm().item()
    assert metrics.grad_norm == pytest.approx(norm, rel=1e-4)
    # At ratio 1 a token's loss is minus its advantage, whatever the policy.
    by_hand = -sum(
        float(advantage) * response.num_tokens / 16 / len(responses)
        for group in groups
        for advantage, response in zip(group_advantages(group.rewards, "group_std"), group.responses, strict=True)
    )
    assert metrics.loss == pytest.approx(by_hand, abs=1e-6)


async def test_wrong_log_probabilities_of_an_engine_are_seen_also_in_a_group_without_signal(bench):
    groups = bench.groups(REWARDS)
    silent = groups[2]
    wrong = silent.responses[1].logprobs.copy()
    wrong[0] += 0.25
    responses = list(silent.responses)
    responses[1] = dataclasses.replace(responses[1], logprobs=wrong)
    groups[2] = dataclasses.replace(silent, responses=tuple(responses))
    for section in ({}, {"num_minibatches": 2}, {"loss_normalisation": "token_mean"}):
        metrics = await step(bench.trainer(**section), bench, groups)
        assert metrics.logprob_mismatch_max == pytest.approx(0.25, abs=1e-4)
        assert metrics.logprob_mismatch_mean == pytest.approx(0.25 / metrics.num_tokens, rel=1e-2)


async def test_log_probabilities_at_another_temperature_are_a_mismatch(bench):
    metrics = await step(bench.trainer(temperature=0.5), bench, bench.groups(REWARDS, temperature=1.0))
    assert metrics.logprob_mismatch_mean > 0.1


async def test_a_nan_log_probability_of_an_engine_is_not_swallowed_by_the_maximum(bench):
    groups = bench.groups(REWARDS)
    groups[0].responses[0].logprobs[0] = math.nan
    assert math.isnan((await step(bench.trainer(), bench, groups)).logprob_mismatch_max)


async def test_with_one_update_per_step_the_engines_log_probabilities_do_not_enter_the_gradient(bench):
    groups = bench.groups(REWARDS)
    right, wrong = bench.trainer(), bench.trainer()
    await step(right, bench, groups)
    for group in groups:
        for response in group.responses:
            response.logprobs[:] = -1.0
    await step(wrong, bench, groups)
    assert_bit_equal(await weights(right), await weights(wrong))


@pytest.mark.parametrize("correction", ["token_truncate", "token_mask", "sequence_mask"])
async def test_a_corrected_gradient_is_the_weighted_one_in_every_split(bench, correction):
    groups, generator = bench.groups(REWARDS), np.random.default_rng(1)
    for response in (response for group in groups for response in group.responses):
        response.logprobs[:] += generator.normal(0, 0.6, response.num_tokens)
    model = AutoModelForCausalLM.from_pretrained(bench.model_path).eval()
    loss, weights_of_all, num_responses = torch.zeros(()), [], sum(len(group.responses) for group in groups)
    for group in groups:
        for response, advantage in zip(group.responses, group_advantages(group.rewards, "group_std"), strict=True):
            current = bench.logprobs(model, group.prompt_token_ids, response.token_ids, 1.0)
            log_ratio = current.detach().double().numpy() - response.logprobs
            ratio = np.exp(np.full_like(log_ratio, log_ratio.mean()) if correction == "sequence_mask" else log_ratio)
            of_response = np.minimum(ratio, 1.5)
            if correction != "token_truncate":
                of_response = np.where((ratio < 0.8) | (ratio > 1.5), 0, ratio)
            weights_of_all.append(of_response)
            loss = loss - (torch.tensor(of_response) * float(advantage) * current).sum() / num_responses / 16
    loss.backward()
    section = {"mismatch": correction, "mismatch_high": 1.5, "mismatch_low": 0.8, "max_grad_norm": 1e9}
    for split in ((), (2,), (1, 2, 5)):
        found = await gradients(bench.trainer(**section), bench, groups, split)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=2e-6)
    expected = np.concatenate(weights_of_all)
    for further in ({}, {"num_minibatches": 2, "learning_rate": 1e-9}):
        metrics = await step(bench.trainer(**section, **further), bench, groups, split=(2,))
        assert metrics.mismatch_weight_mean == pytest.approx(expected.mean(), rel=1e-5)
        assert metrics.mismatch_weight_max == pytest.approx(expected.max(), rel=1e-5)
        is_bounded = expected == (1.5 if correction == "token_truncate" else 0)
        assert metrics.mismatch_bounded_share == pytest.approx(is_bounded.mean())
        assert 0 < metrics.mismatch_bounded_share < 1
        assert metrics.mismatch_kl > 0.05


async def test_without_a_correction_its_columns_are_empty(bench):
    metrics = await step(bench.trainer(mismatch="none"), bench, bench.groups(REWARDS))
    assert metrics.mismatch_weight_mean is metrics.mismatch_weight_max is metrics.mismatch_bounded_share is None
    assert metrics.mismatch_kl == pytest.approx(0, abs=1e-9)


async def test_with_two_minibatches_the_ratio_leaves_one_and_clipping_engages(bench):
    rewards = [(1, 0, 0, 1)] * 4
    calm = await step(bench.trainer(num_minibatches=2, learning_rate=1e-7), bench, bench.groups(rewards))
    assert calm.clip_fraction == 0.0
    bold = await step(bench.trainer(num_minibatches=2, learning_rate=0.05), bench, bench.groups(rewards))
    assert 0.05 < bold.clip_fraction <= 0.5


@pytest.mark.parametrize("kl_coefficient", [0.0, 0.5])
async def test_each_minibatch_is_one_ppo_update_against_the_policy_before_the_step(bench, kl_coefficient):
    groups = bench.groups(REWARDS)
    trainer = bench.trainer(
        num_minibatches=2,
        learning_rate=0.01,
        kl_coefficient=kl_coefficient,
        max_grad_norm=0.5,
        loss_normalisation="token_bound",
    )
    metrics = await step(trainer, bench, groups, split=(1, 4))
    model = AutoModelForCausalLM.from_pretrained(bench.model_path).eval()
    before = AutoModelForCausalLM.from_pretrained(bench.model_path).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    losses, norms, num_clipped, num_trained = [], [], 0, 0
    for half in (groups[:3], groups[3:]):
        loss = torch.zeros(())
        for group in half:
            for response, advantage in zip(group.responses, group_advantages(group.rewards, "group_std"), strict=True):
                ids = group.prompt_token_ids, response.token_ids
                current = bench.logprobs(model, *ids, 1.0)
                proximal = bench.logprobs(before, *ids, 1.0).detach()
                ratio = (current - proximal).exp()
                gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
                num_clipped += int((gain != ratio * advantage).sum())
                num_trained += response.num_tokens if advantage or kl_coefficient else 0
                k3 = (-(current - proximal)).exp() - 1 + (current - proximal)
                loss = loss + (-gain + kl_coefficient * k3).sum() / (12 * 16)
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
    assert num_clipped > 0
    assert metrics.clip_fraction == pytest.approx(num_clipped / num_trained)
    assert abs(losses[0]) > 1e-3
    assert metrics.loss == pytest.approx(sum(losses) / 2, abs=1e-5)
    assert metrics.grad_norm == pytest.approx(sum(norms) / 2, rel=1e-3)
    for name, parameter in model.named_parameters():
        moment = trainer._policy._optimizer.state[trainer._policy._parameters[name]]["exp_avg"]
        torch.testing.assert_close(moment, optimizer.state[parameter]["exp_avg"], rtol=5e-3, atol=1e-5)


async def test_a_batch_of_fewer_groups_than_minibatches_makes_one_update_per_group(bench):
    trainer = bench.trainer(num_minibatches=4)
    await step(trainer, bench, bench.groups([(1, 0), (0, 1), (1, 0)]))
    assert {int(state["step"]) for state in trainer._policy._optimizer.state.values()} == {3}


async def test_the_kl_penalty_pulls_back_to_the_initial_policy(bench):
    groups = bench.groups(REWARDS)
    away = bench.trainer(kl_coefficient=1e-9, learning_rate=0.01)
    first = await step(away, bench, groups)
    assert first.kl_to_reference == pytest.approx(0.0, abs=1e-9)
    for number in range(1, 5):
        last_away = await step(away, bench, groups, number=number)
    held = bench.trainer(kl_coefficient=10.0, learning_rate=0.01)
    for number in range(5):
        last_held = await step(held, bench, groups, number=number)
    assert 0 < last_held.kl_to_reference < 0.5 * last_away.kl_to_reference


async def test_a_group_without_policy_gradient_still_has_the_gradient_of_its_kl_penalty(bench):
    groups = bench.groups([(1, 1), (0, 0)])
    trainer = bench.trainer(kl_coefficient=0.5, learning_rate=0.01)
    with torch.no_grad():  # Away from the reference: a gradient of the penalty needs a distance.
        for parameter in trainer._policy._parameters.values():
            parameter.mul_(1.1)
    policy = AutoModelForCausalLM.from_pretrained(bench.model_path).eval()
    policy.load_state_dict(trainer._policy._model.state_dict())
    reference = AutoModelForCausalLM.from_pretrained(bench.model_path).eval()
    straightforward_loss(policy, bench, groups, "token_bound", 1.0, kl_to=reference, kl_coefficient=0.5).backward()
    norm = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()]).norm().item()
    assert norm > 0.01
    assert (await step(trainer, bench, groups)).grad_norm == pytest.approx(norm, rel=1e-3)


async def test_a_trainer_packs_by_what_a_pass_of_its_policy_costs(bench):
    groups = bench.groups([(1, 0, 0, 1)])
    trainer = bench.trainer(max_tokens_per_microbatch=1000)
    samples = trainer._objective.samples_of(groups[0], bench.shape(groups))
    num_passes = []
    for pass_cost_tokens in (0, 1000):
        trainer._policy.pass_cost_tokens = pass_cost_tokens
        num_passes.append(len(trainer._pack(samples)))
    assert num_passes == [len({sample.num_inputs for sample in samples}), 1]


async def test_a_batch_without_any_signal_is_still_an_update_of_the_optimizer(bench):
    groups = bench.groups(REWARDS)
    trainer = bench.trainer()
    await step(trainer, bench, groups)
    before = await weights(trainer)
    metrics = await step(trainer, bench, bench.groups([(1, 1), (0, 0)]), number=1)
    assert metrics.grad_norm == 0.0
    assert metrics.num_tokens > 0
    assert {int(state["step"]) for state in trainer._policy._optimizer.state.values()} == {2}
    # Momentum carries on, as it would with a gradient of zero.
    after = await weights(trainer)
    assert any(not torch.equal(before[name], after[name]) for name in before)


async def test_a_first_batch_without_any_signal_counts_as_an_update_too(bench):
    trainer = bench.trainer(weight_decay=0.1)
    before = await weights(trainer)
    await step(trainer, bench, bench.groups([(1, 1), (0, 0)]))
    after = await weights(trainer)
    assert all(not torch.equal(before[name], after[name]) for name in before if before[name].any())


async def test_foreign_tokens_are_refused_and_change_nothing(bench):
    groups = bench.groups(REWARDS)
    trainer, undisturbed = bench.trainer(), bench.trainer()
    await trainer.begin_step(bench.shape(groups))
    await trainer.accumulate(groups[:2])
    with pytest.raises(ForeignVersion, match="policy version 1"):
        await trainer.accumulate([groups[2], relabelled(groups[3], 1)])
    await trainer.accumulate(groups[2:])
    metrics = await trainer.finish_step()
    assert metrics == await step(undisturbed, bench, groups, split=(2,))
    assert_bit_equal(await weights(trainer), await weights(undisturbed))


async def test_a_batch_of_another_version_than_the_held_one_cannot_begin(bench):
    groups = bench.groups(REWARDS)
    trainer = bench.trainer()
    with pytest.raises(ForeignVersion, match="announced tokens of policy version 1"):
        await trainer.begin_step(bench.shape(groups, version=1))
    await step(trainer, bench, groups)


async def test_a_nap_in_the_midst_of_a_step_changes_no_bit(bench):
    groups = bench.groups(REWARDS)
    trainer, awake = bench.trainer(kl_coefficient=0.1), bench.trainer(kl_coefficient=0.1)
    await step(trainer, bench, groups)
    second = [relabelled(group, 1) for group in groups]
    await trainer.begin_step(bench.shape(groups, step=1, version=1))
    await trainer.accumulate(second[:2])
    await trainer.sleep()
    await trainer.wake()
    await trainer.accumulate(second[2:])
    await trainer.finish_step()
    await step(awake, bench, groups)
    await step(awake, bench, groups, number=1, split=(2,))
    assert_bit_equal(await weights(trainer), await weights(awake))


async def test_recomputed_activations_change_no_bit(bench):
    groups = bench.groups(REWARDS)
    kept, recomputed = bench.trainer(), bench.trainer(recompute_activations=True)
    assert await step(kept, bench, groups) == await step(recomputed, bench, groups)
    assert_bit_equal(await weights(kept), await weights(recomputed))


async def test_weights_are_used_on_the_trainers_thread_and_what_is_left_over_is_passed_over(bench):
    trainer = bench.trainer()
    taken, thread = await trainer.with_weights(lambda tensors: (next(tensors)[0], threading.current_thread().name))
    assert taken == min(await weights(trainer))
    assert thread == "trainer_0"


async def test_a_step_finishes_only_with_its_whole_batch(bench):
    groups = bench.groups(REWARDS)
    trainer = bench.trainer()
    await trainer.begin_step(bench.shape(groups))
    await trainer.accumulate(groups[:5])
    with pytest.raises(ImpossibleEvent, match="5 of 6 groups"):
        await trainer.finish_step()
    await trainer.accumulate(groups[5:])
    assert (await trainer.finish_step()).policy_version == 1


async def test_calls_out_of_turn_are_refused(bench):
    groups = bench.groups(REWARDS)
    trainer = bench.trainer()
    with pytest.raises(ImpossibleEvent, match="No step is open"):
        await trainer.accumulate(groups)
    with pytest.raises(ImpossibleEvent, match="No step is open"):
        await trainer.finish_step()
    await trainer.begin_step(bench.shape(groups))
    with pytest.raises(ImpossibleEvent, match="while step 0 was open"):
        await trainer.begin_step(bench.shape(groups, step=1))


async def test_a_checkpoint_of_an_open_step_holds_what_the_step_began_with(bench, tmp_path):
    groups = bench.groups(REWARDS)
    trainer = bench.trainer()
    await step(trainer, bench, groups)
    before, generator = await weights(trainer), torch.get_rng_state()
    groups = [relabelled(group, 1) for group in groups]
    await trainer.begin_step(bench.shape(groups, step=1, version=1))
    await trainer.accumulate(groups[:3])
    torch.rand(7)  # as a model with dropout draws
    await trainer.save(tmp_path)
    assert torch.equal(read_state(TorchState, tmp_path / "trainer.pt").generators[0], generator)
    resumed = bench.trainer()
    await resumed.load(tmp_path)
    assert_bit_equal(before, await weights(resumed))


async def test_a_gradient_that_is_not_finite_ends_the_step_before_it_reaches_the_weights(bench):
    groups = bench.groups(REWARDS)
    trainer = bench.trainer()
    await trainer.begin_step(bench.shape(groups))
    await trainer.accumulate(groups)
    next(iter(trainer._policy._parameters.values())).grad[0, 0] = math.inf
    before = await weights(trainer)
    with pytest.raises(PolicyDiverged, match="diverged in step 0: the norm of its gradient is inf"):
        await trainer.finish_step()
    assert_bit_equal(before, await weights(trainer))


@pytest.mark.parametrize("streams", [True, False])
async def test_weights_that_an_update_makes_infinite_or_nan_end_the_step_before_anybody_gets_them(bench, streams):
    groups = bench.groups(REWARDS)
    trainer = bench.trainer(learning_rate=1.0, loss_normalisation="sequence" if streams else "token_mean")
    await trainer.begin_step(bench.shape(groups))
    await trainer.accumulate(groups)
    moment = next(iter(trainer._policy._parameters.values()))
    trainer._policy._optimizer.param_groups[0]["weight_decay"] = 3e38  # finite, as the gradient is
    moment.data[0, 0] = 3e38
    with pytest.raises(PolicyDiverged, match="diverged in step 0: "):
        await trainer.finish_step()
    assert trainer.policy_version == 0


async def test_a_loss_that_is_not_a_number_ends_the_step(bench):
    groups = bench.groups(REWARDS)
    trainer = bench.trainer()
    with torch.no_grad():
        trainer._policy._model.model.norm.weight[0] = math.nan
    await trainer.begin_step(bench.shape(groups))
    await trainer.accumulate(groups)
    with pytest.raises(PolicyDiverged, match="nan"):
        await trainer.finish_step()
    assert trainer.policy_version == 0


async def test_gradient_clipping_bounds_the_update_and_reports_the_norm_before(bench):
    groups = bench.groups(REWARDS)
    free = bench.trainer(max_grad_norm=1e9)
    bound = bench.trainer(max_grad_norm=1e-3)
    free_metrics, bound_metrics = await step(free, bench, groups), await step(bound, bench, groups)
    assert bound_metrics.grad_norm == pytest.approx(free_metrics.grad_norm)
    moments = [state["exp_avg"].flatten() for state in bound._policy._optimizer.state.values()]
    assert torch.cat(moments).norm().item() == pytest.approx(0.1 * 1e-3, rel=1e-3)


async def test_the_learning_rate_follows_the_pipeline_step_not_the_number_of_updates(bench):
    groups = bench.groups(REWARDS)
    trainer = bench.trainer(learning_rate=1.0, lr_schedule="linear", num_minibatches=2, num_steps=4)
    before = await weights(trainer)
    await trainer.begin_step(bench.shape(groups, step=3))
    await trainer.accumulate(groups)
    assert (await trainer.finish_step()).learning_rate == pytest.approx(0.25)
    # AdamW moves a weight by at most about its rate, in each of the two updates.
    moved = max((tensor - before[name]).abs().max().item() for name, tensor in (await weights(trainer)).items())
    assert 0.25 < moved < 0.6


async def test_exported_weights_have_version_and_checksum_and_are_not_changed_by_later_updates(bench):
    groups = bench.groups(REWARDS)
    trainer = bench.trainer()
    first = await trainer.export_weights()
    copies = {name: tensor.clone() for name, tensor in first.payload.items()}
    assert first.policy_version == 0
    assert first.checksum == checksum_of_tensors(first.payload)
    assert first.num_bytes == sum(tensor.nbytes for tensor in first.payload.values())
    assert "model.embed_tokens.weight" in first.payload
    assert "lm_head.weight" not in first.payload  # tied: once
    await step(trainer, bench, groups)
    second = await trainer.export_weights()
    assert second.policy_version == 1
    assert second.checksum != first.checksum
    assert_bit_equal(first.payload, copies)


async def test_exported_weights_are_all_that_another_model_needs(bench):
    trainer = bench.trainer(learning_rate=0.05)
    await step(trainer, bench, bench.groups(REWARDS))
    other = AutoModelForCausalLM.from_pretrained(bench.model_path)
    other.load_state_dict(await weights(trainer), strict=False)
    ids = torch.arange(2, 12)[None]
    assert torch.equal(other.eval()(input_ids=ids).logits, trainer._policy._model(input_ids=ids).logits)


async def test_bfloat16_exports_bfloat16_while_updates_add_up_in_float32(bench):
    groups = bench.groups(REWARDS)
    trainer = bench.trainer(dtype="bfloat16", learning_rate=1e-5)
    name = "model.layers.0.mlp.up_proj.weight"
    master = trainer._policy._parameters[name].detach().clone()
    first = (await weights(trainer))[name]
    assert first.dtype == torch.bfloat16
    dtypes: set[torch.dtype] = set()
    trainer._policy._model.register_forward_hook(lambda *call: dtypes.add(call[-1].logits.dtype))
    metrics = await step(trainer, bench, groups)
    assert dtypes == {torch.bfloat16}
    assert metrics.logprob_mismatch_max < 0.3  # Autocast against float32 log-probabilities.
    moved = (trainer._policy._parameters[name].detach() - master).abs()
    assert 0 < moved.max().item() < 1e-4
    assert ((await weights(trainer))[name] == first).float().mean().item() > 0.9


async def test_the_event_loop_stays_free_while_the_trainer_works(bench):
    groups = bench.groups(REWARDS)
    trainer = bench.trainer()
    threads: set[str] = set()
    trainer._policy._model.register_forward_hook(lambda *_: threads.add(threading.current_thread().name))
    await trainer.begin_step(bench.shape(groups))
    answers = 0
    work = asyncio.ensure_future(trainer.accumulate(groups))
    while not work.done():
        await asyncio.sleep(0)
        answers += 1
    await work
    assert answers > 2
    assert threads == {"trainer_0"}
    await trainer.close()


async def test_calls_that_are_not_awaited_one_by_one_run_in_their_order(bench):
    groups = bench.groups(REWARDS)
    trainer, one_by_one = bench.trainer(), bench.trainer()
    shape = bench.shape(groups)
    *_, metrics = await asyncio.gather(
        trainer.begin_step(shape), *(trainer.accumulate([group]) for group in groups), trainer.finish_step()
    )
    assert metrics == await step(one_by_one, bench, groups, split=(1, 2, 3, 4, 5))


async def test_a_rewarded_token_becomes_likely(bench):
    """Prompt `w5`, one sampled token, reward 1 for `w7`: the smallest task there is."""
    trainer = bench.trainer(learning_rate=0.02)
    template = bench.groups([(0,) * 8] * 4)
    generator = torch.Generator().manual_seed(0)
    prompt = np.array([5], dtype=np.int32)
    likelihoods = []
    for number in range(25):
        model = AutoModelForCausalLM.from_pretrained(bench.model_path).eval()
        model.load_state_dict(await weights(trainer), strict=False)
        with torch.no_grad():
            logprobs = model(input_ids=torch.tensor([[5]])).logits[0, -1].log_softmax(-1)
        likelihoods.append(logprobs[7].exp().item())
        groups = []
        for group in template:
            tokens = torch.multinomial(logprobs.exp(), 8, replacement=True, generator=generator).numpy()
            responses = tuple(
                dataclasses.replace(
                    response,
                    token_ids=np.array([token], dtype=np.int32),
                    logprobs=np.array([logprobs[token]], dtype=np.float32),
                    spans=(VersionSpan(policy_version=0, num_tokens=1),),
                )
                for response, token in zip(group.responses, tokens, strict=True)
            )
            rewards = tuple(float(token == 7) for token in tokens)
            groups.append(dataclasses.replace(group, prompt_token_ids=prompt, responses=responses, rewards=rewards))
        metrics = await step(trainer, bench, groups, number=number)
        assert metrics.logprob_mismatch_max < 1e-4
    assert likelihoods[0] < 0.3
    assert likelihoods[-1] > 0.9


@pytest.mark.parametrize("section", [{}, {"loss_normalisation": "token_mean"}, {"num_minibatches": 2}])
async def test_a_step_that_is_given_up_ends_before_the_next_pass_and_leaves_a_checkpoint_of_the_time_before_it(
    bench, tmp_path, section
):
    trainer = bench.trainer(max_tokens_per_microbatch=16, **section)
    torch.rand(3)
    before, groups = tmp_path / "before", bench.groups(8 * [(1, 0, 0, 1)])
    before.mkdir()
    await trainer.save(before)
    after = tmp_path / "after"
    after.mkdir()
    outcome = await give_up(trainer, bench.shape(groups), groups, after, is_told=True)
    assert outcome == GivenUp(num_passes=2, is_dropped=True, is_unchanged=True)
    files = [path.relative_to(before) for path in before.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if (before / path).read_bytes() != (after / path).read_bytes()] == []


@pytest.mark.parametrize("section", [{"num_minibatches": 2}, {"kl_coefficient": 0.1}])
async def test_a_step_that_was_given_up_makes_no_pass_of_scores_either(bench, section):
    trainer, groups = bench.trainer(**section), bench.groups(4 * [(1, 0, 0, 1)])
    passed = []
    score = trainer._policy._model.forward
    trainer._policy._model.forward = lambda *inputs, **named: passed.append(1) or score(*inputs, **named)
    await trainer.begin_step(bench.shape(groups))
    await trainer.give_up_step()
    await trainer.accumulate(groups)
    assert passed == []
