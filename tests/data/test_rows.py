"""Prompt files of every format, with other names than ours, and with mistakes."""

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollpacker.config.sections.data import DataSection, PromptFile
from rollpacker.core.errors import DataError
from rollpacker.data.prompts import load_prompts
from rollpacker.protocols.references import AnswerReference, JudgeReference
from tests.data.files import write_arrow, write_lines, write_parquet, write_saved, write_saved_splits

GSM8K = [
    {"question": "What is 6 x 7?", "answer": "6 x 7 is 42.\n#### 42"},
    {"question": "What is 10 x 100?", "answer": "It is 1,000 #### 1,000"},
]
LIKE_GSM8K = {
    "columns": {"prompt": "question", "ground_truth": "answer"},
    "answer_after": "####",
    "domain": "math",
}
OURS = [
    {"id": 1, "domain": "math", "prompt": "6 x 7", "ground_truth": "42", "level": 3},
    {"id": 2, "domain": "math", "prompt": "2 x 7", "ground_truth": "14", "level": 1},
]
VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "6 x 7"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "42"},
    "extra_info": {"index": 7, "split": "train"},
}


def write_csv(path):
    path.write_text('id,domain,prompt,ground_truth\n1,math,"6 x 7,\nplease",42\n2,math,2 x 7,14\n')
    return path


def answers(prompts):
    return [prompt.reference.text for prompt in prompts]


def test_a_column_mapping_reads_a_published_parquet_as_it_is(tmp_path):
    path = write_parquet(tmp_path / "train.parquet", GSM8K)
    first, second = load_prompts([PromptFile(path=path, **LIKE_GSM8K, prompt_suffix="Put it in \\boxed{}.")])
    assert first.text == "What is 6 x 7?\nPut it in \\boxed{}."
    assert first.messages == ({"role": "user", "content": first.text},)
    assert answers([first, second]) == ["42", "1,000"]
    assert (first.domain, first.row) == ("math", {})
    assert str(second.line) == f"{path}, row 2"


def test_settings_of_data_hold_for_every_file_that_has_none_of_its_own(tmp_path):
    plain = write_parquet(tmp_path / "a.parquet", GSM8K)
    own = write_parquet(tmp_path / "b.parquet", [{"problem": "1 + 1", "solution": "2"}])
    entry = {"path": str(own), "columns": {"prompt": "problem", "ground_truth": "solution"}, "answer_after": "s: "}
    section = DataSection(path=[str(plain), {**entry, "domain": "sums"}], **LIKE_GSM8K)
    with pytest.raises(DataError, match="nothing after the mark answer_after='s: '"):
        load_prompts(section.files)
    write_parquet(own, [{"problem": "1 + 1", "solution": "so it is: 2"}])
    section = DataSection(path=[str(plain), {**entry, "answer_after": "is: ", "domain": "sums"}], **LIKE_GSM8K)
    assert [(prompt.domain, prompt.reference.text) for prompt in load_prompts(section.files)] == [
        ("math", "42"),
        ("math", "1,000"),
        ("sums", "2"),
    ]


def test_an_entry_turns_a_shared_setting_off(tmp_path):
    shared = write_parquet(tmp_path / "a.parquet", GSM8K)
    own = write_lines(tmp_path / "b.jsonl", *OURS)
    entry = {"path": str(own), "columns": {}, "answer_after": None}
    section = DataSection(path=[str(shared), entry], **LIKE_GSM8K)
    again = DataSection(**section.model_dump(mode="json"))
    for each in (section, again):
        assert answers(load_prompts(each.files)) == ["42", "1,000", "42", "14"]


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_parquet(path / "x.parquet", OURS),
        lambda path: write_parquet(path / "called_otherwise", OURS),
        lambda path: write_saved(path / "saved", OURS),
        lambda path: write_saved_splits(path / "splits", train=OURS),
        lambda path: write_parquet(path / "folder" / "data" / "train-00000-of-00001.parquet", OURS).parents[1],
        lambda path: write_lines(path / "x.jsonl", *OURS),
    ],
    ids=["parquet", "magic", "saved", "splits", "folder", "jsonl"],
)
def test_every_format_gives_the_same_prompts(tmp_path, write):
    prompts = load_prompts([PromptFile(path=write(tmp_path))])
    assert [(prompt.key, prompt.domain, prompt.text, prompt.reference.text) for prompt in prompts] == [
        ("1", "math", "6 x 7", "42"),
        ("2", "math", "2 x 7", "14"),
    ]
    assert [prompt.row for prompt in prompts] == [{"level": 3}, {"level": 1}]


