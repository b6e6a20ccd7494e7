"""What the next turn of a trajectory finds in the KV cache of a modelled engine, and what that saves.

`tests/engines/vllm/test_block_pool.py` holds the same against vLLM's own blocks.
"""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollpacker.sim.costs import KV_BLOCK_TOKENS
from rollpacker.sim.decoder import Decoder, Generation
from rollpacker.sim.prefixes import Prefixes
from tests.sim.clusters import engine_costs, generation, request, run_out
from tests.sim.test_decoder import OnePassAtATime


def turn(number: int, *, num_before: int, length: int, now: float = 0.0) -> Generation:
    """A turn that goes on with so many tokens of a trajectory, up to a length."""
    begun = generation(number, length, asked_at_s=now)
    begun.num_generated = num_before
    return begun


def test_blocks_that_hold_nothing_are_taken_first_and_then_the_oldest_turn_from_its_end():
    prefixes = Prefixes(is_on=True)
    prefixes.keep(request(0), 3 * KV_BLOCK_TOKENS + 5)
    prefixes.keep(request(1), 2 * KV_BLOCK_TOKENS)
    prefixes.evict(7)
    assert prefixes.num_blocks == 5
    prefixes.evict(4)
    prefixes.evict(3)
    assert prefixes.take(request(0), 100) == KV_BLOCK_TOKENS
    prefixes.evict(2)
    assert prefixes.take(request(1), 100) == 2 * KV_BLOCK_TOKENS
    assert (prefixes.num_query_tokens, prefixes.num_hit_tokens) == (200, 3 * KV_BLOCK_TOKENS)


def test_the_last_token_is_always_computed_and_what_was_found_is_found_once():
    prefixes = Prefixes(is_on=True)
    prefixes.keep(request(0), 10 * KV_BLOCK_TOKENS)
    assert prefixes.take(request(0), 2 * KV_BLOCK_TOKENS) == KV_BLOCK_TOKENS  # it began again
    assert prefixes.take(request(0), 100) == 0
    assert prefixes.num_blocks == 0


def second_turn(decoder: Decoder, between=lambda _: None) -> float:
    """How long the second turn takes to its first token, where the first one left 104 tokens cached."""
    decoder.add([generation(0, length=100)], now=0.0)
    [(now, *_)] = run_out(decoder)
    between(decoder)
    decoder.add([turn(0, num_before=130, length=131)], now)
    return run_out(decoder)[-1][0] - now


def test_the_next_turn_is_prefilled_behind_the_whole_blocks_of_the_last_one():
    costs = engine_costs(100)
    found = second_turn(Decoder(costs, 4, keeps_prefixes=True))
    assert found == pytest.approx(costs.prefill_pass_s(0, [(96, 135)]), rel=1e-9)
    without = second_turn(Decoder(costs, 4))
    assert without == pytest.approx(costs.prefill_pass_s(0, [(0, 135)]), rel=1e-9)


def test_what_is_found_takes_no_room_in_a_pass():
    costs = engine_costs(2000)
    decoder = Decoder(costs, 4, keeps_prefixes=True)
    decoder.add([generation(number, length=6000) for number in range(3)], now=0.0)
    now = run_out(decoder)[-1][0]
    decoder.add([turn(number, num_before=6027, length=6028) for number in range(3)], now)
    ends = run_out(decoder)
    assert [end - now for end, *_ in ends] == [pytest.approx(costs.prefill_pass_s(0, [(6000, 6032)] * 3))] * 3


def test_after_new_weights_a_turn_is_computed_from_its_beginning():
    without = second_turn(Decoder(engine_costs(100), 4))
    assert second_turn(Decoder(engine_costs(100), 4, keeps_prefixes=True), Decoder.forget_prefixes) == without


def test_a_turn_that_was_under_way_at_new_weights_leaves_nothing():
    decoder = Decoder(engine_costs(100), 4, keeps_prefixes=True)
    decoder.add([generation(0, length=100)], now=0.0)
    decoder.advance()
    decoder.advance()
    decoder.forget_prefixes()
    run_out(decoder)
    assert decoder.prefixes.num_blocks == 0


