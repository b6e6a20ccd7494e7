from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rollpacker.trainers.losses import kl_estimate, kl_k3, mismatch_weights, score_tokens, sums_to_come, token_weight


def test_log_probabilities_and_entropy_of_a_quarter_and_three_quarters():
    logits_BTV = torch.tensor([[[0.0, math.log(3)], [0.0, 0.0]]])
    logprobs_BT, entropies_BT, _ = score_tokens(logits_BTV, torch.tensor([[1, 0]]), temperature=1.0)
    assert logprobs_BT.tolist()[0] == pytest.approx([math.log(0.75), math.log(0.5)])
    quarter = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert entropies_BT.tolist()[0] == pytest.approx([quarter, math.log(2)])


def test_log_probabilities_are_those_of_the_distribution_at_the_rollout_temperature():
    logits_BTV = torch.tensor([[[0.0, math.log(9)]]])
    logprobs_BT, entropies_BT, _ = score_tokens(logits_BTV, torch.tensor([[0]]), temperature=2.0)
    # Half of log 9 is log 3.
    assert logprobs_BT.item() == pytest.approx(math.log(0.25))
    assert entropies_BT.item() == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))


def test_a_forbidden_token_does_not_make_the_entropy_nan():
    logits_BTV = torch.tensor([[[0.0, -math.inf, 0.0]]])
    _, entropies_BT, variances_BT = score_tokens(logits_BTV, torch.tensor([[0]]), 1.0)
    assert entropies_BT.item() == pytest.approx(math.log(2))
    assert variances_BT.item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_entropy_and_variance_are_mean_and_variance_of_the_surprisal_of_a_drawn_token(temperature, scale):
    logits_BTV = torch.randn(2, 3, 500, generator=torch.Generator().manual_seed(0)) * scale
    _, entropies_BT, variances_BT = score_tokens(logits_BTV, torch.zeros(2, 3, dtype=torch.long), temperature)
    logits = logits_BTV.double().numpy() / temperature
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    surprisals = -np.log(np.maximum(p, 1e-300))
    means = (p * surprisals).sum(-1)
    variances = (p * (surprisals - means[..., None]) ** 2).sum(-1)
    np.testing.assert_allclose(entropies_BT.numpy(), means, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(variances_BT.numpy(), variances, rtol=1e-3, atol=1e-4)
    assert (variances_BT >= 0).all()


def test_bfloat16_logits_are_scored_in_float32():
    logprobs_BT, *_ = score_tokens(torch.zeros(1, 1, 3, dtype=torch.bfloat16), torch.tensor([[0]]), 1.0)
    assert logprobs_BT.dtype == torch.float32
    assert logprobs_BT.item() == pytest.approx(-math.log(3), abs=1e-6)


def test_k3_by_hand():
    # reference / current = 2, 1/2, 1, e^-30
    current_N = torch.tensor([0.0, 0.0, -1.5, -0.5], requires_grad=True)
    reference_N = torch.tensor([math.log(2), -math.log(2), -1.5, -30.5])
    kl_N = kl_k3(current_N, reference_N)
    assert kl_N.tolist() == pytest.approx([1 - math.log(2), math.log(2) - 0.5, 0.0, 29.0])
    (gradient_N,) = torch.autograd.grad(kl_N.sum(), current_N)
    # d/d current of (r - 1 - log r) is 1 - r
    assert gradient_N.tolist() == pytest.approx([-1.0, 0.5, 0.0, 1.0])


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_estimates_of_the_divergence_have_the_gradients_that_are_said_of_them(estimator):
    """In the mean over what the current policy draws: 0, KL(current || reference)'s, KL(reference || current)'s."""
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    reference_V = torch.tensor([-0.4, 0.2, 0.5, -1.5], dtype=torch.float64).log_softmax(-1)
    current_V = logits.log_softmax(-1)
    drawn_V = current_V.exp()
    losses_V = kl_estimate(estimator, current_V, reference_V)
    (found,) = torch.autograd.grad((drawn_V.detach() * losses_V).sum(), logits, retain_graph=True)
    divergences = {
        "k1": current_V.sum() * 0,
        "k2": (drawn_V * (current_V - reference_V)).sum(),
        "k3": (reference_V.exp() * (reference_V - current_V)).sum(),
    }
    (expected,) = torch.autograd.grad(divergences[estimator], logits)
    torch.testing.assert_close(found, expected)
    if estimator == "k1":
        assert float((drawn_V * losses_V).sum().detach()) == pytest.approx(float(divergences["k2"].detach()))


def test_what_is_to_come_ends_with_the_response():
    assert sums_to_come(torch.tensor([1.0, 2.0, 3.0, 10.0, 20.0]), (3, 2)).tolist() == [6.0, 5.0, 3.0, 30.0, 20.0]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_of_the_entropy_is_that_of_finite_differences(temperature):
    logits = torch.randn(1, 2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ids = torch.tensor([[1, 4]])

    def entropies(logits_BTV: torch.Tensor) -> torch.Tensor:
        p = (logits_BTV / temperature).softmax(-1)
        return -(p * p.log()).sum(-1)

    taken = logits.float().requires_grad_()
    _, entropies_BT, _ = score_tokens(taken, ids, temperature, has_entropy_gradient=True)
    (found,) = torch.autograd.grad(entropies_BT.sum(), taken)
    for place in range(5):
        step = torch.zeros_like(logits)
        step[..., place] = 1e-5
        slope = (entropies(logits + step) - entropies(logits - step)) / 2e-5
        torch.testing.assert_close(found[..., place].double(), slope, rtol=1e-4, atol=1e-6)
    assert not score_tokens(taken, ids, temperature)[1].requires_grad


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


LENGTHS = (3, 1, 5, 2)
LOW, HIGH = 0.5, 2.0
MOST_K3 = 0.2
BOUNDS = {"low": LOW, "high": HIGH, "most_k3": MOST_K3}
CORRECTIONS = ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "k3_mask"]


def random_logprobs(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a trainer and of an engine that is far from it."""
    generator = np.random.default_rng(seed)
    behaviour = -generator.exponential(1.0, sum(LENGTHS))
    return torch.tensor(behaviour + generator.normal(0, 0.8, sum(LENGTHS))), torch.tensor(behaviour)


def weights_by_hand(correction, proximal, behaviour) -> list[tuple[float, bool]]:
    """Token by token, in Python's double precision."""
    found, first = [], 0
    for length in LENGTHS:
        log_ratios = [proximal[index].item() - behaviour[index].item() for index in range(first, first + length)]
        first += length
        of_response = {"sequence_mask": sum(log_ratios) / length, "sequence_truncate": sum(log_ratios)}
        divergence = sum(math.exp(each) - 1 - each for each in log_ratios) / length
        for log_ratio in log_ratios:
            ratio = math.exp(of_response.get(correction, log_ratio))
            if correction == "k3_mask":
                found.append((0.0, True) if divergence > MOST_K3 else (1.0, False))
            elif correction.endswith("truncate"):
                found.append((min(ratio, HIGH), ratio > HIGH))
            else:
                found.append((ratio, False) if LOW <= ratio <= HIGH else (0.0, True))
    return found


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_weights_of_the_mismatch_are_those_of_a_reference_in_double_precision(correction):
    bounded = []
    for seed in range(20):
        proximal_N, behaviour_N = random_logprobs(seed)
        expected = weights_by_hand(correction, proximal_N, behaviour_N)
        weights_N, is_bounded_N = mismatch_weights(correction, proximal_N, behaviour_N, LENGTHS, **BOUNDS)
        assert weights_N.tolist() == pytest.approx([weight for weight, _ in expected], rel=1e-12)
        assert is_bounded_N.tolist() == [is_bounded for _, is_bounded in expected]
        single_N, _ = mismatch_weights(correction, proximal_N.float(), behaviour_N.float(), LENGTHS, **BOUNDS)
        torch.testing.assert_close(single_N.double(), weights_N, rtol=1e-5, atol=1e-6)
        bounded += is_bounded_N.tolist()
    assert 0 < sum(bounded) < len(bounded)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_equal_log_probabilities_have_weight_one_and_weights_have_no_gradient(correction):
    proximal_N, _ = random_logprobs(0)
    proximal_N.requires_grad_()
    weights_N, is_bounded_N = mismatch_weights(correction, proximal_N, proximal_N, LENGTHS, **BOUNDS)
    assert weights_N.tolist() == [1.0] * sum(LENGTHS)
    assert not is_bounded_N.any()
    assert not weights_N.requires_grad


def test_the_mean_of_a_long_response_is_not_masked_for_its_length():
    """A thousand tokens that differ by 0.01 each: their product is e^10."""
    proximal_N = torch.full((1000,), -1.0)
    weights_N, _ = mismatch_weights("sequence_mask", proximal_N, proximal_N - 0.01, (1000,), **BOUNDS)
    torch.testing.assert_close(weights_N, torch.full((1000,), math.exp(0.01)))


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_a_nan_of_an_engine_is_not_masked_away(correction):
    behaviour_N = torch.tensor([math.nan])
    weights_N, _ = mismatch_weights(correction, torch.tensor([-1.0]), behaviour_N, (1,), **BOUNDS)
    assert weights_N.isnan().all()


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_policies_that_have_nothing_in_common_make_no_infinity(correction):
    proximal_N, behaviour_N = torch.tensor([-1e4, -0.1, -900.0]), torch.tensor([-0.1, -1e4, -0.1])
    weights_N, _ = mismatch_weights(correction, proximal_N, behaviour_N, (2, 1), **{**BOUNDS, "high": 1e30})
    assert weights_N.isfinite().all()
