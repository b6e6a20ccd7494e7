"""What responses are held against, as it stands in prompt files; `mixed.jsonl` has a line of every kind."""

import json
import pickle
import tracemalloc
from pathlib import Path

import pytest

from rollpacker.config.sections.data import PromptFile
from rollpacker.core.errors import DataError
from rollpacker.data import prompts as reading
from rollpacker.data.test_cases import load_test_cases
from rollpacker.protocols.references import (
    AnswerReference,
    AssertCase,
    CallCase,
    CaseLimits,
    CodeReference,
    JudgeReference,
    StdinCase,
)
from tests.data.files import write_lines

MIXED = Path(__file__).parent / "mixed.jsonl"
NO_LIMITS = CaseLimits()
CODE = {"id": "a", "domain": "code", "prompt": "Write f(x)."}


def load_prompts(*paths, domain=None):
    return reading.load_prompts([PromptFile(path=path, domain=domain) for path in paths])


@pytest.fixture(scope="module")
def references():
    return {prompt.key: prompt.reference for prompt in load_prompts(MIXED)}


def shape(case):
    match case:
        case StdinCase():
            return case.input, case.output, case.limits
        case CallCase():
            return case.args, case.accepted, case.limits
        case AssertCase():
            return case.source, case.limits


def test_answers_and_rubrics_are_held_by_the_prompt(references):
    assert references["math-1"] == AnswerReference(text="42")
    assert references["walk-1"] == AnswerReference(text="3 20")
    assert references["judge-1"].rubric.startswith("Right, and")
    assert references["judge-2"] == JudgeReference(rubric=None, answer="Goethe")


@pytest.mark.parametrize(
    ("key", "entry_point", "cases"),
    [
        (
            "stdin-1",
            None,
            [
                ("3\n", "9\n", CaseLimits(time_s=4, memory_mb=256)),
                ("-4\n", "16\n", CaseLimits(time_s=1.5, memory_mb=256)),
            ],
        ),
        ("call-1", "add", [((1, 2), (3,), NO_LIMITS), (("a", "b"), ("ab",), NO_LIMITS)]),
        (
            "assert-1",
            None,
            [
                ("from solution import square\nassert square(3) == 9", NO_LIMITS),
                ("from solution import square\nassert square(0) == 0", NO_LIMITS),
            ],
        ),
        ("taco-1", None, [("1 2\n", "3\n", NO_LIMITS), ("3 4\n", "7\n", NO_LIMITS)]),
        ("taco-2", "total", [(([1, 2],), ([3], 3), NO_LIMITS), (([],), ([0], 0), NO_LIMITS)]),
        ("lcb-1", "twice", [(("ab", 2), ("abab",), NO_LIMITS)]),
        ("mbpp-1", None, [("from solution import first\nassert first([1, 2]) == 1", NO_LIMITS)]),
        (
            "kodcode-1",
            "double",
            [("from solution import double\n\ndef test_double():\n    assert double(2) == 4\n", NO_LIMITS)],
        ),
    ],
)
def test_test_cases_of_every_form_are_read_from_the_file_when_they_are_needed(references, key, entry_point, cases):
    reference = pickle.loads(pickle.dumps(references[key]))  # noqa: S301 as it comes to the process that scores
    assert reference.entry_point == entry_point
    assert [shape(case) for case in load_test_cases(reference)] == cases


@pytest.mark.parametrize(
    ("outputs", "accepted"),
    [
        ([[3], [0]], [([3], 3), ([0], 0)]),
        ([[[1, 2]], [[]]], [([[1, 2]], [1, 2]), ([[]], [])]),
        ([[1, 2, 3], [4]], [([1, 2, 3],), ([4],)]),
        ([[5], []], [([5],), ([],)]),
        ([3, [0]], [(3,), ([0],)]),
        (["ab", "c"], [("ab",), ("c",)]),
    ],
)
def test_the_element_of_a_list_is_accepted_only_where_all_outputs_are_lists_of_one(tmp_path, outputs, accepted):
    row = {**CODE, "input_output": {"fn_name": "f", "inputs": [[1], [2]], "outputs": outputs}}
    [prompt] = load_prompts(write_lines(tmp_path / "p.jsonl", row))
    assert [case.accepted for case in load_test_cases(prompt.reference)] == accepted