@pytest.mark.parametrize(("num_taken", "num_left"), [(94, 6), (95, 5), (98, 2), (100, 0)])
def test_a_turn_finds_what_others_left_of_it(num_taken, num_left):
    def take(decoder):
        decoder.add([generation(1, length=num_taken * KV_BLOCK_TOKENS - 5)], now=1.0)
        run_out(decoder)

    costs = engine_costs(100)
    found = second_turn(Decoder(costs, 4, keeps_prefixes=True), take)
    assert found == pytest.approx(costs.prefill_pass_s(0, [(num_left * KV_BLOCK_TOKENS, 135)]), rel=1e-9)


def test_a_turn_that_needs_all_blocks_finds_its_own_among_them():
    costs = engine_costs(9)
    found = second_turn(Decoder(costs, 4, keeps_prefixes=True))
    assert found == pytest.approx(costs.prefill_pass_s(0, [(96, 135)]), rel=1e-9)


class Counting(Decoder):
    """Counts what is prefilled."""

    num_prefilled = 0

    def _prefill(self, plan):
        self.num_prefilled += sum(num_tokens for _, num_tokens in plan.chunks)
        super()._prefill(plan)


def play_turns(decoder: Decoder, trajectories) -> list[tuple[int, int, float]]:
    """Run trajectories to their ends; gives each turn's end: trajectory, tokens and time."""
    ends, turns = [], [list(turns) for turns in trajectories]
    begins = [(0.0, number, 0) for number in range(len(turns))]
    while begins or decoder.next_at_s is not None:
        if begins and (decoder.next_at_s is None or begins[0][0] < decoder.next_at_s):
            now, number, num_tokens = heapq.heappop(begins)
            num_observed, num_written, _ = turns[number][0]
            num_before = num_tokens + num_observed if num_tokens else 0
            decoder.add([turn(number, num_before=num_before, length=num_before + num_written, now=now)], now)
            continue
        now = decoder.next_at_s
        for ended in decoder.advance():
            number, num_tokens = int(ended.sequence.request.prompt.key[1:]), ended.sequence.num_generated
            ends.append((number, num_tokens, now))
            _, _, pause_s = turns[number].pop(0)
            if turns[number]:
                heapq.heappush(begins, (now + pause_s, number, num_tokens))
        decoder.check()
    return ends


TURN = st.tuples(st.integers(1, 40), st.integers(1, 40), st.floats(0, 0.05))
"""Tokens of the observation before it and of its own, and the pause after it."""
TRAJECTORIES = st.lists(st.lists(TURN, min_size=1, max_size=5), min_size=1, max_size=8)


@settings(max_examples=100)
@given(trajectories=TRAJECTORIES, num_blocks=st.integers(26, 120), num_slots=st.integers(1, 6))
def test_every_token_of_a_turn_is_found_or_computed_and_jumps_end_where_single_passes_end(
    trajectories, num_blocks, num_slots
):
    costs = engine_costs(num_blocks)
    jumping = Counting(costs, num_slots, keeps_prefixes=True)
    stepping = OnePassAtATime(costs, num_slots, keeps_prefixes=True)
    ends, expected = (play_turns(decoder, trajectories) for decoder in (jumping, stepping))
    assert [end[:2] for end in ends] == [end[:2] for end in expected]
    assert [end[2] for end in ends] == pytest.approx([end[2] for end in expected], rel=1e-9)
    assert len(ends) == sum(map(len, trajectories))
    found = jumping.prefixes
    assert found.num_hit_tokens == stepping.prefixes.num_hit_tokens
    if not jumping.num_preemptions:
        assert found.num_hit_tokens + jumping.num_prefilled == found.num_query_tokens


@settings(max_examples=60)
@given(trajectories=TRAJECTORIES, num_slots=st.integers(1, 6))
def test_with_room_for_all_every_turn_finds_the_whole_blocks_of_the_one_before(trajectories, num_slots):
    decoder = Decoder(engine_costs(1000), num_slots, keeps_prefixes=True)
    ends = play_turns(decoder, trajectories)
    last = {number: num_tokens for number, num_tokens, _ in ends}
    # the token that a turn drew last was computed by none of its passes
    left = [(5 + num_tokens - 1) // KV_BLOCK_TOKENS for number, num_tokens, _ in ends if num_tokens < last[number]]
    assert decoder.prefixes.num_hit_tokens == sum(left) * KV_BLOCK_TOKENS
