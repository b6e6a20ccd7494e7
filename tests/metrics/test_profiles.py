"""A profile comes back as it was written, or the reader says why not."""

import json
from dataclasses import fields

import pytest

from rollpacker.core.errors import DataError
from rollpacker.metrics.profiles import Point, Profile, ProfileFacts, read_profile, write_profile


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
    }
    return ProfileFacts(**(values | changes))


def test_what_is_written_is_read_and_nothing_else_is_left_in_the_folder(tmp_path):
    profile = Profile(
        facts=facts(), points=(point(), point(measurement="weight_sync", num_items=2, num_tokens=0, num_bytes=4000))
    )
    path = tmp_path / "new" / "profile.json"
    write_profile(path, profile)
    assert read_profile(path) == profile
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
    profile = Profile(facts=facts(), points=(one, two, point(measurement="prefill")))
    assert profile.of("decode") == (one, two)
    assert profile.of("decode", 2) == (two,)
    assert profile.of("decode", 4) == ()


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
    write_profile(path, Profile(facts=facts(), points=(point(),)))
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _a_negative_time(path):
    write_profile(path, Profile(facts=facts(), points=(point(seconds=-0.1),)))


def _no_points(path):
    write_profile(path, Profile(facts=facts(), points=()))


BAD_FILES = {
    _missing: "No such file",
    _text: "expected value",
    _another_file: "it has no 'version'",
    _older: "it has the version 4",
    _with_a_text: "facts.num_engines: Input should be a valid integer",
    _a_negative_time: "impossible point",
    _no_points: "has no points",
}


@pytest.mark.parametrize("spoil", BAD_FILES, ids=lambda spoil: spoil.__name__)
def test_a_file_that_is_no_profile_is_refused_with_the_reason(tmp_path, spoil):
    path = tmp_path / "profile.json"
    spoil(path)
    with pytest.raises(DataError, match=BAD_FILES[spoil]) as caught:
        read_profile(path)
    assert str(path) in caught.value.problem
    assert "rollpacker profile" in caught.value.remedy
