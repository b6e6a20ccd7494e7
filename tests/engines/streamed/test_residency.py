"""Which layers stay, and how many: the claims of the derivation, checked."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.core.errors import EngineFailed
from rollpacker.engines.streamed.residency import (
    PATIENCE_PASSES,
    LayerSizes,
    MeasuredRates,
    Residency,
    num_resident_layers,
    num_that_fit,
    streamed_layers,
    waiting_s,
)

QWEN_7B = LayerSizes(
    num_layers=28,
    layer_bytes=466_000_000,
    layer_parameters=233_000_000,
    hidden_size=3584,
    intermediate_size=18944,
    attention_width=3584,
    vocab_size=152_064,
    bytes_per_number=2,
)
PCIE, H100 = 45e9, 0.6 * 989e12


def resident(num_rows: int, longest: int, free_gb: float = 40, *, flops: float = H100) -> int:
    return num_resident_layers(
        QWEN_7B, num_rows=num_rows, longest=longest, free_bytes=free_gb * 1e9, copy_bytes_per_s=PCIE, flops_per_s=flops
    )


def waits(num_layers: int, num_resident: int, copy_s: float, compute_s: float = 1.0) -> float:
    streamed = streamed_layers(num_layers, num_resident)
    return waiting_s(streamed, num_layers, copy_s=copy_s, compute_s=compute_s, num_slots=2)


def test_streamed_layers_are_spread_evenly_and_end_their_stretches() -> None:
    assert streamed_layers(8, 0) == tuple(range(8))
    assert streamed_layers(8, 4) == (1, 3, 5, 7)
    assert streamed_layers(28, 25) == (8, 17, 27)
    assert streamed_layers(8, 8) == ()


@given(num_layers=st.integers(1, 90), data=st.data())
def test_stretches_between_streamed_layers_differ_by_one_layer_at_most(num_layers: int, data: st.DataObject) -> None:
    num_resident = data.draw(st.integers(0, num_layers - 1))
    streamed = streamed_layers(num_layers, num_resident)
    stretches = [after - before for before, after in itertools.pairwise((-1, *streamed))]
    assert len(streamed) == num_layers - num_resident
    assert streamed[-1] == num_layers - 1
    assert max(stretches) - min(stretches) <= 1


@pytest.mark.parametrize("copy_s", [0.9, 1.0, 1.3, 1.7, 2.0, 2.6, 3.5])
@pytest.mark.parametrize("num_resident", [0, 2, 4, 6])
def test_no_other_choice_of_layers_waits_less_than_the_even_one_by_more_than_rounding(
    copy_s: float, num_resident: int
) -> None:
    others = itertools.combinations(range(9), 9 - num_resident)
    best = min(waiting_s(other, 9, copy_s=copy_s, compute_s=1.0, num_slots=2) for other in others)
    assert waits(9, num_resident, copy_s) <= best + 1e-9


@given(num_layers=st.integers(3, 40), stretch=st.integers(1, 6), copy_share=st.floats(0.01, 1))
def test_copies_hide_whenever_they_take_no_longer_than_compute_and_stretches_are_whole(
    num_layers: int, stretch: int, copy_share: float
) -> None:
    num_layers *= stretch
    num_streamed = num_layers // stretch
    assert waits(num_layers, num_layers - num_streamed, copy_share * stretch) == pytest.approx(0, abs=1e-6)


def test_one_block_of_streamed_layers_waits_for_nearly_every_copy() -> None:
    block = tuple(range(6, 12))
    assert waits(12, 6, 2.0) == pytest.approx(0)
    assert waiting_s(block, 12, copy_s=2.0, compute_s=1.0, num_slots=2) > 3


@given(num_layers=st.integers(1, 40), data=st.data(), copy_s=st.floats(0.1, 20))
def test_waiting_is_what_the_bandwidth_costs_and_a_few_copies_at_most(
    num_layers: int, data: st.DataObject, copy_s: float
) -> None:
    num_resident = data.draw(st.integers(0, num_layers - 1))
    bound = max(0.0, (num_layers - num_resident) * copy_s - num_layers)
    assert bound - 1e-6 <= waits(num_layers, num_resident, copy_s) <= bound + 3 * copy_s + 1e-6


sizes = st.builds(
    LayerSizes,
    num_layers=st.integers(1, 48),
    layer_bytes=st.integers(10**6, 10**9),
    layer_parameters=st.integers(10**5, 10**9),
    hidden_size=st.just(1024),
    intermediate_size=st.just(4096),
    attention_width=st.just(1024),
    vocab_size=st.just(32_000),
    bytes_per_number=st.sampled_from([2, 4]),
    num_slots=st.integers(1, 4),
)
batches = st.fixed_dictionaries({"num_rows": st.integers(1, 64), "longest": st.integers(1, 4096)})
rates = st.fixed_dictionaries({"copy_bytes_per_s": st.floats(1e9, 1e11), "flops_per_s": st.floats(1e12, 1e15)})


@given(sizes=sizes, batch=batches, rates=rates, free_bytes=st.floats(1e8, 2e11))
def test_what_is_resident_fits_and_is_enough_where_memory_allows(
    sizes: LayerSizes, batch: dict[str, int], rates: dict[str, float], free_bytes: float
) -> None:
    try:
        fit = num_that_fit(sizes, **batch, free_bytes=free_bytes)
    except EngineFailed:
        assert sizes.weight_bytes(sizes.allowed(0)) + sizes.activation_bytes(**batch) * 1.2 > free_bytes
        with pytest.raises(EngineFailed):
            num_resident_layers(sizes, **batch, **rates, free_bytes=free_bytes)
        return
    num_resident = num_resident_layers(sizes, **batch, **rates, free_bytes=free_bytes)
    assert num_resident == sizes.allowed(num_resident) <= fit
    assert sizes.weight_bytes(num_resident) + sizes.activation_bytes(**batch) <= free_bytes
    copy_s = sizes.layer_bytes / rates["copy_bytes_per_s"]
    compute_s = sizes.layer_flops(**batch) / rates["flops_per_s"]

    def waited(num: int) -> float:
        streamed = streamed_layers(sizes.num_layers, num)
        return waiting_s(streamed, sizes.num_layers, copy_s=copy_s, compute_s=compute_s, num_slots=sizes.num_slots)

    tolerance = 1e-6 * sizes.num_layers * compute_s
    if num_resident < fit:
        assert waited(num_resident) <= tolerance
    if 0 < num_resident < sizes.num_layers:
        assert waited(num_resident - 1) > 0 or copy_s * (sizes.num_layers - num_resident + 1) > compute_s
    # in words: copy time at most compute time, if memory allows
    if num_resident < fit:
        assert (sizes.num_layers - num_resident) * copy_s <= sizes.num_layers * compute_s + tolerance


@given(rows=st.integers(1, 32), longest=st.integers(16, 8192), more=st.integers(1, 8192))
def test_longer_batches_need_fewer_resident_layers_and_leave_room_for_fewer(rows: int, longest: int, more: int) -> None:
    assert resident(rows, longest + more, free_gb=1000) <= resident(rows, longest, free_gb=1000)
    fits = [num_that_fit(QWEN_7B, num_rows=rows, longest=each, free_bytes=120e9) for each in (longest, longest + more)]
    assert fits[1] <= fits[0]


def test_the_papers_judge_streams_whole_at_16k_tokens_and_keeps_most_layers_at_1k() -> None:
    assert resident(8, 2048) == 0
    assert resident(4, 1024) == 20
    assert resident(1, 1024) == 28
    assert resident(1, 1024, free_gb=5) == 8  # all that fits


def test_layers_as_few_as_the_slots_are_not_streamed() -> None:
    assert QWEN_7B.allowed(25) == 25
    assert QWEN_7B.allowed(26) == 28
    assert QWEN_7B.weight_bytes(25) == 27 * QWEN_7B.layer_bytes
    assert QWEN_7B.weight_bytes(28) == 28 * QWEN_7B.layer_bytes
    assert QWEN_7B.num_that_fit(27.5 * QWEN_7B.layer_bytes) == 25
    assert QWEN_7B.num_that_fit(1.5 * QWEN_7B.layer_bytes) is None


def test_a_pass_that_cannot_fit_is_refused_with_what_it_takes() -> None:
    with pytest.raises(EngineFailed, match=r"0\.93 GB, and 0\.50 GB of the device are free"):
        resident(1, 128, free_gb=0.5)


def test_residency_rises_at_once_and_falls_only_when_it_has_not_been_needed_for_long() -> None:
    residency = Residency()
    assert residency.adapt(needed=20, fit=28) == 20
    for _ in range(PATIENCE_PASSES - 1):
        assert residency.adapt(needed=5, fit=28) == 20
    assert residency.adapt(needed=7, fit=28) == 7


def test_short_and_long_batches_in_turn_move_no_layer() -> None:
    residency = Residency()
    assert {residency.adapt(needed=needed, fit=28) for needed in [20, 3] * 50} == {20}


def test_residency_falls_at_once_where_memory_asks_for_it() -> None:
    residency = Residency(20)
    assert residency.adapt(needed=20, fit=11) == 11


@given(st.lists(st.tuples(st.integers(0, 28), st.integers(0, 28)), max_size=60))
def test_residency_is_never_less_than_needed_nor_more_than_fits(passes: list[tuple[int, int]]) -> None:
    residency = Residency()
    for needed, fit in passes:
        assert min(needed, fit) <= residency.adapt(needed=needed, fit=fit) <= fit


def test_compute_rates_are_those_of_the_nearest_size_that_was_measured() -> None:
    rates = MeasuredRates()
    assert rates.flops_per_s(1000) is None
    rates.measured_compute(1000, 1e12, 1.0)
    rates.measured_compute(16_000, 8e12, 1.0)
    assert rates.flops_per_s(800) == 1e12
    assert rates.flops_per_s(60_000) == 8e12
    rates.measured_compute(1000, 2e12, 1.0)
    assert rates.flops_per_s(1000) == 1.5e12
    rates.measured_copies(100, 2.0)
    rates.measured_copies(0, 0.0)
    assert rates.copy_bytes_per_s == 50
