"""The trial of an engine's drafts: what passes, what is found, by how few tokens."""

from __future__ import annotations

import numpy as np
import pytest

from rollpacker.core.errors import WrongSampling
from rollpacker.engines.draft_trial import LARGEST_Z, Trial, judge_draws, require_lossless

NUM_WORDS, NUM_LIKELIEST = 60, 20


def draw(numbers: np.random.Generator, num_tokens: int, temperature: float = 1.0, share_wrong: float = 0.0) -> Trial:
    """Draw from random policies at a temperature, but for a share of tokens that any word is as likely."""
    logits = numbers.normal(size=(num_tokens, NUM_WORDS)) * 2.5
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    tempered = np.exp(logprobs / temperature)
    cumulative = tempered.cumsum(axis=1) / tempered.sum(axis=1, keepdims=True)
    drawn = (cumulative < numbers.random((num_tokens, 1))).sum(axis=1)
    drawn = np.where(numbers.random(num_tokens) < share_wrong, numbers.integers(0, NUM_WORDS, num_tokens), drawn)
    likeliest = -np.sort(-logprobs, axis=1)[:, :NUM_LIKELIEST]
    return judge_draws(logprobs[np.arange(num_tokens), drawn], likeliest, num_tokens, num_tokens // 2)


def test_z_of_draws_from_the_policy_is_that_of_chance() -> None:
    numbers = np.random.default_rng(0)
    z = np.array([draw(numbers, 200).z for _ in range(400)])
    assert abs(z.mean()) < 0.2
    assert 0.8 < z.std() < 1.1
    assert abs(z).max() < 4.5


@pytest.mark.parametrize(("temperature", "share_wrong"), [(1.0, 0.1), (0.7, 0.0), (1.5, 0.0), (3.0, 0.0)])
def test_draws_from_something_else_are_refused_with_the_method_and_the_platform(
    temperature: float, share_wrong: float
) -> None:
    trial = draw(np.random.default_rng(1), 2048, temperature, share_wrong)
    assert abs(trial.z) > LARGEST_Z
    with pytest.raises(WrongSampling, match=r"method ngram, vLLM 1 on a chip .* 2048 tokens, 2048 of them drafted"):
        require_lossless(trial, "ngram", "vLLM 1 on a chip")


def test_draws_from_the_policy_and_differences_that_rounding_makes_pass() -> None:
    require_lossless(draw(np.random.default_rng(2), 2048), "suffix", "vLLM")
    require_lossless(Trial(10**6, 10**5, 10**4, gap_nats=0.01, z=20.0), "suffix", "vLLM")


def test_a_policy_that_is_sure_of_every_token_proves_nothing_and_passes() -> None:
    trial = judge_draws(np.zeros(5), np.log(np.array([[1.0, 1e-300]] * 5)), 5, 5)
    assert trial.z == pytest.approx(0)
    require_lossless(trial, "suffix", "vLLM")
