"""A profile comes back as it was written, or the reader says why not."""

import pandas as pd
import pyarrow.parquet as pq
import pytest

from rollpacker.core.errors import DataError
from rollpacker.metrics.profiles import PROFILE, Point, Profile, ProfileFacts, read_profile, write_profile


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
    path = tmp_path / "new" / "profile.parquet"
    write_profile(path, profile)
    assert read_profile(path) == profile
    assert [file.name for file in path.parent.iterdir()] == ["profile.parquet"]


def test_every_column_says_its_unit_and_meaning_and_every_row_is_marked_measured(tmp_path):
    path = tmp_path / "profile.parquet"
    write_profile(path, Profile(facts=facts(), points=(point(),)))
    table = pq.ParquetFile(path).read()
    assert [field.name for field in table.schema] == [column.name for column in PROFILE.columns]
    for field in table.schema:
        assert field.metadata[b"description"]
        assert b"unit" in field.metadata
    assert table.schema.field("seconds").metadata[b"unit"] == b"s"
    assert table["modelled"].to_pylist() == [False]


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


def _another_table(path):
    pd.DataFrame({"seconds": [1.0]}).to_parquet(path)


def _of_two_occasions(path):
    write_profile(path, Profile(facts=facts(), points=(point(), point())))
    frame = pq.ParquetFile(path).read()
    dates = frame.column("measured_on").to_pylist()
    column = frame.schema.get_field_index("measured_on")
    pq.write_table(frame.set_column(column, frame.schema.field(column), [[dates[0], "2026-11-21"]]), path)


def _a_negative_time(path):
    write_profile(path, Profile(facts=facts(), points=(point(seconds=-0.1),)))


def _no_rows(path):
    write_profile(path, Profile(facts=facts(), points=()))


BAD_FILES = {
    _missing: "No such file",
    _text: "magic bytes",
    _another_table: "another kind of file",
    _of_two_occasions: "2 different occasions",
    _a_negative_time: "impossible row",
    _no_rows: "has no rows",
}


@pytest.mark.parametrize("spoil", BAD_FILES, ids=lambda spoil: spoil.__name__)
def test_a_file_that_is_no_profile_is_refused_with_the_reason(tmp_path, spoil):
    path = tmp_path / "profile.parquet"
    spoil(path)
    with pytest.raises(DataError, match=BAD_FILES[spoil]) as caught:
        read_profile(path)
    assert str(path) in caught.value.problem
    assert "rollpacker profile" in caught.value.remedy
