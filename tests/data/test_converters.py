"""Converters of published sets, each with rows as they are published."""

import base64
import json
import os
import pickle
import zlib
from pathlib import Path

import pytest

from rollpacker.config.sections.data import PromptFile
from rollpacker.config.sections.reward import RewardSection
from rollpacker.core.errors import DataError
from rollpacker.data import converters
from rollpacker.data.converters import CONVERTERS, INSTRUCTION, Converted, convert_rows
from rollpacker.data.prompts import load_prompts
from rollpacker.data.test_cases import load_test_cases
from rollpacker.protocols.references import CallCase, StdinCase
from rollpacker.rewards.factory import check_references
from tests.data.files import write_cached, write_lines, write_parquet

DAPO_PROMPT = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n1 + 1?\n\nRemember to put your answer "
    'on its own line after "Answer:".'
)


def dapo(answer):
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": DAPO_PROMPT, "role": "user"}],
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b6eb4"},
    }


def packed(cases):
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


def livecodebench(**fields):
    return {
        "question_title": "Double",
        "question_content": "Print twice the number.",
        "platform": "atcoder",
        "starter_code": "",
        "difficulty": "easy",
        "public_test_cases": json.dumps([{"input": "1\n", "output": "2\n", "testtype": "stdin"}]),
        "private_test_cases": packed([{"input": "4\n", "output": "8\n", "testtype": "stdin"}]),
        "metadata": "{}",
        **fields,
    }


FUNCTION = livecodebench(
    starter_code="class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
    public_test_cases=json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
    private_test_cases=packed([{"input": "4\n5", "output": "9", "testtype": "functional"}]),
    metadata='{"func_name": "add"}',
)
GPQA = (
    "Record ID,Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3\n"
    'rec1,"Which, of these?",the right one,wrong a,wrong b,wrong c\n'
)


def gsm8k(folder):
    for place, answer in (("main/train", "1,042"), ("main/test", "7"), ("socratic/train", "other")):
        row = {"question": "How many?", "answer": f"So it is {answer}.\n#### {answer}"}
        write_parquet(folder / f"{place}-00000-of-00001.parquet", [row])
    return "train"


def gpqa(folder):
    (folder / "gpqa_diamond.csv").write_text(GPQA)
    (folder / "gpqa_main.csv").write_text(GPQA)


AIME = {"problem": "Find x.", "id": 60, "url": "u", "year": "2024"}
PUBLISHED = {
    "gsm8k": (gsm8k, "How many?", "1042"),
    "math500": (
        lambda folder: write_lines(
            folder / "test.jsonl", {**AIME, "answer": "\\frac{3}{4}", "solution": "so", "level": 2}
        ),
        "Find x.",
        "\\frac{3}{4}",
    ),
    "aime24": (
        lambda folder: write_parquet(folder / "data/train-00000-of-00001.parquet", [{**AIME, "answer": "204"}]),
        "Find x.",
        "204",
    ),
    "aime24 of math-ai": (
        lambda folder: write_parquet(
            folder / "data/test-00000-of-00001.parquet", [{**AIME, "solution": "\\boxed{204}"}]
        ),
        "Find x.",
        "204",
    ),
    "aime24 of a solution": (
        lambda folder: write_lines(
            folder / "test.jsonl",
            {**AIME, "solution": "As \\boxed{x}, so \\boxed {\\left\\{\\frac{1}{2}, 3\\right.}. Or \\boxed{4"},
        ),
        "Find x.",
        "\\left\\{\\frac{1}{2}, 3\\right.",
    ),
    "aime25": (
        lambda folder: write_lines(folder / "test.jsonl", {"problem": "Find x.", "answer": "70"}),
        "Find x.",
        "70",
    ),
    "amc23": (
        lambda folder: write_parquet(folder / "data/test-0.parquet", [{"question": "Find x.", "answer": 27.0}]),
        "Find x.",
        "27",
    ),
    "dapo-17k": (lambda folder: write_parquet(folder / "data/dapo-math-17k.parquet", [dapo("34")]), "1 + 1?", "34"),
    "gpqa": (gpqa, "Which, of these?", None),
}