def test_shards_with_a_digest_in_their_names_are_one_split(tmp_path):
    for number, digest in enumerate(("a09b74b3ef9c3b56", "0123456789abcdef")):
        write_parquet(tmp_path / "data" / f"train-0000{number}-of-00002-{digest}.parquet", [OURS[number]])
    prompts = load_prompts([PromptFile(path=tmp_path, split="train")])
    assert [prompt.text for prompt in prompts] == ["6 x 7", "2 x 7"]


def test_an_arrow_file_with_an_index_and_a_csv_are_read(tmp_path):
    path = write_arrow(tmp_path / "x.arrow", pa.Table.from_pylist(OURS))
    assert answers(load_prompts([PromptFile(path=path)])) == ["42", "14"]
    first, _ = load_prompts([PromptFile(path=write_csv(tmp_path / "x.csv"))])
    assert (first.text, first.reference.text) == ("6 x 7,\nplease", "42")


def test_an_answer_in_a_column_of_numbers_has_no_exponent(tmp_path):
    rows = [{"prompt": "10^-5", "domain": "math", "ground_truth": answer} for answer in (1e-05, 0.5)]
    assert answers(load_prompts([PromptFile(path=write_parquet(tmp_path / "x.parquet", rows))])) == ["0.00001", "0.5"]


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_the_schema_of_verl_is_recognised(tmp_path, form):
    rows = [VERL, {**VERL, "prompt": [{"role": "user", "content": "2 x 7"}]}]
    path = tmp_path / f"x.{form}"
    write_parquet(path, rows) if form == "parquet" else write_lines(path, *rows)
    first, second = load_prompts([PromptFile(path=path)])
    assert (first.domain, first.messages, first.reference.text) == ("openai/gsm8k", tuple(VERL["prompt"]), "42")
    assert first.row["extra_info"] == {"index": 7, "split": "train"}
    assert first.key != second.key
    assert load_prompts([PromptFile(path=path, domain="math")])[0].domain == "math"


def test_made_ids_stay_when_the_rows_move_and_count_equal_rows(tmp_path):
    rows = [*GSM8K, GSM8K[0]]
    keys = [prompt.key for prompt in load_prompts([PromptFile(path=write_parquet(tmp_path / "a", rows), **LIKE_GSM8K)])]
    assert keys[2] == f"{keys[0]}-2"
    assert len(set(keys)) == 3
    moved = write_parquet(tmp_path / "b", rows[::-1])
    assert {prompt.key for prompt in load_prompts([PromptFile(path=moved, **LIKE_GSM8K)])} == set(keys)


def test_made_ids_count_equal_rows_of_several_files(tmp_path):
    files = [write_parquet(tmp_path / name, GSM8K) for name in ("a.parquet", "b.parquet")]
    keys = [prompt.key for prompt in load_prompts([PromptFile(path=file, **LIKE_GSM8K) for file in files])]
    assert keys[2:] == [f"{key}-2" for key in keys[:2]]


def test_what_json_does_not_have_becomes_text_or_nothing(tmp_path):
    row = {
        **OURS[0],
        "when": dt.date(2026, 7, 1),
        "price": Decimal("1.50"),
        "image": {"bytes": b"\xff", "path": "x.png"},
    }
    [prompt] = load_prompts([PromptFile(path=write_parquet(tmp_path / "x.parquet", [row]))])
    assert json.loads(json.dumps(prompt.row)) == {
        "level": 3,
        "when": "2026-07-01",
        "price": "1.50",
        "image": {"bytes": None, "path": "x.png"},
    }


def test_nulls_with_which_tables_fill_messages_do_not_reach_the_template(tmp_path):
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    messages = [{"role": "user", "content": "1 + 1"}, call, {"role": "tool", "content": "2"}]
    row = {"id": "a", "domain": "math", "messages": messages, "ground_truth": "2", "tools": '[{"name": "add"}]'}
    [prompt] = load_prompts([PromptFile(path=write_parquet(tmp_path / "x.parquet", [row]), prompt_suffix="Be brief.")])
    assert prompt.messages == (
        {"role": "user", "content": "1 + 1\nBe brief."},
        {**call, "content": ""},
        {"role": "tool", "content": "2"},
    )
    assert prompt.row == {"tools": [{"name": "add"}]}


