"""The modelled batch: jumping gives what single passes give, memory and slots add up, nothing is lost."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollpacker.core.errors import ImpossibleEvent
from rollpacker.sim.decoder import PREFILL_TOKENS_PER_PASS, Decoder
from tests.sim.clusters import engine_costs, generation, request, run_out


class OnePassAtATime(Decoder):
    """The same policy without jumps."""

    def _passes_in_free_blocks(self):
        return 1


def test_a_single_response_takes_its_prefill_and_one_pass_per_further_token():
    costs = engine_costs(100)
    decoder = Decoder(costs, max_num_seqs=8)
    decoder.add([generation(0, length=4, num_prompt_tokens=10)], now=1.0)
    prefill = costs.pass_s(10) + costs.prefill_attention_s(0, 10)
    decode = sum(costs.pass_s(1) + costs.kv_read_s * cached for cached in (11, 12, 13))
    [(ended_at, _, num_tokens, is_aborted)] = run_out(decoder)
    assert ended_at == pytest.approx(1.0 + prefill + decode, rel=1e-12)
    assert (num_tokens, is_aborted) == (4, False)
    assert (decoder.num_passes, decoder.num_generated_tokens) == (3, 4)


def test_a_response_of_one_token_ends_with_its_prefill():
    decoder = Decoder(engine_costs(100), max_num_seqs=8)
    decoder.add([generation(0, length=1)], now=0.0)
    assert [tokens for _, _, tokens, _ in run_out(decoder)] == [1]
    assert decoder.num_passes == 0


def test_a_long_prompt_is_prefilled_in_several_passes():
    costs = engine_costs(2000)
    decoder = Decoder(costs, max_num_seqs=8)
    decoder.add([generation(0, length=1, num_prompt_tokens=PREFILL_TOKENS_PER_PASS + 100)], now=0.0)
    whole = costs.pass_s(PREFILL_TOKENS_PER_PASS) + costs.pass_s(100)
    attention = costs.prefill_attention_s(0, PREFILL_TOKENS_PER_PASS + 100)
    [(ended_at, *_)] = run_out(decoder)
    assert ended_at == pytest.approx(whole + attention, rel=1e-12)


def test_requests_beyond_the_slots_wait_their_turn():
    decoder = Decoder(engine_costs(1000), max_num_seqs=2)
    decoder.add([generation(number, length=10) for number in range(5)], now=0.0)
    assert [key for _, key, _, _ in run_out(decoder)] == ["p0", "p1", "p2", "p3", "p4"]


def test_when_blocks_run_out_the_last_admitted_is_preempted_and_computed_again():
    decoder = Decoder(engine_costs(6), max_num_seqs=4)
    decoder.add([generation(0, length=60), generation(1, length=60)], now=0.0)
    ends = run_out(decoder)
    assert [(key, tokens) for _, key, tokens, _ in ends] == [("p0", 60), ("p1", 60)]
    assert decoder.num_preemptions >= 1
    assert decoder.num_generated_tokens == 120  # a preempted response keeps its tokens
    assert ends[1][0] > ends[0][0]


def test_without_shortage_nobody_is_preempted():
    decoder = Decoder(engine_costs(1000), max_num_seqs=64)
    decoder.add([generation(number, length=100) for number in range(50)], now=0.0)
    run_out(decoder)
    assert decoder.num_preemptions == 0


def test_an_abort_takes_effect_at_the_next_boundary_and_keeps_what_was_generated():
    costs = engine_costs(1000)
    decoder = Decoder(costs, max_num_seqs=8)
    decoder.add([generation(0, length=1000), generation(1, length=2000)], now=0.0)
    decoder.advance()  # taken in
    decoder.advance()  # prefilled
    begins = decoder.next_at_s - _duration(costs, num_seqs=2, num_passes=999, cached=12)
    decoder.abort([request(1), request(7)], now=begins + 100.5 * costs.pass_s(2))
    boundary = decoder.next_at_s
    assert begins + 100 * costs.pass_s(2) <= boundary <= begins + 102 * costs.pass_s(2)
    [ended] = decoder.advance()
    assert ended.is_aborted
    assert ended.sequence.request == request(1)
    assert 100 <= ended.sequence.num_generated <= 102
    assert [(key, tokens) for _, key, tokens, _ in run_out(decoder)] == [("p0", 1000)]


def _duration(costs, *, num_seqs, num_passes, cached):
    return sum(costs.pass_s(num_seqs) + costs.kv_read_s * (cached + num_seqs * done) for done in range(num_passes))


def test_a_response_that_ends_at_the_boundary_of_its_abort_has_finished():
    decoder = Decoder(engine_costs(1000), max_num_seqs=8)
    decoder.add([generation(0, length=50)], now=0.0)
    decoder.advance()
    decoder.advance()
    decoder.abort([request(0)], now=decoder.next_at_s)
    assert [ended.is_aborted for ended in decoder.advance()] == [False]


def test_a_response_that_could_never_fit_is_refused():
    decoder = Decoder(engine_costs(4), max_num_seqs=8)
    decoder.add([generation(0, length=60, num_prompt_tokens=5)], now=0.0)
    with pytest.raises(ImpossibleEvent, match="needs 65 tokens of KV cache"):
        decoder.advance()


LENGTHS = st.integers(1, 120)
ORDERS = st.lists(
    st.tuples(
        st.floats(0, 0.3),
        st.lists(st.tuples(LENGTHS, st.integers(1, 40)), max_size=6),
        st.lists(st.integers(0, 30), max_size=4),
    ),
    min_size=1,
    max_size=8,
)


def play(decoder, orders):
    """Give orders at their times; gives every end as (prompt, tokens, aborted) with its time."""
    ends, number, pending = [], 0, sorted(orders, key=lambda order: order[0])
    for at, lengths, aborted in pending:
        while decoder.next_at_s is not None and decoder.next_at_s < at:
            ends += _advance(decoder)
        new = [generation(number + index, *length, asked_at_s=at) for index, length in enumerate(lengths)]
        number += len(new)
        decoder.add(new, at)
        decoder.abort([request(each) for each in aborted], at)
    while decoder.next_at_s is not None:
        ends += _advance(decoder)
    return ends, number


def _advance(decoder):
    now = decoder.next_at_s
    ended = decoder.advance()
    decoder.check()
    return [(each.sequence.request.prompt.key, each.sequence.num_generated, each.is_aborted, now) for each in ended]


@settings(max_examples=150)
@given(orders=ORDERS, num_blocks=st.integers(10, 60), num_slots=st.integers(1, 8))
def test_jumps_end_where_single_passes_end_whatever_is_ordered_and_however_tight_memory_is(
    orders, num_blocks, num_slots
):
    costs = engine_costs(num_blocks)
    jumping, stepping = Decoder(costs, num_slots), OnePassAtATime(costs, num_slots)
    ends, number = play(jumping, orders)
    expected, _ = play(stepping, orders)
    assert [end[:3] for end in ends] == [end[:3] for end in expected]
    for end, other in zip(ends, expected, strict=True):
        assert end[3] == pytest.approx(other[3], rel=1e-9)
    assert sorted(end[0] for end in ends) == sorted(f"p{each}" for each in range(number))  # each ends once
    counters = ("num_passes", "num_generated_tokens", "num_preemptions", "busy_slot_steps", "idle_slot_steps")
    for counter in (*counters, "waiting_request_steps", "kv_token_steps"):
        assert getattr(jumping, counter) == getattr(stepping, counter)
    assert jumping.num_generated_tokens == sum(end[1] for end in ends)
    assert jumping.kv_token_steps <= jumping.kv_tokens_capacity * jumping.num_passes


@settings(max_examples=60)
@given(lengths=st.lists(LENGTHS, min_size=1, max_size=40), num_slots=st.integers(1, 8))
def test_busy_and_idle_slots_are_all_slots_of_all_passes(lengths, num_slots):
    decoder = Decoder(engine_costs(10_000), num_slots)
    decoder.add([generation(number, length) for number, length in enumerate(lengths)], now=0.0)
    run_out(decoder)
    assert decoder.busy_slot_steps + decoder.idle_slot_steps == min(num_slots, len(lengths)) * decoder.num_passes


def test_what_goes_on_with_other_weights_has_its_slots_and_those_that_left_are_not_idle():
    decoder = Decoder(engine_costs(10_000), max_num_seqs=8)
    decoder.add([generation(number, length) for number, length in enumerate((10, 20, 400))], now=0.0)
    while decoder.num_in_flight != 1:
        decoder.advance()
    decoder.pause(now=decoder.next_at_s)
    decoder.advance()
    num_idle = decoder.idle_slot_steps
    decoder.resume(now=1000.0)
    run_out(decoder)
    assert decoder.idle_slot_steps == num_idle > 0


@settings(max_examples=60)
@given(lengths=st.lists(LENGTHS, min_size=1, max_size=40), num_slots=st.integers(1, 8))
def test_a_batch_takes_no_longer_than_list_scheduling_allows(lengths, num_slots):
    """Graham's bound: with c slots and passes of one duration, at most (sum - max) / c + max."""
    free = {"memory_gb_per_s": 1e9, "tflops": 1e9, "step_overhead_s": 1.0}  # every pass takes one second
    decoder = Decoder(engine_costs(10_000, **free), num_slots)
    decoder.add([generation(number, length) for number, length in enumerate(lengths)], now=0.0)
    makespan = run_out(decoder)[-1][0]
    longest, total = max(lengths), sum(lengths)
    assert makespan >= max(longest, math.ceil(total / num_slots)) - 1e-6
    assert makespan <= (total - longest) / num_slots + longest + 1e-6