def convert(name, folder, split=None):
    counts = Converted()
    out = folder.parent / "out.jsonl"
    out.write_bytes(b"".join(convert_rows(CONVERTERS[name], folder, split, counts)))
    return load_prompts([PromptFile(path=out)]), counts


@pytest.mark.parametrize("case", PUBLISHED)
def test_a_published_set_becomes_prompts_that_its_reward_takes(tmp_path, case):
    write, question, answer = PUBLISHED[case]
    name, folder = case.partition(" ")[0], tmp_path / "set"
    folder.mkdir()
    split = write(folder)
    [prompt], counts = convert(name, folder, split if isinstance(split, str) else None)
    text = prompt.messages[0]["content"]
    assert text.startswith(question)
    assert "\\boxed{}" in text
    assert "Remember" not in text
    if answer is None:
        assert f"{prompt.reference.text}) the right one" in text
    else:
        assert prompt.reference.text == answer
        assert text == f"{question}\n\n{INSTRUCTION}"
    assert (prompt.key, prompt.domain, counts.num_rows) == (f"{name}-1", CONVERTERS[name].domain, 1)
    check_references(RewardSection(name=CONVERTERS[name].reward), [prompt])


@pytest.mark.parametrize(("row", "kind"), [(livecodebench(), StdinCase), (FUNCTION, CallCase)])
def test_livecodebench_has_all_of_its_cases_unpacked(tmp_path, row, kind):
    write_lines(tmp_path / "set" / "test.jsonl", row)
    write_lines(tmp_path / "set" / "test2.jsonl", {**row, "question_content": "Another one."})
    prompts, _ = convert("livecodebench", tmp_path / "set")
    assert len(prompts) == 2
    assert [[type(case) for case in load_test_cases(each.reference)] for each in prompts] == [[kind] * 2] * 2
    assert ("class Solution" in prompts[0].messages[0]["content"]) == (kind is CallCase)


def test_repeated_and_contradicted_rows_are_left_out_and_counted(tmp_path):
    write_parquet(tmp_path / "set" / "x.parquet", [dapo("34"), dapo("34"), dapo("35"), dapo("34")])
    [prompt], counts = convert("dapo-17k", tmp_path / "set")
    assert prompt.reference.text == "34"
    assert (counts.num_rows, counts.num_repeated, counts.num_contradicted) == (1, 2, 1)


def test_a_table_with_test_cases_becomes_lines_without_change(tmp_path):
    row = {"id": "a", "domain": "code", "prompt": "Add.", "test_list": ["assert add(1, 2) == 3"]}
    write_parquet(tmp_path / "set" / "x.parquet", [row])
    [prompt], _ = convert("rows", tmp_path / "set")
    assert len(load_test_cases(prompt.reference)) == 1


class _Runs:
    """A pickle that would run a program."""

    def __reduce__(self):
        return os.system, ("echo ran > ran",)


@pytest.mark.parametrize(
    "private",
    [
        base64.b64encode(zlib.compress(pickle.dumps(_Runs()))).decode(),
        base64.b64encode(zlib.compress(pickle.dumps("[1]"))[:-5]).decode(),
        base64.b64encode(b"no zlib").decode(),
        "no base64",
        packed({"input": 1}),
    ],
    ids=["code", "cut", "zlib", "base64", "object"],
)
def test_packed_cases_that_are_no_text_of_json_are_refused_and_run_nothing(tmp_path, monkeypatch, private):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "set" / "test.jsonl", livecodebench(private_test_cases=private))
    with pytest.raises(DataError, match=r"line 1: .private_test_cases"):
        convert("livecodebench", tmp_path / "set")
    assert not (tmp_path / "ran").exists()


def test_another_set_than_the_named_one_is_refused_with_its_columns(tmp_path):
    write_parquet(tmp_path / "set" / "x.parquet", [{"text": "a"}])
    for name in CONVERTERS.keys() - {"rows", "gpqa"}:
        with pytest.raises(DataError, match="Fields of this line: `text`"):
            convert(name, tmp_path / "set")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1.0, float("-inf")], {"deep": [float("nan")]}])
