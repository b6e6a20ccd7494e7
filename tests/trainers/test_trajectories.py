"""Responses that an environment answered: what it wrote is context, and nothing of it is learned or counted."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rollpacker.core.errors import ForeignVersion, ImpossibleEvent
from rollpacker.core.ids import ENVIRONMENT, VersionSpan
from rollpacker.trainers.advantages import group_advantages
from tests.trainers.test_admission import admission, group, response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.protocols.rollout import Response, RolloutGroup
    from rollpacker.trainers.grpo import GrpoTrainer

REWARDS = [(1, 0, 0, 1), (0, 0.5, 0, 1), (1, 1, 1, 1)]

SECTIONS: list[dict[str, Any]] = [
    {},
    {"loss_normalisation": "token_mean"},
    {"loss_normalisation": "token_bound", "entropy_coefficient": 0.1},
    {"kl_coefficient": 0.1, "kl_in": "reward"},
    {"kl_coefficient": 0.1, "kl_in": "loss"},
    {"advantage": "reinforce_pp", "num_minibatches": 2},
    {"loss": "gspo", "clip_ratio_low": 0.1, "clip_ratio_high": 0.1, "mismatch": "token_truncate"},
]


def with_turns(groups: Sequence[RolloutGroup], versions: Sequence[int] = (0,)) -> list[RolloutGroup]:
    """Let an environment have written every third token or so of each response of more than one."""
    numbers = np.random.default_rng(3)
    return [
        dataclasses.replace(each, responses=tuple(_with_turns(one, numbers, versions) for one in each.responses))
        for each in groups
    ]


def _with_turns(whole: Response, numbers: np.random.Generator, versions: Sequence[int]) -> Response:
    is_sampled = numbers.random(whole.num_tokens) < 0.6
    is_sampled[-1] = True
    spans = [
        VersionSpan(int(numbers.choice(versions)) if sampled else ENVIRONMENT, len(list(run)))
        for sampled, run in itertools.groupby(is_sampled)
    ]
    return dataclasses.replace(whole, spans=tuple(spans))


def with_noise(groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
    """Replace the log-probabilities of what no policy sampled: nothing else of such a token is the loss's business."""
    numbers = np.random.default_rng(4)

    def noisy(whole: Response) -> Response:
        assert whole.mask is not None or whole.num_tokens < 4
        mask = np.ones(whole.num_tokens, dtype=np.bool_) if whole.mask is None else whole.mask
        noise = numbers.normal(-3, 5, whole.num_tokens).astype(np.float32)
        return dataclasses.replace(whole, logprobs=np.where(mask, whole.logprobs, noise))

    return [dataclasses.replace(each, responses=tuple(map(noisy, each.responses))) for each in groups]


async def learned(trainer: GrpoTrainer, bench: Any, groups: Sequence[RolloutGroup]) -> tuple[dict[str, Any], Any]:
    await trainer.begin_step(bench.shape(groups, step=0, version=0))
    await trainer.accumulate(groups)
    metrics = await trainer.finish_step()
    state = trainer._policy._optimizer.state
    return {name: state[each]["exp_avg"].clone() for name, each in trainer._policy._parameters.items()}, metrics


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: "-".join(map(str, section.values())) or "grpo")
async def test_noise_at_what_an_environment_wrote_changes_no_bit_of_gradient_and_metrics(bench, section):
    groups = with_turns([one for one in bench.groups(REWARDS) if all(each.num_tokens > 3 for each in one.responses)])
    assert any(each.mask is not None for one in groups for each in one.responses)
    gradient, metrics = await learned(bench.trainer(**section), bench, groups)
    noisy_gradient, noisy_metrics = await learned(bench.trainer(**section), bench, with_noise(groups))
    assert all(torch.equal(gradient[name], noisy_gradient[name]) for name in gradient)
    assert any(each.abs().max() > 0 for each in gradient.values())
    assert metrics == noisy_metrics


@pytest.mark.parametrize("normalisation", ["sequence", "token_mean"])
async def test_the_gradient_is_that_of_the_sampled_tokens_alone_written_down_naively(bench, normalisation):
    groups = with_turns(bench.groups(REWARDS))
    model = AutoModelForCausalLM.from_pretrained(bench.model_path).eval()
    responses = [(one, each) for one in groups for each in one.responses]
    num_all = sum(_mask(each).sum() for _, each in responses)
    total = torch.tensor(0.0)
    for one in groups:
        for advantage, each in zip(group_advantages(one.rewards, "group_std"), one.responses, strict=True):
            current = bench.logprobs(model, one.prompt_token_ids, each.token_ids, 1.0)[torch.from_numpy(_mask(each))]
            divisor = num_all if normalisation == "token_mean" else len(responses) * len(current)
            total = total - float(advantage) * current.sum() / float(divisor)
    total.backward()
    trainer = bench.trainer(loss_normalisation=normalisation, max_grad_norm=1e9)
    found, metrics = await learned(trainer, bench, groups)
    share = 1 - trainer._section.adam_betas[0]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name] / share, parameter.grad, rtol=1e-4, atol=2e-6)
    assert metrics.num_tokens == num_all


def _mask(each: Response) -> np.ndarray[Any, Any]:
    return np.ones(each.num_tokens, dtype=np.bool_) if each.mask is None else each.mask


async def test_what_an_environment_wrote_is_not_stale(bench):
    groups = with_turns(bench.groups(REWARDS))
    _, metrics = await learned(bench.trainer(), bench, groups)
    assert metrics.logprob_mismatch_max is not None
    assert metrics.logprob_mismatch_max < 1e-4


def test_what_an_environment_wrote_is_of_no_foreign_version_and_counts_in_the_length():
    spans = (VersionSpan(7, 2), VersionSpan(ENVIRONMENT, 5), VersionSpan(7, 3))
    admission(1).admit([group("a", [response(0), response(1, num_tokens=10, spans=spans)])])
    too_long = (VersionSpan(7, 2), VersionSpan(ENVIRONMENT, 9))
    with pytest.raises(ImpossibleEvent, match="#1 has 11 tokens"):
        admission(1).admit([group("a", [response(0), response(1, num_tokens=11, spans=too_long)])])
    stale = (VersionSpan(ENVIRONMENT, 9), VersionSpan(6, 1))
    with pytest.raises(ForeignVersion, match="version 6"):
        admission(1).admit([group("a", [response(0), response(1, num_tokens=10, spans=stale)])])


def test_a_response_in_which_a_policy_sampled_nothing_is_refused():
    silent = response(1, spans=(VersionSpan(ENVIRONMENT, 3),))
    with pytest.raises(ImpossibleEvent, match="a policy sampled some"):
        admission(1).admit([group("a", [response(0), silent])])