def test_a_table_mixes_rows_of_several_kinds_by_nulls(tmp_path):
    messages = [{"role": "user", "content": "1 + 1"}]
    rows = [
        {"domain": "math", "prompt": "6 x 7", "messages": None, "ground_truth": "42", "test_cases": [], "rubric": None},
        {
            "domain": "qa",
            "prompt": None,
            "messages": messages,
            "ground_truth": None,
            "test_cases": [],
            "rubric": "Kind.",
        },
        {
            "domain": "game",
            "prompt": "Play.",
            "messages": None,
            "ground_truth": None,
            "test_cases": None,
            "rubric": None,
        },
    ]
    math, judged, played = load_prompts([PromptFile(path=write_parquet(tmp_path / "x.parquet", rows))])
    assert (math.text, math.reference) == ("6 x 7", AnswerReference(text="42"))
    assert (judged.messages, judged.reference) == (tuple(messages), JudgeReference(rubric="Kind.", answer=None))
    assert (played.text, played.reference) == ("Play.", AnswerReference(text=""))


def test_a_prompt_of_messages_is_recognised_beside_messages_that_are_null(tmp_path):
    rows = [{"domain": "math", "prompt": VERL["prompt"], "messages": None, "ground_truth": "42"}]
    [prompt] = load_prompts([PromptFile(path=write_parquet(tmp_path / "x.parquet", rows))])
    assert prompt.messages == tuple(VERL["prompt"])


def test_a_ground_truth_that_is_null_needs_no_mark(tmp_path):
    rows = [{"prompt": "6 x 7", "ground_truth": "#### 42"}, {"prompt": "Hi", "ground_truth": None, "rubric": "Kind."}]
    settings = {"domain": "x", "answer_after": "####"}
    answered, judged = load_prompts([PromptFile(path=write_lines(tmp_path / "x.jsonl", *rows), **settings)])
    assert answered.reference == AnswerReference(text="42")
    assert judged.reference == JudgeReference(rubric="Kind.", answer=None)


def test_ids_that_are_null_are_made_as_if_there_were_none(tmp_path):
    bare = [{name: value for name, value in row.items() if name != "id"} for row in OURS]
    null = [{**row, "id": None} for row in bare]
    made, same = (
        [prompt.key for prompt in load_prompts([PromptFile(path=write_lines(tmp_path / name, *rows))])]
        for name, rows in (("a.jsonl", bare), ("b.jsonl", null))
    )
    assert made == same
    with pytest.raises(DataError, match="line 2: there is an `id`, and the first row has none"):
        load_prompts([PromptFile(path=write_lines(tmp_path / "c.jsonl", null[0], OURS[1]))])


@pytest.mark.parametrize("is_first", [True, False])
def test_a_reward_model_that_is_null_is_a_row_of_verl_without_an_answer(tmp_path, is_first):
    rows = [{**VERL, "reward_model": None, "prompt": "Play."}, VERL]
    path = write_lines(tmp_path / "x.jsonl", *(rows if is_first else rows[::-1]))
    prompts = load_prompts([PromptFile(path=path)])
    assert sorted(answers(prompts)) == ["", "42"]
    assert {prompt.domain for prompt in prompts} == {"openai/gsm8k"}


def test_the_configuration_writes_a_file_as_it_was_given(tmp_path):
    entry = {"path": "hf://openai/gsm8k/main", "split": "train"}
    section = DataSection(path=["x.jsonl", entry])
    assert section.model_dump(mode="json")["path"] == ["x.jsonl", entry]
    assert DataSection.model_validate(section.model_dump(mode="json")) == section


