"""What tables add to rows, and what of them cannot be read as it was meant."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollpacker.config.sections.data import PromptFile
from rollpacker.core.errors import DataError
from rollpacker.data.prompts import load_prompts
from tests.data.files import write_arrow, write_parquet


def function(name, **parameters):
    return {"name": name, "parameters": {each: {"type": kind} for each, kind in parameters.items()}}


def call(name, **arguments):
    return {"function": {"name": name, "arguments": arguments}}


def test_functions_and_calls_of_a_table_have_their_own_parameters_alone(tmp_path):
    tools = [function("weather", city="string"), function("add", a="number", b="number")]
    calling = {"role": "assistant", "content": "", "tool_calls": [call("weather", city="Rome"), call("add", a=1, b=2)]}
    messages = [{"role": "user", "content": "hi"}, calling, {"role": "tool", "content": "ok"}]
    row = {"id": "a", "domain": "d", "messages": messages, "tools": tools, "level": {"of": None, "is": [None]}}
    [prompt] = load_prompts([PromptFile(path=write_parquet(tmp_path / "x.parquet", [row]))])
    assert prompt.row == {"tools": tools, "level": {"of": None, "is": [None]}}
    assert prompt.messages == tuple(messages)


def test_a_null_that_a_schema_has_as_json_in_a_table_stays(tmp_path):
    row = {"id": "a", "domain": "d", "prompt": "hi", "tools": '[{"name": "f", "default": null}]'}
    [prompt] = load_prompts([PromptFile(path=write_parquet(tmp_path / "x.parquet", [row]))])
    assert prompt.row["tools"] == [{"name": "f", "default": None}]


def test_bytes_that_are_utf_8_are_text(tmp_path):
    row = {"domain": b"d", "prompt": "6 \u00d7 7".encode(), "ground_truth": b"42", "image": b"\x89PNG"}
    [prompt] = load_prompts([PromptFile(path=write_parquet(tmp_path / "x.parquet", [row]))])
    assert (prompt.text, prompt.reference.text, prompt.row) == ("6 \u00d7 7", "42", {"image": None})


def test_a_time_zone_that_is_not_found_is_no_damage_of_the_file(tmp_path):
    path = write_arrow(tmp_path / "x.arrow", pa.table({"when": pa.array([0], pa.timestamp("us", "Mars/Phobos"))}))
    with pytest.raises(DataError, match="has a time zone that Python does not find"):
        load_prompts([PromptFile(path=path)])


@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_columns_of_the_same_name_are_refused(tmp_path, name):
    path = tmp_path / name
    if name == "x.csv":
        path.write_text("id,prompt,prompt,domain\n1,a,b,d\n")
    else:
        pq.write_table(pa.table([["1"], ["a"], ["b"], ["d"]], names=["id", "prompt", "prompt", "domain"]), path)
    with pytest.raises(DataError, match=r"has 2 columns called `prompt`\n.* environments get all"):
        load_prompts([PromptFile(path=path)])


def test_columns_without_a_name_which_spreadsheets_leave_are_no_matter(tmp_path):
    (tmp_path / "x.csv").write_text("id,prompt,domain,, , \n1,a,d,,,\n")
    [prompt] = load_prompts([PromptFile(path=tmp_path / "x.csv")])
    assert prompt.text == "a"


TEXT = 'id,domain,prompt\n1,d,"{""é"": 1}"\n'


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl"])
@pytest.mark.parametrize(
    ("raw", "remedy"),
    [
        (gzip.compress(TEXT.encode()), "Decompress the file"),
        (b"\x28\xb5\x2f\xfd" + TEXT.encode(), "Decompress the file"),
        (b"PK\x03\x04\xff" + TEXT.encode(), "Decompress the file; save a spreadsheet as CSV in UTF-8"),
        (TEXT.encode("utf-16"), "`iconv -f utf-16 -t utf-8`"),
        (TEXT.encode("utf-32"), "`iconv -f utf-32 -t utf-8`"),
        (TEXT.replace("id,domain,prompt\n", "").encode("latin1"), "`iconv -f latin1 -t utf-8`"),
    ],
    ids=["gzip", "zstd", "zip", "UTF-16", "UTF-32", "Latin-1"],
)
def test_a_text_that_is_not_utf_8_is_refused_with_how_it_becomes_that(tmp_path, name, raw, remedy):
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(DataError) as caught:
        load_prompts([PromptFile(path=tmp_path / name)])
    assert remedy in caught.value.remedy


def test_numbers_of_float32_are_the_decimals_that_were_written(tmp_path):
    numbers = pa.array([0.1, 1e-05, 16777216, None], pa.float32())
    nested = pa.StructArray.from_arrays([numbers, pa.array([[0.3]] * 4, pa.list_(pa.float32()))], ["score", "scores"])
    columns = {"prompt": ["a", "b", "c", "d"], "domain": ["math"] * 4, "ground_truth": numbers, "extra": nested}
    pq.write_table(pa.table(columns).slice(0, 3), tmp_path / "x.parquet")
    prompts = load_prompts([PromptFile(path=tmp_path / "x.parquet")])
    assert [prompt.reference.text for prompt in prompts] == ["0.1", "0.00001", "16777216.0"]
    assert prompts[0].row == {"extra": {"score": 0.1, "scores": [0.3]}}
    assert load_prompts([PromptFile(path=tmp_path / "x.parquet", columns={"ground_truth": "extra.score"})])


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (pa.large_list(pa.float32()), [0.1], [0.1]),
        (pa.list_(pa.float32(), 2), [0.1, 0.2], [0.1, 0.2]),
        (pa.map_(pa.string(), pa.float32()), {"a": 0.1}, [["a", 0.1]]),
        (pa.large_list(pa.list_(pa.map_(pa.float32(), pa.int8()), 1)), [[{0.1: 1}]], [[[[0.1, 1]]]]),
    ],
    ids=str,
)
def test_numbers_of_float32_are_decimals_in_lists_and_maps_of_every_kind(tmp_path, kind, value, read):
    columns = {"prompt": ["a", "b"], "domain": ["math"] * 2, "ground_truth": ["1"] * 2}
    path = write_arrow(tmp_path / "x.arrow", pa.table(columns | {"extra": pa.array([value, None], kind)}))
    assert [prompt.row for prompt in load_prompts([PromptFile(path=path)])] == [{"extra": read}, {"extra": None}]


def test_a_field_of_csv_may_be_as_long_as_a_line_of_json(tmp_path):
    problem = "x" * 200_000
    path = tmp_path / "x.csv"
    path.write_text(f'id,domain,prompt,ground_truth\n1,math,"{problem}",42\n')
    [prompt] = load_prompts([PromptFile(path=path)])
    assert prompt.text == problem