def test_a_prompt_with_megabytes_of_test_cases_is_small_on_its_way(tmp_path):
    """Neither reading the file nor what is sent per response grows with the test cases."""
    rows = [
        {**CODE, "id": number, "test_cases": [{"input": "7 " * 500_000, "output": str(number)}]} for number in range(12)
    ]
    path = write_lines(tmp_path / "p.jsonl", *rows)
    del rows
    tracemalloc.start()
    prompts = load_prompts(path)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 100_000
    assert peak < 8_000_000  # a line of 1 MB, its text, and what is parsed of it
    assert len(pickle.dumps(prompts[5])) < 1000
    [case] = load_test_cases(prompts[5].reference)
    assert (len(case.input), case.output) == (1_000_000, "5")


def test_a_file_that_was_changed_during_the_run_is_refused(tmp_path):
    path = write_lines(tmp_path / "p.jsonl", {**CODE, "test_cases": ["assert f(1) == 1"]})
    [prompt] = load_prompts(path)
    write_lines(path, {**CODE, "test_cases": ["assert f(1) == 2"]})
    with pytest.raises(DataError, match="line 1 is not what it was when the run began"):
        load_test_cases(prompt.reference)
    path.unlink()
    with pytest.raises(DataError, match="does not exist"):
        load_test_cases(prompt.reference)


def test_a_line_is_found_again_behind_a_byte_order_mark_and_blank_lines(tmp_path):
    path = tmp_path / "p.jsonl"
    lines = [json.dumps({**CODE, "id": number, "test_cases": [f"assert f({number})"]}) for number in range(3)]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\n \n".join(lines).encode())
    cases = [load_test_cases(prompt.reference)[0] for prompt in load_prompts(path)]
    assert [case.source.split("\n")[-1] for case in cases] == ["assert f(0)", "assert f(1)", "assert f(2)"]


def test_blank_fields_of_converted_data_sets_do_not_count(tmp_path):
    row = {**CODE, "test_cases": "", "rubric": None, "test": " ", "ground_truth": "5"}
    [prompt] = load_prompts(write_lines(tmp_path / "p.jsonl", row))
    assert prompt.reference == AnswerReference(text="5")


def test_an_empty_list_beside_test_cases_does_not_count(tmp_path):
    row = {**CODE, "test_cases": [], "test_list": ["assert f(1) == 1"], "entry_point": "f"}
    [prompt] = load_prompts(write_lines(tmp_path / "p.jsonl", row))
    [case] = load_test_cases(prompt.reference)
    assert "assert f(1) == 1" in case.source


def test_a_rubric_that_is_null_is_no_name_that_was_misspelt(tmp_path):
    [prompt] = load_prompts(write_lines(tmp_path / "p.jsonl", {**CODE, "rubric": None}))
    assert prompt.reference == AnswerReference(text="")


def test_a_rubric_takes_the_ground_truth_as_its_answer(tmp_path):
    row = {**CODE, "rubric": "Be kind.", "ground_truth": 5}
    [prompt] = load_prompts(write_lines(tmp_path / "p.jsonl", row))
    assert prompt.reference == JudgeReference(rubric="Be kind.", answer="5")