def cut(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def damaged(path):
    content = bytearray(path.read_bytes())
    content[10:60] = b"\x00" * 50
    path.write_bytes(content)
    return path


def broken_state(folder):
    (folder / "state.json").write_text('{"_data_files": "data.arrow"}')
    return folder


def two_configurations(path):
    write_parquet(path / "main" / "train-00000-of-00001.parquet", GSM8K)
    write_parquet(path / "socratic" / "train-00000-of-00001.parquet", GSM8K)
    return path


def two_splits(path):
    write_parquet(path / "train-00000-of-00001.parquet", GSM8K)
    write_parquet(path / "test-00000-of-00001.parquet", GSM8K)
    return path


def empty_parquet(path):
    pq.write_table(pa.table({"question": pa.array([], pa.string())}), path)
    return path


MALFORMED = {
    "no such file": (lambda tmp: tmp / "gsm8k.parquet", {}, ["gsm8k.parquet does not exist", "a folder of these"]),
    "text called Parquet": (
        lambda tmp: write_lines(tmp / "x.parquet", *OURS),
        {},
        ["x.parquet cannot be read as Parquet", "Copy or download it again"],
    ),
    "truncated Parquet": (lambda tmp: cut(write_parquet(tmp / "x.parquet", OURS)), {}, ["cannot be read as Parquet"]),
    "damaged Parquet": (lambda tmp: damaged(write_parquet(tmp / "x.parquet", OURS)), {}, ["cannot be read as Parquet"]),
    "a time beyond those of Python": (
        lambda tmp: write_arrow(tmp / "x.arrow", pa.table({"when": pa.array([10**18], pa.timestamp("s"))})),
        {},
        ["x.arrow has a time that Python cannot hold", "years 1 to 9999"],
    ),
    "empty Parquet": (lambda tmp: empty_parquet(tmp / "x.parquet"), LIKE_GSM8K, ["x.parquet is empty"]),
    "no bytes": (lambda tmp: write_lines(tmp / "x.parquet"), {}, ["cannot be read as Parquet"]),
    "truncated Arrow": (
        lambda tmp: cut(write_saved(tmp / "x", OURS) / "data-00000-of-00001.arrow").parent,
        {},
        ["data-00000-of-00001.arrow cannot be read as Arrow"],
    ),
    "missing Arrow": (
        lambda tmp: (write_saved(tmp / "x", OURS) / "data-00000-of-00001.arrow").unlink() or tmp / "x",
        {},
        ["data-00000-of-00001.arrow does not exist"],
    ),
    "broken state": (
        lambda tmp: broken_state(write_saved(tmp / "x", OURS)),
        {},
        ["does not give a list as `_data_files`"],
    ),
    "CSV with a value too few": (
        lambda tmp: (tmp / "x.csv").write_text("id,prompt\n1,a\n2\n") and tmp / "x.csv",
        {"domain": "math"},
        ["x.csv, row 2: the row has fewer values than the 2 columns"],
    ),
    "CSV with a stray quote": (
        lambda tmp: (tmp / "x.csv").write_text('id,prompt\n1,a\n2,"b" c\n') and tmp / "x.csv",
        {"domain": "math"},
        ["x.csv, row 2: ", "double the quotes"],
    ),
    "CSV with semicolons": (
        lambda tmp: (tmp / "x.csv").write_text("id;prompt\n1;a, b\n") and tmp / "x.csv",
        {},
        ["x.csv has one column, 'id;prompt', whose name has ';'", "Save it with commas"],
    ),
    "ragged CSV": (
        lambda tmp: write_csv(tmp / "x.csv").write_text("id,prompt\n1,a,b\n") and tmp / "x.csv",
        {},
        ["x.csv, row 1: the row has more values than the 2 columns", "Quote values that have commas"],
    ),
    "open quotation mark": (
        lambda tmp: (tmp / "x.csv").write_text(f'prompt,ground_truth\na,1\n"{"x" * (64 << 20)}\n') and tmp / "x.csv",
        {"domain": "math"},
        ["x.csv, row 2: a field has more than 67,108,864 characters", "close its quotation mark"],
    ),
    "no column": (
        lambda tmp: write_parquet(tmp / "x.parquet", GSM8K),
        {**LIKE_GSM8K, "columns": {"prompt": "questoin"}},
        ["x.parquet, row 1: there is no column `questoin`", "`question`, `answer`", "{prompt: question}"],
    ),
    "no nested column": (
        lambda tmp: write_parquet(tmp / "x.parquet", [VERL]),
        {"columns": {"ground_truth": "reward_model.answer"}},
        ["there is no column `reward_model.answer`, which is to be `ground_truth`", "Fields: `style`, `ground_truth`"],
    ),
    "unmapped columns": (
        lambda tmp: write_parquet(tmp / "x.parquet", GSM8K),
        {"domain": "math"},
        ["row 1: the field `messages` or `prompt` is missing", "'data.columns={prompt:question,ground_truth:answer}'"],
    ),
    "no domain": (
        lambda tmp: write_parquet(tmp / "x.parquet", [{"prompt": "a", "ground_truth": "b"}]),
        {},
        ["`domain` is missing", "data.domain=math"],
    ),
    "null question": (
        lambda tmp: write_parquet(tmp / "x.parquet", [*GSM8K, {"question": None, "answer": "#### 1"}]),
        LIKE_GSM8K,
        ["row 3: `question` (as `prompt`) is null"],
    ),
    "number as question": (
        lambda tmp: write_parquet(tmp / "x.parquet", [{"question": 7, "answer": "#### 1"}]),
        LIKE_GSM8K,
        ["`question` (as `prompt`) is 7"],
    ),
    "mixed types": (
        lambda tmp: write_lines(tmp / "x.jsonl", GSM8K[0], {"question": ["a"], "answer": "#### 1"}),
        LIKE_GSM8K,
        ['line 2: `question` (as `prompt`) is ["a"]'],
    ),
    "no mark": (
        lambda tmp: write_parquet(tmp / "x.parquet", [*GSM8K, {"question": "a", "answer": "just 7"}]),
        LIKE_GSM8K,
        ['row 3: `answer` (as `ground_truth`) is "just 7"', "answer_after='####'"],
    ),
    "nothing after the mark": (
        lambda tmp: write_parquet(tmp / "x.parquet", [{"question": "a", "answer": "7 ####  "}]),
        LIKE_GSM8K,
        ["row 1", "nothing after the mark answer_after"],
    ),
    "list as answer": (
        lambda tmp: write_parquet(tmp / "x.parquet", [{**VERL, "reward_model": {"ground_truth": ["42", "42.0"]}}]),
        {},
        ['`reward_model.ground_truth` (as `ground_truth`) is ["42", "42.0"]'],
    ),
    "ids from the second row on": (
        lambda tmp: write_lines(tmp / "x.jsonl", {k: v for k, v in OURS[0].items() if k != "id"}, OURS[1]),
        {},
        ["line 2: there is an `id`, and the first row has none"],
    ),
    "beside a file": (
        lambda tmp: write_parquet(two_configurations(tmp) / "train.parquet", GSM8K).parent,
        {},
        ["holds several data sets: ., main, socratic", "main"],
    ),
    "two configurations": (two_configurations, {}, ["holds several data sets: main, socratic", "Name its folder"]),
    "two splits": (two_splits, {}, ["has several splits, and none is chosen", "test, train"]),
    "wrong split": (two_splits, {"split": "validation"}, ["has no split validation", "Its splits: test, train"]),
    "wrong saved split": (
        lambda tmp: write_saved_splits(tmp / "x", train=OURS, test=OURS),
        {"split": "dev"},
        ["has no split dev", "train, test"],
    ),
    "split of a file": (
        lambda tmp: write_parquet(tmp / "x.parquet", OURS),
        {"split": "train"},
        ["data.split=train", "is one file"],
    ),
    "folder without data": (lambda tmp: tmp, {}, ["holds no data"]),
    "test cases in a table": (
        lambda tmp: write_parquet(tmp / "x.parquet", [{**OURS[0], "test_list": ["assert f() == 1"]}]),
        {},
        ["there are test cases (`test_list`) in a table", "rollpacker data rows from="],
    ),
    "tools that are no list": (
        lambda tmp: write_lines(tmp / "x.jsonl", {**OURS[0], "tools": "add"}),
        {},
        ["`tools` is a string that holds no JSON"],
    ),
    "text in another encoding": (
        lambda tmp: (tmp / "x.csv").write_bytes(b"id,prompt\n1,caf\xe9\n") and tmp / "x.csv",
        {},
        ["x.csv cannot be read as CSV", "utf-8"],
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_is_named_with_row_column_and_what_there_is(tmp_path, name):
    make, settings, words = MALFORMED[name]
    with pytest.raises(DataError) as caught:
        load_prompts([PromptFile(path=make(tmp_path), **settings)])
    assert caught.value.problem
    assert caught.value.allowed
    assert caught.value.remedy
    for word in words:
        assert word in str(caught.value)