def test_a_number_that_json_does_not_have_is_refused_with_its_row_and_column(tmp_path, value):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"id": "a", "score": 0.5}) + "\n" + json.dumps({"id": "b", "score": value}) + "\n")
    with pytest.raises(DataError, match="line 2: `score` holds NaN or an infinite number"):
        list(convert_rows(CONVERTERS["rows"], path, None, Converted()))


@pytest.mark.parametrize(
    ("name", "row", "words"),
    [
        ("aime24", {"problem": "1 + 1?", "answer": True}, "`answer` is true"),
        ("aime24", {"problem": "1 + 1?", "answer": ["1"]}, '`answer` is ["1"]'),
        ("aime24", {"problem": {"text": "1 + 1?"}, "answer": 2}, "`problem` is {"),
        ("aime24", {"problem": "1 + 1?", "answer": float("inf")}, "`answer` is Infinity"),
        ("gsm8k", {"question": "1 + 1?", "answer": "It is 2 #### "}, "`answer` has nothing after ####"),
        ("gsm8k", {"question": ["1 + 1?"], "answer": "#### 2"}, '`question` is ["1'),
        ("dapo-17k", dapo(["2"]), '`reward_model.ground_truth` is ["2"]'),
        ("dapo-17k", {**dapo("2"), "prompt": " "}, "`prompt` is"),
        ("gpqa", {"Question": "1 + 1?", "Correct Answer": [2]}, "`Correct Answer` is [2]"),
        ("livecodebench", livecodebench(question_content={"text": "Double"}), "`question_content` is {"),
    ],
)
def test_what_is_no_text_and_no_number_is_refused_with_its_row(tmp_path, name, row, words):
    write_lines(tmp_path / "set" / "gpqa_diamond.jsonl", row)
    with pytest.raises(DataError) as caught:
        convert(name, tmp_path / "set")
    assert words in caught.value.problem
    assert "line 1" in caught.value.problem


def test_a_row_that_is_too_long_to_be_read_as_a_line_is_left_out_and_counted(tmp_path, monkeypatch):
    write_lines(tmp_path / "rows.jsonl", {"id": "a", "prompt": "x" * 100}, {"id": "b", "prompt": "x" * 101})
    lines = list(convert_rows(CONVERTERS["rows"], tmp_path / "rows.jsonl", None, Converted()))
    monkeypatch.setattr(converters, "MAX_LINE_BYTES", len(lines[0]))
    counts = Converted()
    assert list(convert_rows(CONVERTERS["rows"], tmp_path / "rows.jsonl", None, counts)) == lines[:1]
    assert (counts.num_rows, counts.num_too_long) == (1, 1)


def test_a_row_that_is_nested_as_deep_as_it_can_be_read_is_written(tmp_path):
    (tmp_path / "rows.jsonl").write_text(f'{{"x": {"[" * 800}{"]" * 800}}}\n')
    (line,) = convert_rows(CONVERTERS["rows"], tmp_path / "rows.jsonl", None, Converted())
    assert line == (tmp_path / "rows.jsonl").read_bytes()


def test_the_split_of_a_cached_set_is_asked_for_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    write_cached(tmp_path, "dataset", "openai/gsm8k", {"main/train.csv": "", "main/test.csv": ""})
    with pytest.raises(DataError, match="hf://openai/gsm8k/main has several splits"):
        list(convert_rows(CONVERTERS["gsm8k"], Path("hf://openai/gsm8k"), None, Converted()))


def test_nulls_with_which_a_table_fills_tools_and_messages_are_not_written(tmp_path):
    tools = [{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {"b": 2}}]
    row = {"id": 1, "domain": "d", "prompt": "hi", "tools": tools, "extra": None}
    write_parquet(tmp_path / "set" / "x.parquet", [row])
    (line,) = convert_rows(CONVERTERS["rows"], tmp_path / "set", None, Converted())
    assert json.loads(line) == row