def test_progress_in_the_middle_of_a_jump_counts_the_passes_that_have_begun():
    costs = engine_costs(1000)
    decoder = Decoder(costs, max_num_seqs=2)
    decoder.add([generation(number, length=50, num_prompt_tokens=10) for number in range(3)], now=0.0)
    decoder.advance()  # takes the order in
    decoder.advance()  # the prefill of the first two, each with its first token
    began = costs.prefill_pass_s(0, [(0, 10), (0, 10)])
    assert [number for _, number in decoder.progress(began)] == [1, 1, 0]
    for num_passes in range(1, 40):
        began += costs.pass_s(2) + costs.kv_read_s * 2 * (10 + num_passes)
        assert [number for _, number in decoder.progress(began - 1e-9)] == [1 + num_passes, 1 + num_passes, 0]


def test_a_response_begun_elsewhere_is_prefilled_with_what_it_has_and_goes_on():
    costs = engine_costs(1000)
    decoder = Decoder(costs, max_num_seqs=2)
    begun = generation(0, length=50, num_prompt_tokens=10)
    begun.num_generated = 30
    decoder.add([begun], now=0.0)
    [(ended_at, _, num_tokens, _)] = run_out(decoder)
    passes = sum(costs.pass_s(1) + costs.kv_read_s * cached for cached in range(41, 60))
    assert (num_tokens, decoder.num_generated_tokens) == (50, 20)
    assert ended_at == pytest.approx(costs.prefill_pass_s(0, [(0, 40)]) + passes)


def test_a_response_that_leaves_and_comes_back_later_ends_at_its_own_length():
    costs = engine_costs(1000)
    decoder = Decoder(costs, max_num_seqs=2)
    decoder.add([generation(0, length=50), generation(1, length=45)], now=0.0)
    decoder.advance()  # taken in
    began = decoder.next_at_s
    decoder.advance()  # prefilled
    decoder.abort([request(0)], now=began + 10 * costs.pass_s(2))
    [left] = decoder.advance()
    back = generation(0, length=50)
    back.num_generated = left.sequence.num_generated
    decoder.add([back], now=began + 30 * costs.pass_s(2))  # passes went on without it
    assert [(key, tokens) for _, key, tokens, _ in run_out(decoder)] == [("p1", 45), ("p0", 50)]
