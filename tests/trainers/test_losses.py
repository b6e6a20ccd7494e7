from __future__ import annotations

import math

import pytest
import torch

from rollpacker.trainers.losses import clipped_policy_loss, kl_k3, score_tokens, token_weight


def test_log_probabilities_and_entropy_of_a_quarter_and_three_quarters():
    logits_BTV = torch.tensor([[[0.0, math.log(3)], [0.0, 0.0]]])
    logprobs_BT, entropies_BT = score_tokens(logits_BTV, torch.tensor([[1, 0]]), temperature=1.0)
    assert logprobs_BT.tolist()[0] == pytest.approx([math.log(0.75), math.log(0.5)])
    quarter = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert entropies_BT.tolist()[0] == pytest.approx([quarter, math.log(2)])


def test_log_probabilities_are_those_of_the_distribution_at_the_rollout_temperature():
    logits_BTV = torch.tensor([[[0.0, math.log(9)]]])
    logprobs_BT, entropies_BT = score_tokens(logits_BTV, torch.tensor([[0]]), temperature=2.0)
    # Half of log 9 is log 3.
    assert logprobs_BT.item() == pytest.approx(math.log(0.25))
    assert entropies_BT.item() == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))


def test_a_forbidden_token_does_not_make_the_entropy_nan():
    logits_BTV = torch.tensor([[[0.0, -math.inf, 0.0]]])
    assert score_tokens(logits_BTV, torch.tensor([[0]]), 1.0)[1].item() == pytest.approx(math.log(2))


def test_bfloat16_logits_are_scored_in_float32():
    logprobs_BT, _ = score_tokens(torch.zeros(1, 1, 3, dtype=torch.bfloat16), torch.tensor([[0]]), 1.0)
    assert logprobs_BT.dtype == torch.float32
    assert logprobs_BT.item() == pytest.approx(-math.log(3), abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "is_clipped"),
    [
        (1.0, 2.0, -2.0, False),
        (1.5, 2.0, -2.56, True),  # 1.28 * 2
        (1.5, -2.0, 3.0, False),  # moved the wrong way: the full gradient pulls it back
        (0.5, 2.0, -1.0, False),
        (0.5, -2.0, 1.6, True),  # 0.8 * -2
        (1.2, 1.0, -1.2, False),
        (0.9, -1.0, 0.9, False),
        (3.0, 0.0, 0.0, False),
    ],
)
def test_the_policy_loss_is_clipped_by_hand(ratio: float, advantage: float, loss: float, is_clipped: bool):
    current_N = torch.tensor([math.log(ratio) - 1], requires_grad=True)
    loss_N, is_clipped_N = clipped_policy_loss(current_N, torch.tensor([-1.0]), torch.tensor([advantage]), 0.2, 0.28)
    assert loss_N.item() == pytest.approx(loss)
    assert is_clipped_N.item() is is_clipped
    (gradient,) = torch.autograd.grad(loss_N.sum(), current_N)
    assert gradient.item() == pytest.approx(0.0 if is_clipped else -ratio * advantage)


def test_at_ratio_one_the_gradient_is_the_on_policy_one():
    current_N = torch.tensor([-0.5, -2.0, -3.0], requires_grad=True)
    advantages_N = torch.tensor([1.0, -0.5, 0.0])
    loss_N, _ = clipped_policy_loss(current_N, current_N.detach(), advantages_N, 0.2, 0.28)
    (gradient_N,) = torch.autograd.grad(loss_N.sum(), current_N)
    assert torch.equal(gradient_N, -advantages_N)


def test_k3_by_hand():
    # reference / current = 2, 1/2, 1
    current_N = torch.tensor([0.0, 0.0, -1.5], requires_grad=True)
    reference_N = torch.tensor([math.log(2), -math.log(2), -1.5])
    kl_N = kl_k3(current_N, reference_N)
    assert kl_N.tolist() == pytest.approx([1 - math.log(2), math.log(2) - 0.5, 0.0])
    (gradient_N,) = torch.autograd.grad(kl_N.sum(), current_N)
    # d/d current of (r - 1 - log r) is 1 - r
    assert gradient_N.tolist() == pytest.approx([-1.0, 0.5, 0.0])


def test_k3_of_nearly_equal_policies_does_not_drown_in_rounding():
    difference = 1e-4
    kl_N = kl_k3(torch.tensor([-3.0], dtype=torch.float64), torch.tensor([-3.0 + difference], dtype=torch.float64))
    assert kl_N.item() == pytest.approx(difference**2 / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("normalisation", "weight"),
    [("sequence", 1 / (5 * 4)), ("token_bound", 1 / (4 * 100)), ("token_mean", 1 / 60)],
)
def test_a_token_weighs_what_its_normalisation_says(normalisation: str, weight: float):
    found = token_weight(normalisation, num_tokens=5, num_responses=4, max_response_tokens=100, num_batch_tokens=60)
    assert found == pytest.approx(weight)


@pytest.mark.parametrize("normalisation", ["sequence", "token_bound"])
def test_a_weight_that_streams_does_not_ask_for_the_tokens_of_the_batch(normalisation: str):
    def weight(num_batch_tokens: int | None) -> float:
        return token_weight(
            normalisation,
            num_tokens=5,
            num_responses=4,
            max_response_tokens=100,
            num_batch_tokens=num_batch_tokens,
        )

    assert weight(None) == weight(60)
