"""Which prompts go together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollpacker.engines.streamed.batches import next_pass


def test_a_pass_takes_prompts_of_similar_length_with_the_one_that_waits_longest() -> None:
    assert next_pass([900, 100, 110, 950, 90], 2000) == [3, 0]
    assert next_pass([100, 900, 110, 950, 90], 2000) == [2, 0, 4]
    assert next_pass([900, 100, 110, 950, 90], 300) == [0]


def test_what_is_left_of_a_pass_is_filled_with_shorter_prompts() -> None:
    assert next_pass([1000, 10, 10], 3000) == [0, 1, 2]


@given(lengths=st.lists(st.integers(1, 500), min_size=1, max_size=40), max_tokens=st.integers(1, 2000))
def test_every_prompt_comes_in_time_and_no_pass_is_too_large(lengths: list[int], max_tokens: int) -> None:
    waiting = list(enumerate(lengths))
    seen: list[int] = []
    while waiting:
        places = next_pass([length for _, length in waiting], max_tokens)
        chosen = [waiting[place] for place in places]
        assert 0 in places
        assert [length for _, length in chosen] == sorted((length for _, length in chosen), reverse=True)
        assert len(chosen) == 1 or len(chosen) * chosen[0][1] <= max_tokens
        seen += [number for number, _ in chosen]
        waiting = [each for place, each in enumerate(waiting) if place not in set(places)]
    assert sorted(seen) == list(range(len(lengths)))
