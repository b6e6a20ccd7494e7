from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rollpacker.config.sections.losses import LOSSES, resolved
from rollpacker.config.sections.trainer import TrainerSection
from rollpacker.trainers.policy_losses import make_policy_loss
from rollpacker.trainers.tokens import Tokens

LENGTHS = (3, 1, 5, 2)
CASES = [
    *({"loss": name} for name in LOSSES),
    {"loss": "ppo", "dual_clip": 1.5},
    {"loss": "ppo_behaviour", "dual_clip": 1.5},
    {"loss": "tis", "clip_ratio_high": 1.0},
    {"loss": "cispo", "clip_ratio_low": 0.1, "clip_ratio_high": 0.1},
    {"loss": "topr", "topr_weights": (0.5, 2.0)},
    {"loss": "gspo", "clip_ratio_low": 0.2, "clip_ratio_high": 0.3},
    {"loss": "gspo", "dual_clip": 1.1},
]


def evaluate(settings, current, others, *, lengths=LENGTHS, dtype=torch.float64):
    """Loss and flag of each token, and the gradient of their sum."""
    current_N = torch.tensor(current, dtype=dtype, requires_grad=True)
    tensors = (torch.tensor(each, dtype=dtype) for each in others)
    proximal_N, behaviour_N, advantages_N = tensors
    loss_N, is_clipped_N = make_policy_loss(resolved(TrainerSection(**settings)))(
        Tokens(
            current_N=current_N,
            proximal_N=proximal_N,
            behaviour_N=behaviour_N,
            advantages_N=advantages_N,
            num_tokens_B=lengths,
        )
    )
    (gradient_N,) = torch.autograd.grad(loss_N.sum(), current_N)
    return loss_N.tolist(), is_clipped_N.tolist(), gradient_N.tolist()


BOUNDS = {
    "ppo": (0.8, 1.28),
    "ppo_behaviour": (0.8, 1.28),
    "tis": (0.0, 1.0),
    "cispo": (0.0, 1.28),
    "topr": (0.0, 1.0),
    "gspo": (1 - 3e-4, 1 + 4e-4),
}


def by_hand(settings, current, frozen, others):
    """The loss of each token in Python's double precision; `frozen` is current where its gradient is stopped."""
    name, (proximal, behaviour, advantages) = settings["loss"], others
    low, high = BOUNDS.get(name, (0.0, 0.0))
    low = 1 - settings["clip_ratio_low"] if "clip_ratio_low" in settings else low
    high = 1 + settings["clip_ratio_high"] if "clip_ratio_high" in settings else high
    found, first = [], 0
    for length in LENGTHS:
        response = range(first, first + length)
        first += length
        log_mean = sum(frozen[token] - behaviour[token] for token in response) / length
        for token in response:
            advantage, anchor = advantages[token], proximal[token] if name == "ppo" else behaviour[token]
            weight = min(max(math.exp(frozen[token] - anchor), low), high)
            if name == "reinforce":
                gain = advantage * current[token]
            elif name in {"tis", "cispo"}:
                gain = weight * advantage * current[token]
            elif name == "topr":
                positive, negative = settings.get("topr_weights", (1, 1))
                gain = (positive if advantage >= 0 else negative * weight) * advantage * current[token]
            else:
                ratio = math.exp(current[token] - anchor)
                if name == "gspo":
                    ratio = math.exp(log_mean) * math.exp(current[token] - frozen[token])
                gain = min(ratio * advantage, min(max(ratio, low), high) * advantage)
                if "dual_clip" in settings and advantage < 0:
                    gain = max(gain, settings["dual_clip"] * advantage)
            found.append(-gain)
    return found


