"""What is known of a prompt's lengths, and when."""

from __future__ import annotations

import json
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.core.errors import InvariantViolated
from rollpacker.core.ids import Domain, PromptId, RequestId
from rollpacker.core.length_history import LengthHistory
from rollpacker.core.supply import DrawnPrompt

Fact = tuple[RequestId, int, bool]


def request(key: str, sample: int = 0, *, round_number: int = 0, epoch: int = 0) -> RequestId:
    return RequestId(round_number, PromptId(epoch, key), sample)


def drawn(*keys: str) -> list[DrawnPrompt]:
    return [DrawnPrompt(PromptId(1, key), Domain("math")) for key in keys]


def told(*facts: Fact, learned: int = 0) -> LengthHistory:
    history = LengthHistory()
    for name, num_tokens, has_ended in facts:
        history.note(name, num_tokens, has_ended=has_ended)
    history.learn(learned)
    history.check()
    return history


facts = st.lists(
    st.tuples(
        st.builds(request, st.sampled_from("abcd"), st.integers(0, 3), round_number=st.integers(0, 1)),
        st.integers(0, 99),
        st.booleans(),
    ),
    max_size=30,
)


def test_an_estimate_is_the_mean_of_what_ended() -> None:
    history = told((request("a", 0), 10, True), (request("a", 1), 31, True))
    assert history.estimate("a") == Fraction(41, 2)
    assert history.estimate("never launched") == 0


def test_an_aborted_response_is_a_lower_bound_and_makes_its_prompt_longer() -> None:
    history = told((request("a", 0), 10, True), (request("a", 1), 90, False))
    assert history.estimate("a") == 100
    assert told((request("a", 0), 90, False), (request("a", 1), 90, False)).estimate("a") == 180, "no end was seen"


def test_the_last_round_that_tells_of_a_prompt_counts() -> None:
    history = told((request("a"), 10, True), (request("b"), 20, True))
    history.note(request("a", round_number=1), 30, has_ended=True)
    history.learn(1)
    assert (history.estimate("a"), history.estimate("b")) == (30, 20)


def test_the_longest_are_chosen_in_the_order_of_the_draw_and_of_equal_ones_the_first() -> None:
    history = told(*[(request(key), tokens, True) for key, tokens in zip("abcd", (10, 20, 30, 20), strict=True)])
    assert history.longest(drawn("a", "b", "c", "d"), 2) == drawn("b", "c")
    assert history.longest(drawn("d", "x", "c", "b"), 2) == drawn("d", "c")


@given(facts)
def test_nothing_of_the_round_under_way_changes_what_is_known(of_round: list[Fact]) -> None:
    history = told((request("a", round_number=2), 10, True), (request("b", round_number=2), 20, True), learned=2)
    before = [history.estimate(key) for key in "abcd"]
    for name, num_tokens, has_ended in of_round:  # round 3, and late facts of the rounds before it
        history.note(name._replace(round=name.round + 2), num_tokens, has_ended=has_ended)
        assert [history.estimate(key) for key in "abcd"] == before


@given(facts, st.randoms(use_true_random=False))
def test_neither_the_order_of_a_rounds_facts_matters_nor_whether_one_comes_twice(
    of_round: list[Fact], rng: random.Random
) -> None:
    shuffled = of_round + rng.choices(of_round, k=5) if of_round else []
    rng.shuffle(shuffled)
    ordered, other = told(*of_round), told(*shuffled)
    assert [ordered.estimate(key) for key in "abcd"] == [other.estimate(key) for key in "abcd"]


@given(facts, facts)
def test_a_restored_history_goes_on_alike(learned: list[Fact], seen: list[Fact]) -> None:
    history = told(*learned)
    for name, num_tokens, has_ended in seen:
        history.note(name, num_tokens, has_ended=has_ended)
    snapshot = json.loads(json.dumps(history.snapshot()))
    restored = LengthHistory.restore(snapshot)
    assert restored.snapshot() == history.snapshot() == snapshot
    history.learn(1)
    restored.learn(1)
    assert restored.snapshot() == history.snapshot()


def test_it_grows_with_the_prompts_and_not_with_the_rounds() -> None:
    history = LengthHistory()
    sizes = []
    for number in range(50):
        history.note(request(str(number % 5), epoch=number // 5, round_number=number), 10, has_ended=True)
        history.learn(number)
        sizes.append(len(history.snapshot()["lengths"]) + len(history.snapshot()["seen"]))
    assert max(sizes) == sizes[-1] == 5


def test_a_broken_snapshot_is_noticed() -> None:
    snapshot = told((request("a"), 10, True)).snapshot()
    with pytest.raises(InvariantViolated, match="below 0"):
        LengthHistory.restore(snapshot | {"lengths": {"a": [-1, 0]}}).check()
    with pytest.raises(InvariantViolated, match="although it was learned"):
        LengthHistory.restore(snapshot | {"seen": [[0, [0, "a"], 0, True, 5]]}).check()
