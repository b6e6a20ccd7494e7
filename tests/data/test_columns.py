"""Columns that the configuration names: what of a row counts then, and what is said of those that are not there."""

import json

import pytest

from rollpacker.config.sections.data import PromptFile
from rollpacker.core.errors import DataError
from rollpacker.data.prompts import load_prompts
from rollpacker.data.test_cases import load_test_cases
from tests.data.files import write_lines

CHAT = [{"role": "user", "content": "6 x 7"}]


@pytest.mark.parametrize(
    ("row", "column", "words"),
    [
        (
            {"reward_model": {"style": "rule", "ground_truth": "42"}},
            "reward_model.groundtruth",
            [
                "`reward_model` has no such field",
                "`style`, `ground_truth`",
                "Write {prompt: reward_model.ground_truth}",
            ],
        ),
        (
            {"info": '{"q": "1 + 1"}'},
            "info.q",
            ["`info.q`, which is to be `prompt`: `info` is", "Write `info` as an object, or name another column"],
        ),
        ({"question": "1", "answer": "2"}, "questoin", ["Columns: `question`, `answer`", "Write {prompt: question}"]),
        ({"problem": "1", "solution": "2", "answer": "3"}, "question", ["Write {prompt: problem}"]),
        ({f"c{number}": 1 for number in range(5000)}, "x", ["`c19` and 4,980 more", "Correct `columns`"]),
    ],
)
def test_a_column_that_is_not_there_is_answered_with_those_beside_it(tmp_path, row, column, words):
    with pytest.raises(DataError) as caught:
        load_prompts([PromptFile(path=write_lines(tmp_path / "x.jsonl", row), columns={"prompt": column})])
    for word in words:
        assert word in str(caught.value)


def test_test_cases_in_columns_of_other_names_are_read_again_from_their_line(tmp_path):
    row = {"task": "Add.", "checks": ["assert add(1, 2) == 3"], "domain": "code"}
    path = write_lines(tmp_path / "x.jsonl", row)
    [prompt] = load_prompts([PromptFile(path=path, columns={"prompt": "task", "test_cases": "checks"})])
    assert "add(1, 2) == 3" in load_test_cases(prompt.reference)[0].source


def test_test_cases_of_public_sets_are_found_in_columns_of_other_names(tmp_path):
    cases = json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})
    path = write_lines(
        tmp_path / "x.jsonl", {"prompt": CHAT, "domain": "code", "reward_model": {"ground_truth": cases}}
    )
    [prompt] = load_prompts([PromptFile(path=path, columns={"input_output": "reward_model.ground_truth"})])
    assert [case.input for case in load_test_cases(prompt.reference)] == ["1\n"]


def test_an_error_names_the_columns_of_the_file_and_none_that_were_made_of_them(tmp_path):
    (tmp_path / "q.csv").write_text("question,answer\n6 x 7,42\n")
    with pytest.raises(DataError, match=r"Fields of this line: `question`, `answer`\n"):
        load_prompts([PromptFile(path=tmp_path / "q.csv")])


def test_of_prompt_and_messages_the_one_that_columns_name_counts(tmp_path):
    chat = [{"role": "user", "content": "chat"}]
    row = {"problem": "6 x 7", "messages": [*chat, {"role": "assistant", "content": "42"}], "prompt": "?", "talk": chat}
    path = write_lines(tmp_path / "x.jsonl", row)
    for columns, text in (({"prompt": "problem"}, "6 x 7"), ({"messages": "talk"}, "chat")):
        (prompt,) = load_prompts([PromptFile(path=path, columns=columns, domain="math")])
        assert [message["content"] for message in prompt.messages] == [text]


def test_a_row_whose_named_prompt_is_null_is_refused_and_its_messages_do_not_count(tmp_path):
    path = write_lines(tmp_path / "x.jsonl", {"q": "1", "messages": None}, {"q": None, "messages": CHAT})
    with pytest.raises(DataError, match=r"line 2: `q` \(as `prompt`\) is null"):
        load_prompts([PromptFile(path=path, columns={"prompt": "q"}, domain="math")])


def test_rows_with_a_prompt_and_rows_with_messages_are_mixed_where_both_are_named(tmp_path):
    path = write_lines(tmp_path / "x.jsonl", {"q": "1", "messages": None}, {"q": None, "messages": CHAT})
    columns = {"prompt": "q", "messages": "messages"}
    first, second = load_prompts([PromptFile(path=path, columns=columns, domain="math")])
    assert (first.text, second.messages) == ("1", tuple(CHAT))


def test_a_column_is_suggested_beside_those_that_are_named(tmp_path):
    path = write_lines(tmp_path / "x.jsonl", {"question": "1", "result": "2"})
    with pytest.raises(DataError) as caught:
        load_prompts([PromptFile(path=path, columns={"ground_truth": "result"}, domain="math")])
    assert caught.value.allowed == "Fields of this line: `question`, `result`"
    assert caught.value.remedy.startswith(
        "Set 'data.columns={ground_truth:result,prompt:question}' (add `columns: {ground_truth: result, prompt: "
        f"question}}` to the entry of {path} in data.path where that has its own), or rename"
    )


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"answer": "4", "text": "2 + 2"}, "{prompt:text,ground_truth:answer}"),
        ({"Answer": "4", "text": "2 + 2"}, "{prompt:text,ground_truth:Answer}"),
        ({"answer": "4", "solution": "2 + 2 is 4"}, "{prompt:COLUMN,ground_truth:answer}"),
        ({"source": "aime", "text": "2 + 2", "answer": "4"}, "{prompt:COLUMN,ground_truth:answer}"),
        ({"task_id": "t1", "Problem": "2 + 2"}, "{prompt:Problem}"),
        ({"solution": [{"step": 1}], "task": "2 + 2"}, "{prompt:task,ground_truth:solution}"),
        ({"conversations": [{"from": "human", "value": "2 + 2"}], "label": "4"}, "{prompt:COLUMN,ground_truth:label}"),
    ],
)
def test_neither_an_answer_nor_one_of_several_texts_is_suggested_as_the_prompt(tmp_path, row, columns):
    path = write_lines(tmp_path / "x.jsonl", row)
    with pytest.raises(DataError) as caught:
        load_prompts([PromptFile(path=path, domain="math")])
    assert caught.value.remedy.startswith(f"Set 'data.columns={columns}', or ")