STDIN = {"input": "1", "output": "2"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"test_case": []},
            ["`ground_truth` or `test_cases` or `rubric` is missing", "rename `test_case` to `test_cases`"],
        ),
        ({"test_cases": []}, ["`test_cases` holds no test case"]),
        ({"test_cases": {}}, ["`test_cases` is {}", "a list of test cases", "Write it in square brackets"]),
        ({"test_cases": {"inputs": ["1"], "outputs": ["1"]}}, ["a list of test cases", "Call it `input_output`"]),
        ({"test_cases": "[1"}, ["`test_cases` is a string that holds no JSON"]),
        ({"test_cases": [STDIN, 5]}, ["`test_cases[1]` is 5", '{"input": TEXT, "output": TEXT}']),
        ({"test_cases": [{"input": "1"}]}, ['`test_cases[0]` is {"input": "1"}']),
        ({"test_cases": [{**STDIN, "outptu": "2"}]}, ["`test_cases[0]` has the unknown field `outptu`", "`output`?"]),
        ({"test_cases": [{"input": 1, "output": "2"}]}, ["`test_cases[0].input` is 1", "a text"]),
        ({"test_cases": [{"args": 1, "expected": 2}], "entry_point": "f"}, ['`test_cases[0]` is {"args": 1']),
        ({"test_cases": [{"args": [1], "expected": 2}]}, ["no function is named", "Add `entry_point`"]),
        ({"test_cases": ["assert f()"], "entry_point": "f()"}, ['the entry point is "f()"', "without brackets"]),
        ({"test_cases": [" "]}, ["`test_cases[0]` is blank"]),
        (
            {"test_cases": [{"args": [1], "expected": [1, float("nan")]}], "entry_point": "f"},
            ["`test_cases[0]` expects NaN"],
        ),
        (
            {"test_list": ["assert f(1)"], "test_imports": "import math"},
            ["`test_imports` is a string that holds no JSON"],
        ),
        ({"test_cases": [STDIN, "assert f()"]}, ["`test_cases[1]` is of another style than `test_cases[0]`"]),
        ({"test_cases": [{**STDIN, "time_limit_s": 0}]}, ["`test_cases[0].time_limit_s` is 0", "above 0"]),
        ({"test_cases": [STDIN], "memory_limit_mb": "256 MB"}, ['`memory_limit_mb` is "256 MB"']),
        ({"test_cases": [STDIN], "rubric": "x"}, ["both test cases (`test_cases`) and `rubric`"]),
        ({"test_cases": [STDIN], "test_list": ["assert f()"]}, ["`test_cases` and `test_list` both hold test cases"]),
        (
            {"test_cases": [{**STDIN, "testtype": "functional", "input": "a"}]},
            ["calls a function", "no JSON"],
        ),
        ({"input_output": {"inputs": ["1"], "outputs": []}}, ["`input_output` is", "equally long"]),
        ({"input_output": '{"inputs": [], "outputs": []}'}, ["`input_output` holds no test case"]),
        ({"input_output": {"fn_name": "f", "inputs": [1], "outputs": [2]}}, ["the input of `input_output[0]` is 1"]),
        ({"private_test_cases": "eJx"}, ["compressed pickles", "Unpack them into the field `test_cases`"]),
        ({"rubric": ["kind"]}, ['`rubric` is ["kind"]']),
    ],
)
def test_a_wrong_reference_is_named_with_its_line_and_what_is_allowed(tmp_path, fields, words):
    path = write_lines(tmp_path / "p.jsonl", {**CODE, "id": "first", "ground_truth": ""}, {**CODE, **fields})
    with pytest.raises(DataError) as caught:
        load_prompts(path)
    assert caught.value.allowed
    assert caught.value.remedy
    message = str(caught.value)
    for word in ["p.jsonl, line 2: ", *words]:
        assert word in message


def test_several_files_are_read_in_their_order_with_a_default_domain_for_lines_without_one(tmp_path):
    bare = {"prompt": "?", "ground_truth": "1"}
    first = write_lines(tmp_path / "a.jsonl", {**bare, "id": 1}, {**bare, "id": 2, "domain": "own"})
    second = write_lines(tmp_path / "b.jsonl", {**bare, "id": 3})
    files = [PromptFile(path=first, domain="math"), PromptFile(path=second, domain="logic")]
    assert [(p.key, p.domain) for p in reading.load_prompts(files)] == [("1", "math"), ("2", "own"), ("3", "logic")]


def test_an_id_that_two_files_use_is_named_with_both_places(tmp_path):
    row = {"id": 1, "domain": "math", "prompt": "?", "ground_truth": "1"}
    paths = [write_lines(tmp_path / name, row) for name in ("a.jsonl", "b.jsonl")]
    with pytest.raises(DataError, match=r"b\.jsonl, line 1: the id '1' was used in .*a\.jsonl, line 1 already"):
        load_prompts(*paths)


def test_code_references_are_equal_when_they_name_the_same_line(references):
    again = {prompt.key: prompt.reference for prompt in load_prompts(MIXED)}
    assert again == references
    assert sum(isinstance(reference, CodeReference) for reference in again.values()) == 8
