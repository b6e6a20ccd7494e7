"""Drawing tokens: the right distribution, each row from its own seed, never a token that cannot come."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from rollpacker.engines.torch.sampling import keep_likeliest, sample, uniform_numbers


def test_numbers_are_those_of_splitmix64() -> None:
    # An independent implementation in Python integers, after the paper's listing.
    def scramble(word: int) -> int:
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
        return word ^ (word >> 31)

    assert scramble(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF  # the reference generator's first output for state 0
    seeds, positions = [0, 1, 2**63 + 5, 2**64 - 1], [0, 7, 100, 31_999]
    expected = [
        (scramble((scramble(seed) + (position + 1) * 0x9E3779B97F4A7C15) % 2**64) >> 40) / 2**24
        for seed, position in zip(seeds, positions, strict=True)
    ]
    assert uniform_numbers(np.array(seeds, np.uint64), np.array(positions)).tolist() == expected


def test_numbers_are_even_over_positions_and_over_neighbouring_seeds() -> None:
    num, num_bins = 60_000, 50
    along = uniform_numbers(np.full(num, 7, np.uint64), np.arange(num))
    across = uniform_numbers(np.arange(num, dtype=np.uint64), np.zeros(num, np.int64))
    for numbers in (along, across):
        counts = np.histogram(numbers, bins=num_bins, range=(0, 1))[0]
        assert _chi_square(counts, np.full(num_bins, num / num_bins)) < 100  # 49 degrees: p < 1e-4
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(along, across)[0, 1]) < 0.02


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_their_probability_says(temperature: float) -> None:
    num = 40_000
    logits = torch.tensor([2.0, -1.0, 0.5, 0.0, 1.5, -3.0])
    uniforms = torch.from_numpy(uniform_numbers(np.full(num, 3, np.uint64), np.arange(num)))
    tokens, logprobs = sample(logits.expand(num, -1), torch.full((num,), temperature), uniforms)
    expected = (logits / temperature).log_softmax(-1)
    counts = np.bincount(tokens.numpy(), minlength=6)
    assert _chi_square(counts, expected.exp().numpy() * num) < 30  # 5 degrees: p < 2e-5
    torch.testing.assert_close(logprobs, expected[tokens])


def test_rows_have_their_own_temperature() -> None:
    logits = torch.tensor([[0.0, 1.0, 3.0]]).expand(2, -1)
    tokens, logprobs = sample(logits, torch.tensor([1.0, 0.1]), torch.tensor([0.5, 0.5]))
    expected = torch.stack([logits[0].log_softmax(-1)[2], (logits[1] / 0.1).log_softmax(-1)[2]])
    assert tokens.tolist() == [2, 2]
    torch.testing.assert_close(logprobs, expected)


@given(
    st.lists(st.floats(-200, 200, width=32) | st.just(float("-inf")), min_size=1, max_size=20),
    st.integers(0, 2**24 - 1),
)
def test_a_token_of_probability_zero_is_never_drawn(logits: list[float], bits: int) -> None:
    if max(logits) == float("-inf"):
        logits[0] = 0.0
    tokens, logprobs = sample(torch.tensor([logits]), None, torch.tensor([bits / 2**24], dtype=torch.float32))
    assert 0 <= int(tokens) < len(logits)
    assert float(logprobs.exp()) > 0


def test_the_largest_number_still_finds_a_token_when_rounding_lifts_the_total() -> None:
    uniforms = torch.full((200,), 1 - 2**-24)
    logits = torch.randn(200, 1000, generator=torch.Generator().manual_seed(0))
    logits[:, 500:] = float("-inf")
    tokens, _ = sample(logits, None, uniforms)
    assert int(tokens.max()) < 500


def test_a_temperature_of_zero_takes_the_likeliest_token_whatever_the_number_is() -> None:
    logits = torch.tensor([0.5, 3.0, 3.0, -1.0])
    uniforms = torch.tensor([0.0, 0.5, 1 - 2**-24, 0.5])
    tokens, logprobs = sample(logits.expand(4, -1), torch.tensor([0.0, 0.0, 0.0, 2.0]), uniforms)
    assert tokens.tolist()[:3] == [1, 1, 1]
    torch.testing.assert_close(logprobs[:3], logits.log_softmax(-1)[1].expand(3))
    torch.testing.assert_close(logprobs[3], (logits / 2).log_softmax(-1)[tokens[3]])


def test_a_forbidden_token_is_never_drawn_where_the_sums_of_a_row_are_not_added_up_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU: such sums fall and rise a little where probabilities are 0."""
    logits = 2 * torch.randn(1, 512, generator=torch.Generator().manual_seed(0))
    kept = keep_likeliest(logits, None, None, torch.tensor([0.95]))
    sums = _sums_in_parallel(kept.softmax(-1))[0]
    rises = 1 + ((kept[0, 1:] == -torch.inf) & (sums[1:] > sums[:-1])).nonzero()[:, 0]
    assert len(rises)
    uniforms = (sums[rises - 1] / sums[-1] * 2**24)[:, None].floor() + torch.arange(-3, 4)
    uniforms = (uniforms.flatten() / 2**24).clamp(0, 1 - 2**-24)
    monkeypatch.setattr(torch.Tensor, "cumsum", lambda probabilities, **_: _sums_in_parallel(probabilities))
    tokens, logprobs = sample(kept.expand(len(uniforms), -1), None, uniforms)
    assert (kept[0, tokens] > -torch.inf).all()
    torch.testing.assert_close(logprobs, kept[0].log_softmax(-1)[tokens])


