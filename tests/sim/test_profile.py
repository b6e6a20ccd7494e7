"""Costs from a profile: what was measured comes back, more work never takes less, and a profile that does not fit is
refused."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollpacker.core.errors import ConfigError
from rollpacker.metrics.profile_fits import fit_decode, fit_ending, fit_items, fit_items_and_tokens, fit_prefill
from rollpacker.metrics.profiles import ENGINE_MEASUREMENTS, Point, Profile, ProfileFacts, write_profile
from rollpacker.sim.costs import KV_BLOCK_TOKENS
from rollpacker.sim.decoder import Decoder
from rollpacker.sim.profile import ProfiledCluster
from tests.sim.clusters import SMALL, generation, request, run_out

SIZES = (1, 2, 4, 8, 16)
CONTEXTS = (10, 100, 400)


def point(measurement: str, num_items: float, num_tokens: float, seconds: float, **changes) -> Point:
    return Point(
        measurement=measurement,
        num_items=num_items,
        num_tokens=num_tokens,
        seconds=seconds,
        seconds_low=seconds,
        seconds_high=seconds,
        **{"tensor_parallel": 1, "num_repeats": 5} | changes,
    )


def decode_points(base_s, kv_read_s=1e-6) -> list[Point]:
    return [
        point("decode", size, size * context, base + kv_read_s * size * context)
        for size, base in zip(SIZES, base_s, strict=True)
        for context in CONTEXTS
    ]


def profile(**changes) -> Profile:
    facts = {
        "hardware": "one core",
        "model": SMALL.shape.model_dump_json(),
        "dtype": "bfloat16",
        "num_parameters": SMALL.num_parameters,
        "num_weight_bytes": SMALL.num_weight_bytes,
        "engine": "torch",
        "trainer": "torch",
        "num_engines": 1,
        "engine_threads": 1,
        "trainer_threads": 1,
        "collect_interval_s": 0.03,
        "measured_on": "2026-11-20",
        "rollpacker_version": "0.1",
        "num_trainer_gpus": None,
    }
    points = [
        *decode_points([0.002, 0.002, 0.003, 0.004, 0.006]),
        *(
            point("prefill", n, n * c, 0.003 + 1e-4 * n + 1e-5 * n * c + 1e-8 * n * c * c)
            for n in SIZES
            for c in CONTEXTS
        ),
        point("ending", 8, 800, 0.004 + 8e-4 + 5e-4 * 2, num_ended=2),
        point("ending", 4, 400, 0.003 + 4e-4 + 5e-4 * 1, num_ended=1),
        point("call", 0, 0, 0.002),
        *(point("request", n, 3 * n, 0.004 + 1e-4 * n) for n in SIZES),
        *(point("response", n, n, 0.002 + 1e-4 * n) for n in SIZES),
        *(point("reward", n, 10 * n * n, 0.005 + 1e-5 * n * n) for n in SIZES),
        *(point("train", n, n * c, 0.01 + 1e-3 * n + 1e-5 * n * c) for n in SIZES for c in CONTEXTS),
        *(point("train_forward", n, n * c, 0.005 + 5e-4 * n + 5e-6 * n * c) for n in SIZES for c in CONTEXTS),
        point("update", 0, 0, 0.01),
        point("weight_sync", 1, 0, 0.02, num_bytes=1000),
        point("wake", 0, 0, 0.03),
        point("rollout_start", 0, 0, 0.02),
        point("first_rollout", 0, 0, 0.07),
        point("first_train", 0, 0, 0.06),
        point("kv_cache", 0, 1000, 0, num_bytes=64),
    ]
    return Profile(facts=ProfileFacts(**(facts | changes)), points=tuple(points))


@pytest.fixture
def path(tmp_path) -> Path:
    file = tmp_path / "profile.parquet"
    write_profile(file, profile())
    return file


positive_s = st.floats(1e-4, 1e-1)


@given(st.lists(positive_s, min_size=len(SIZES), max_size=len(SIZES)).map(sorted), st.floats(0, 1e-5))
def test_passes_that_follow_the_form_are_found_exactly(base_s, kv_read_s):
    points = decode_points(base_s, kv_read_s)
    cost = fit_decode(points)
    assert cost.residual < 1e-6
    for measured in points:
        assert cost(measured.num_items, measured.num_tokens) == pytest.approx(measured.seconds, rel=1e-6)


@settings(max_examples=50)
@given(st.lists(positive_s, min_size=15, max_size=15))
def test_every_measured_point_is_met_within_the_residual_that_is_stated(seconds):
    points = [
        point("decode", size, size * context, seconds[index * len(CONTEXTS) + place])
        for index, size in enumerate(SIZES)
        for place, context in enumerate(CONTEXTS)
    ]
    for cost, features in (
        (fit_decode(points), lambda p: (p.num_items, p.num_tokens)),
        (fit_prefill(points), lambda p: (p.num_items, p.num_tokens, p.num_tokens**2 / p.num_items)),
        (fit_items(points), lambda p: (p.num_items,)),
        (fit_items_and_tokens(points), lambda p: (p.num_items, p.num_tokens)),
    ):
        shares = [abs(cost(*features(measured)) / measured.seconds - 1) for measured in points]
        assert max(shares) == pytest.approx(cost.residual)


@settings(max_examples=50)
@given(
    st.lists(positive_s, min_size=15, max_size=15),
    st.tuples(st.floats(1, 40), st.floats(1, 40)),
    st.tuples(st.floats(1, 800), st.floats(1, 800)),
)
def test_a_larger_batch_or_a_longer_context_never_takes_less_however_noisy_the_measurement(seconds, sizes, contexts):
    points = [
        point("decode", size, size * context, seconds[index * len(CONTEXTS) + place])
        for index, size in enumerate(SIZES)
        for place, context in enumerate(CONTEXTS)
    ]
    cost = fit_decode(points)
    (small, large), (short, long) = sorted(sizes), sorted(contexts)
    assert cost(small, small * short) <= cost(large, large * short) * (1 + 1e-9)
    assert cost(large, large * short) <= cost(large, large * long) * (1 + 1e-9)
    assert cost(small, small * short) >= 0
    prefill = fit_prefill(points)
    assert prefill(small, small * short, small * short**2) <= prefill(large, large * long, large * long**2) * (1 + 1e-9)


def test_beyond_the_largest_batch_passes_grow_as_between_the_last_two_and_below_the_smallest_not_at_all():
    cost = fit_decode(decode_points([0.002, 0.002, 0.003, 0.004, 0.006], kv_read_s=0))
    assert cost.base(16) == pytest.approx(0.006)
    assert cost.base(24) == pytest.approx(0.008)
    assert cost.base(12) == pytest.approx(0.005)
    assert cost.base(0.5) == pytest.approx(0.002)


def test_batches_that_shrank_a_little_count_as_the_batch_that_was_meant():
    points = [
        point("decode", 4.0, 40, 0.002),
        point("decode", 3.6, 360, 0.002),
        point("decode", 3.9, 390, 0.002),
        point("decode", 8.0, 80, 0.004),
        point("decode", 7.2, 720, 0.004),
    ]
    assert [round(size, 2) for size in fit_decode(points).sizes] == [3.83, 7.6]


def test_endings_that_cost_nothing_beyond_their_passes_cost_nothing():
    decode = fit_decode(decode_points([0.002, 0.002, 0.003, 0.004, 0.006]))
    assert fit_ending([point("ending", 4, 40, 0.002, num_ended=3)], decode) == 0
    assert fit_ending([point("ending", 4, 40, 0.02, num_ended=0)], decode) == 0


def test_an_engine_takes_what_was_measured(path):
    engine = ProfiledCluster(path, SMALL, "bfloat16").engine(1)
    assert engine.pass_s(4) + 40 * engine.kv_read_s == pytest.approx(0.003 + 40e-6)
    prefill_s = 0.003 + 2e-4 + 1e-5 * 200 + 1e-8 * 2 * 100**2
    assert engine.prefill_pass_s(0, [(0, 100), (0, 100)]) == pytest.approx(prefill_s)
    assert engine.prefill_pass_s(4, [(0, 100), (0, 100)]) == pytest.approx(prefill_s + 0.003)
    assert engine.ending_s == pytest.approx(5e-4)
    assert engine.num_kv_tokens == 1000 // KV_BLOCK_TOKENS * KV_BLOCK_TOKENS


def test_the_others_go_on_later_by_what_an_ending_takes_also_when_cached_tokens_cost_nothing(path):
    measured = ProfiledCluster(path, SMALL, "bfloat16").engine(1)
    decode = replace(measured.decode, kv_read_s=1e-15)
    ends = {}
    for ending_s in (0.0, 0.1):
        decoder = Decoder(replace(measured, decode=decode, ending_s=ending_s), max_num_seqs=4)
        decoder.add([generation(0, 10), generation(1, 20), generation(2, 30), generation(3, 40)], now=0.0)
        decoder.advance()
        decoder.abort([request(1)], now=decoder.next_at_s + 0.001)  # cuts a stretch whose passes are equally long
        ends[ending_s] = [time for time, *_ in run_out(decoder)]
    assert [late - early for early, late in zip(*ends.values(), strict=True)] == pytest.approx(
        [0, 0, 0.1, 0.2], abs=0.02
    )


def test_an_order_before_a_prefill_begins_does_not_make_it_begin_sooner(path):
    ends = []
    for has_order in (False, True):
        measured = replace(ProfiledCluster(path, SMALL, "bfloat16").engine(1), ending_s=1.0)
        decoder = Decoder(measured, max_num_seqs=1)
        decoder.add([generation(0, length=1), generation(1, length=1)], now=0.0)
        while not decoder.advance():
            pass
        if has_order:
            decoder.abort([request(7)], now=0.5)
        ends.append(run_out(decoder)[-1][0])
    assert ends[0] == ends[1] > 1


def test_responses_without_an_advantage_pass_forward_only_in_the_same_call(path):
    trainer = ProfiledCluster(path, SMALL, "bfloat16").trainer(num_gpus=4)
    trained_s, forward_s = 0.01 + 0.002 + 1e-5 * 300, 0.005 + 0.0005 + 5e-6 * 100
    assert trainer.passes_s([100, 200]) == pytest.approx(trained_s)
    assert trainer.passes_s([], forward_only=[100]) == pytest.approx(forward_s)
    assert trainer.passes_s([100, 200], forward_only=[100]) == pytest.approx(trained_s + forward_s - 0.002)
    assert trainer.passes_s([]) == 0
    assert (trainer.num_replicas, trainer.gpus_per_replica) == (1, 4)


def test_a_profile_of_another_model_or_number_format_is_refused_with_what_differs(path):
    wider = SMALL.shape.model_copy(update={"hidden_size": 128})
    with pytest.raises(ConfigError, match="hidden_size 64, not 128"):
        ProfiledCluster(path, type(SMALL)(shape=wider, bytes_per_number=2), "bfloat16")
    with pytest.raises(ConfigError, match="bfloat16, not float32"):
        ProfiledCluster(path, SMALL, "float32")


def test_a_degree_that_was_not_measured_is_refused(path):
    cluster = ProfiledCluster(path, SMALL, "bfloat16")
    assert cluster.degrees == (1,)
    with pytest.raises(ConfigError, match=r"engine.tensor_parallel=2") as caught:
        cluster.engine(2)
    assert "degree 1" in caught.value.allowed
    with pytest.raises(ConfigError, match=r"engine.degrees=2 with hardware.profile"):
        cluster.engine(2, "engine.degrees")


def test_each_degree_has_its_own_times(tmp_path):
    one = profile()
    doubled = [
        Point(
            **{name: getattr(each, name) for name in Point.__slots__}
            | {"tensor_parallel": 2, "seconds": each.seconds / 2}
        )
        for each in one.points
    ]
    path = tmp_path / "both.parquet"
    write_profile(path, Profile(facts=one.facts, points=(*one.points, *doubled)))
    cluster = ProfiledCluster(path, SMALL, "bfloat16")
    assert cluster.degrees == (1, 2)
    assert cluster.engine(2).pass_s(4) == pytest.approx(cluster.engine(1).pass_s(4) / 2)
    assert cluster.weight_transfer_s(2) == pytest.approx(cluster.weight_transfer_s(1) / 2)
    assert cluster.trainer(1).passes_s([100]) == pytest.approx(0.01 + 0.001 + 1e-3)


def test_where_no_endings_were_measured_they_take_no_time_and_that_is_said(tmp_path):
    one, path = profile(), tmp_path / "profile.json"
    write_profile(path, one)
    assert "takes no time" not in ProfiledCluster(path, SMALL, "bfloat16").describe_fit()
    write_profile(path, replace(one, points=tuple(each for each in one.points if each.measurement != "ending")))
    cluster = ProfiledCluster(path, SMALL, "bfloat16")
    assert (cluster.degrees, cluster.engine(1).ending_s) == ((1,), 0)
    assert "the end of a response takes no time in the model" in cluster.describe_fit()


def test_the_fit_that_is_described_is_that_of_all_degrees(tmp_path):
    one, path = profile(), tmp_path / "profile.json"
    seconds = itertools.cycle((1.0, 2.0))
    others = set(ENGINE_MEASUREMENTS) - {"ending"}
    doubled = [
        replace(each, tensor_parallel=2, seconds=each.seconds * (next(seconds) if each.measurement == "decode" else 1))
        for each in one.points
        if each.measurement in others
    ]
    write_profile(path, replace(one, points=(*one.points, *doubled)))
    cluster = ProfiledCluster(path, SMALL, "bfloat16")
    assert f"decoding {cluster.engine(2).decode.residual:.0%}" in cluster.describe_fit()
    assert cluster.engine(2).decode.residual > 0.1
    assert "With tensor parallelism 2 no passes were measured in which a batch shrinks" in cluster.describe_fit()


@pytest.mark.parametrize("measurement", sorted({*ENGINE_MEASUREMENTS} - {"ending"}))
def test_a_degree_that_lacks_a_measurement_is_refused_and_another_one_is_not(tmp_path, measurement):
    one = profile()
    doubled = [replace(each, tensor_parallel=2) for each in one.points if each.measurement in ENGINE_MEASUREMENTS]
    path = tmp_path / "part.json"
    write_profile(path, replace(one, points=(*(set(one.points) - {*one.of(measurement)}), *doubled)))
    cluster = ProfiledCluster(path, SMALL, "bfloat16")
    assert cluster.degrees == (2,)
    assert cluster.engine(2).pass_s(4) > 0
    assert "decoding" in cluster.describe_fit()
    with pytest.raises(ConfigError, match=f"engine.tensor_parallel=1 .* lacks {measurement} of it"):
        cluster.engine(1)


def test_a_profile_knows_the_gpus_that_were_measured_and_says_when_a_run_has_others(tmp_path):
    one = profile(num_engines=2, num_trainer_gpus=4)
    path = tmp_path / "profile.json"
    write_profile(path, one)
    cluster = ProfiledCluster(path, SMALL, "bfloat16")
    assert (cluster.num_engine_gpus, cluster.num_trainer_gpus) == (2, 4)
    assert cluster.note_on_scale(2, 4) == ""
    assert "have 2 and 8 GPUs, and had 2 and 4 when" in cluster.note_on_scale(2, 8)


def test_a_trainer_without_gpus_of_its_own_has_those_of_the_engines(tmp_path):
    path = tmp_path / "profile.json"
    write_profile(path, profile(num_engines=2, num_trainer_gpus=None))
    assert ProfiledCluster(path, SMALL, "bfloat16").num_trainer_gpus == 2


def test_the_model_is_compared_by_its_sizes(path):
    assert json.loads(profile().facts.model)["num_layers"] == SMALL.shape.num_layers
    assert ProfiledCluster(path, SMALL, "bfloat16").hardware == "one core, measured 2026-11-20"
