"""A profile comes back as it was written, or the reader says why not."""

import json
import math
from dataclasses import fields, replace

import pytest

from rollpacker.core.errors import DataError
from rollpacker.metrics.profiles import ENGINE_MEASUREMENTS, Point, Profile, ProfileFacts, read_profile, write_profile


def point(**changes) -> Point:
    values = {
        "measurement": "decode",
        "tensor_parallel": 1,
        "num_items": 4,
        "num_tokens": 128,
        "seconds": 0.002,
        "seconds_low": 0.0019,
        "seconds_high": 0.0025,
        "num_repeats": 5,
    }
    return Point(**(values | changes))


def facts(**changes) -> ProfileFacts:
    values = {
        "hardware": "one core",
        "model": "{}",
        "dtype": "float32",
        "num_parameters": 1000,
        "num_weight_bytes": 4000,
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
    return ProfileFacts(**(values | changes))


def profile(*points: Point, **changes) -> Profile:
    """A complete one, with further points, and facts that are changed."""
    measured = [*("prefill", "decode", "ending", "call", "request", "response", "reward", "train", "train_forward")]
    measured += ["update", "weight_sync", "wake", "rollout_start", "first_rollout", "first_train", "kv_cache"]
    return Profile(facts=facts(**changes), points=(*(point(measurement=each) for each in measured), *points))


def test_what_is_written_is_read_and_nothing_else_is_left_in_the_folder(tmp_path):
    whole = profile(point(measurement="kv_cache", num_items=2, num_tokens=9, num_bytes=4000))
    path = tmp_path / "new" / "profile.json"
    write_profile(path, whole)
    assert read_profile(path) == whole
    assert [file.name for file in path.parent.iterdir()] == ["profile.json"]


def test_the_file_is_json_with_the_facts_once_and_a_point_for_each_measurement(tmp_path):
    path = tmp_path / "profile.json"
    write_profile(path, Profile(facts=facts(), points=(point(), point(tensor_parallel=2))))
    plain = json.loads(path.read_text())
    assert plain["facts"] == vars_of(facts())
    assert [each["tensor_parallel"] for each in plain["points"]] == [1, 2]
    assert plain["points"][0] == vars_of(point())


def vars_of(value):
    return {field.name: getattr(value, field.name) for field in fields(value)}


def test_points_are_found_by_measurement_and_tensor_parallelism():
    one, two = point(), point(tensor_parallel=2)
    measured = Profile(facts=facts(), points=(one, two, point(measurement="prefill")))
    assert measured.of("decode") == (one, two)
    assert measured.of("decode", 2) == (two,)
    assert measured.of("decode", 4) == ()


def _missing(path):
    pass


def _text(path):
    path.write_text("seconds\n1\n")


def _another_file(path):
    path.write_text('{"seconds": [1.0]}')


def _older(path):
    _changed(path, version=4)


def _with_a_text(path):
    _changed(path, facts=vars_of(facts()) | {"num_engines": "one"})


def _changed(path, **changes):
    write_profile(path, profile())
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


BAD_FILES = {
    _missing: "No such file",
    _text: "expected value",
    _another_file: "it has no 'version'",
    _older: "it has the version 4",
    _with_a_text: "facts.num_engines: Input should be a valid integer",
}


@pytest.mark.parametrize("spoil", BAD_FILES, ids=lambda spoil: spoil.__name__)
def test_a_file_that_is_no_profile_is_refused_with_the_reason(tmp_path, spoil):
    path = tmp_path / "profile.json"
    spoil(path)
    with pytest.raises(DataError, match=BAD_FILES[spoil]) as caught:
        read_profile(path)
    assert str(path) in caught.value.problem
    assert "rollpacker profile" in caught.value.remedy


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (profile(point(seconds=-0.1)), r"points\.16\.seconds: Input should be greater than or equal to 0"),
        (profile(point(seconds=math.nan)), "seconds: Input should be a finite number"),
        (profile(point(seconds=math.inf)), "seconds: Input should be a finite number"),
        (profile(point(seconds_low=math.nan)), "seconds_low"),
        (profile(point(seconds_high=math.inf)), "seconds_high"),
        (profile(point(num_tokens=1e200)), "num_tokens: Input should be less than or equal to 1000000000000000"),
        (profile(point(num_bytes=10**400)), "num_bytes"),
        (profile(point(num_ended=-1.0)), "num_ended"),
        (profile(point(num_items=-1.0)), "num_items"),
        (profile(point(num_repeats=-1)), "num_repeats"),
        (profile(point(num_items=0)), "a point of no items"),
        (profile(point(num_items=0, measurement="prefill")), "a point of no items"),
        (profile(point(num_items=0, measurement="ending")), "a point of no items"),
        (profile(point(tensor_parallel=0)), "tensor_parallel"),
        (profile(point(measurement="decoding")), "the unknown measurement `decoding`"),
        (profile(num_engines=0), r"facts\.num_engines: Input should be greater than or equal to 1"),
        (profile(num_trainer_gpus=-1), "num_trainer_gpus"),
        (profile(collect_interval_s=math.nan), "collect_interval_s"),
        (profile(num_weight_bytes=-1), "num_weight_bytes"),
        (profile(num_parameters=-1), "num_parameters"),
        (profile(model="hello"), "its model is no JSON object: hello"),
        (profile(model="[1]"), "its model is no JSON object"),
    ],
)
def test_what_cannot_have_been_measured_is_refused(tmp_path, bad, fault):
    path = tmp_path / "profile.json"
    write_profile(path, bad)
    with pytest.raises(DataError, match=fault):
        read_profile(path)


@pytest.mark.parametrize(
    "measurement", sorted({each.measurement for each in profile().points} - {*ENGINE_MEASUREMENTS})
)
def test_a_profile_that_lacks_a_measurement_is_refused(tmp_path, measurement):
    path, whole = tmp_path / "profile.json", profile()
    write_profile(path, replace(whole, points=tuple(set(whole.points) - {*whole.of(measurement)})))
    with pytest.raises(DataError, match=f"no measurement `{measurement}`"):
        read_profile(path)