def _sums_in_parallel(probabilities_BV: torch.Tensor, num_lanes: int = 32) -> torch.Tensor:
    """Cumulative sums as CUDA's scan of a row computes them: within lanes, then over lanes (Kogge and Stone)."""
    local_BLV = probabilities_BV.unflatten(-1, (num_lanes, -1)).clone()
    for place in range(1, local_BLV.shape[-1]):
        local_BLV[..., place] += local_BLV[..., place - 1]
    totals_BL, distance = local_BLV[..., -1].clone(), 1
    while distance < num_lanes:
        totals_BL[:, distance:] = totals_BL[:, distance:] + totals_BL[:, :-distance]
        distance *= 2
    local_BLV[:, 1:] += totals_BL[:, :-1, None]
    return local_BLV.flatten(1)


@given(
    st.lists(st.integers(-6, 6), min_size=1, max_size=9),
    st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    st.integers(0, 10),
    st.sampled_from([0.05, 0.3, 0.55, 0.9, 0.999, 1.0]),
)
def test_only_the_likeliest_tokens_stay_as_counting_them_one_by_one_says(
    logits: list[int], temperature: float, top_k: int, top_p: float
) -> None:
    batch = torch.tensor([logits, logits], dtype=torch.float32)
    kept = keep_likeliest(batch, torch.tensor([temperature, 1.0]), torch.tensor([top_k, 0]), torch.tensor([top_p, 1.0]))
    assert (kept[0] > -torch.inf).nonzero()[:, 0].tolist() == _kept_one_by_one(logits, temperature, top_k, top_p)
    torch.testing.assert_close(kept[0][kept[0] > -torch.inf], batch[0][kept[0] > -torch.inf])
    torch.testing.assert_close(kept[1], batch[1])  # the other row has its own rules


def _kept_one_by_one(logits: list[int], temperature: float, top_k: int, top_p: float) -> list[int]:
    """The definition, in exact sums: the first of equals is the likelier."""
    weights = [math.exp(logit / (temperature or 1)) for logit in logits]
    likeliest = sorted(range(len(logits)), key=lambda token: -logits[token])[: top_k or None]
    total = math.fsum(weights[token] for token in likeliest)
    kept: list[int] = []
    for token in likeliest:
        share_ahead = math.fsum(weights[each] for each in kept) / total
        assume(top_p == 1 or abs(share_ahead - top_p) > 1e-4)  # float32 may round it either way
        if share_ahead >= top_p:
            break
        kept.append(token)
    return sorted(kept)


def test_drawn_tokens_follow_the_renormalised_rest_and_their_logprobs_say_so() -> None:
    num = 40_000
    logits = torch.tensor([2.0, -1.0, 0.5, 0.0, 1.5, -3.0]).expand(num, -1)
    kept = keep_likeliest(logits, None, torch.full((num,), 4), torch.full((num,), 0.9))
    uniforms = torch.from_numpy(uniform_numbers(np.full(num, 3, np.uint64), np.arange(num)))
    tokens, logprobs = sample(kept, None, uniforms)
    expected = logits[0][[0, 2, 4]].softmax(-1)  # of the four likeliest they have 0.51, 0.11 and 0.31
    counts = np.bincount(tokens.numpy(), minlength=6)
    assert counts[[1, 3, 5]].sum() == 0
    assert _chi_square(counts[[0, 2, 4]], expected.numpy() * num) < 20  # 2 degrees: p < 5e-5
    torch.testing.assert_close(logprobs.exp()[tokens == 0][0], expected[0])


def test_logprobs_are_float32_for_a_bfloat16_model() -> None:
    logits = torch.randn(3, 9, generator=torch.Generator().manual_seed(0)).bfloat16()
    tokens, logprobs = sample(logits, None, torch.tensor([0.1, 0.5, 0.9]))
    assert logprobs.dtype == torch.float32
    expected = logits.float().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=0)


def _chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())