def random_tokens(seed):
    """Current, proximal and behaviour log-probabilities that are far from each other, and advantages of both signs."""
    generator = np.random.default_rng(seed)
    num_tokens = sum(LENGTHS)
    behaviour = -generator.exponential(1.0, num_tokens)
    proximal = behaviour + generator.normal(0, 0.5, num_tokens)
    current = proximal + generator.normal(0, 0.4, num_tokens)
    advantages = np.repeat(generator.normal(0, 1, len(LENGTHS)), LENGTHS)
    return current, proximal, behaviour, advantages


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_loss_and_gradient_are_those_of_a_reference_in_double_precision(settings):
    flags = []
    for seed in range(20):
        current, *others = random_tokens(seed)
        found, is_clipped, gradient = evaluate(settings, current, others)
        assert found == pytest.approx(by_hand(settings, current, current, others), rel=1e-12)
        for token in range(len(current)):
            above, below = current.copy(), current.copy()
            above[token] += 1e-6
            below[token] -= 1e-6
            slopes = zip(
                by_hand(settings, above, current, others), by_hand(settings, below, current, others), strict=True
            )
            assert gradient[token] == pytest.approx(sum(up - down for up, down in slopes) / 2e-6, abs=1e-6)
        single, single_flags, _ = evaluate(settings, current, others, dtype=torch.float32)
        assert single == pytest.approx(found, rel=1e-5, abs=1e-6)
        assert single_flags == is_clipped
        flags += is_clipped
    if settings["loss"] == "reinforce":
        assert not any(flags)
    else:
        assert 0 < sum(flags) < len(flags)


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_where_the_policies_are_one_the_gradient_is_that_of_reinforce(settings):
    current, *_, advantages = random_tokens(0)
    _, is_clipped, gradient = evaluate(settings, current, (current, current, advantages), dtype=torch.float32)
    weights = np.where(advantages < 0, *reversed(settings.get("topr_weights", (1, 1))))
    assert gradient == (-weights * advantages.astype(np.float32)).astype(np.float32).tolist()
    assert not any(is_clipped)


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_the_gradient_depends_on_the_behaviour_policy_where_the_loss_is_anchored_there_and_only_there(settings):
    """It fails where the proximal policy stands for the behaviour one: every ratio is then 1, whatever was sampled."""
    current, _, behaviour, advantages = random_tokens(1)
    gradients = [
        evaluate(settings, current, (current, sampled, advantages))[2] for sampled in (behaviour, behaviour + 0.3)
    ]
    is_anchored_there = LOSSES[settings["loss"]].anchor == "behaviour"
    assert (gradients[0] != gradients[1]) is is_anchored_there


def test_with_weights_per_response_the_gradient_of_gspo_is_that_of_the_ratio_of_the_whole_response():
    current, _, behaviour, advantages = random_tokens(2)
    settings = {"loss": "gspo", "clip_ratio_high": 1e6, "clip_ratio_low": 1}
    _, _, found = evaluate(settings, current, (current, behaviour, advantages))
    current_N = torch.tensor(current, requires_grad=True)
    losses = [
        -float(of_response[0]) * (own_R - sampled_R).mean().exp()
        for own_R, sampled_R, of_response in zip(
            *(torch.split(each, LENGTHS) for each in (current_N, *map(torch.tensor, (behaviour, advantages)))),
            strict=True,
        )
    ]
    (expected_N,) = torch.autograd.grad(sum(losses), current_N)
    lengths_N = torch.tensor(LENGTHS).repeat_interleave(torch.tensor(LENGTHS))
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64) / lengths_N, expected_N)


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_policies_that_have_nothing_in_common_make_no_infinity_and_no_nan(settings):
    current, other = [-1e4, -0.1, -900.0, -0.1], [-0.1, -1e4, -0.1, -900.0]
    for advantages in ([1.0] * 4, [-1.0] * 4):
        others = (other, other, advantages)
        found, _, gradient = evaluate(settings, current, others, lengths=(2, 2), dtype=torch.float32)
        assert np.isfinite([found, gradient]).all()


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
def test_the_loss_of_ppo_is_clipped_by_hand(ratio: float, advantage: float, loss: float, is_clipped: bool):
    found = evaluate({"loss": "ppo"}, [math.log(ratio) - 1], ([-1.0], [0.0], [advantage]), lengths=(1,))
    assert found[0] == pytest.approx([loss])
    assert found[1] == [is_clipped]
    assert found[2] == pytest.approx([0.0 if is_clipped else -ratio * advantage])


def test_dual_clip_lets_go_of_a_token_that_became_far_too_likely():
    found = evaluate({"loss": "ppo", "dual_clip": 3.0}, [math.log(5) - 1], ([-1.0], [0.0], [-2.0]), lengths=(1,))
    assert found == ([6.0], [True], [0.0])


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [-25.0, 25.0])
def test_a_token_whose_ratio_is_too_large_for_a_gradient_counts_as_clipped(log_ratio: float, advantage: float):
    _, is_clipped, gradient = evaluate({"loss": "ppo"}, [log_ratio - 1], ([-1.0], [0.0], [advantage]), lengths=(1,))
    assert (is_clipped, gradient) == ([True], [0.0])
