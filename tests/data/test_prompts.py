import json
import os

import pytest

from rollpacker.config.sections.data import PromptFile
from rollpacker.core.errors import DataError
from rollpacker.data import prompts as reading
from rollpacker.protocols.references import AnswerReference
from tests.data.files import write_lines

GOOD = {"id": "a", "domain": "math", "prompt": "1 + 1 =", "ground_truth": "2"}
USER = {"role": "user", "content": "1 + 1 ="}


def load_prompts(*paths):
    return reading.load_prompts([PromptFile(path=path) for path in paths])


def error_of(path):
    with pytest.raises(DataError) as caught:
        load_prompts(path)
    assert caught.value.problem
    assert caught.value.allowed
    assert caught.value.remedy
    return str(caught.value)


def test_a_plain_prompt_is_one_user_message_and_keeps_its_text(tmp_path):
    [prompt] = load_prompts(write_lines(tmp_path / "p.jsonl", GOOD))
    assert (prompt.key, prompt.domain, prompt.reference) == ("a", "math", AnswerReference(text="2"))
    assert prompt.text == "1 + 1 ="
    assert prompt.messages == (USER,)


def test_messages_may_be_a_list_or_the_json_of_a_list_and_win_over_prompt(tmp_path):
    messages = [{"role": "system", "content": "Be brief."}, USER]
    as_list = {**GOOD, "messages": messages}
    as_text = {**GOOD, "id": "b", "messages": json.dumps(messages)}
    for prompt in load_prompts(write_lines(tmp_path / "p.jsonl", as_list, as_text)):
        assert prompt.messages == tuple(messages)
        assert prompt.text is None


def test_messages_of_tools_keep_every_field_for_the_chat_template(tmp_path):
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]}
    result = {"role": "tool", "tool_call_id": "7", "content": ""}
    [prompt] = load_prompts(write_lines(tmp_path / "p.jsonl", {**GOOD, "messages": [USER, call, result]}))
    assert prompt.messages == (USER, {**call, "content": ""}, result)


def test_other_fields_of_a_line_are_kept_as_its_row(tmp_path):
    extra = {"source": "a book", "extra_info": {"level": 3, "tags": ["x"]}}
    kept, bare = load_prompts(write_lines(tmp_path / "p.jsonl", {**GOOD, **extra, "rubric": None}, {**GOOD, "id": "b"}))
    assert (kept.row, bare.row) == (extra, {})


def test_blank_lines_and_a_byte_order_mark_are_skipped_but_lines_are_counted(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n\n   \n{broken}\n")
    assert "line 4: broken JSON at column 2" in error_of(path)


def test_a_line_separator_inside_a_string_does_not_end_the_line(tmp_path):
    [prompt] = load_prompts(
        write_lines(tmp_path / "p.jsonl", json.dumps({**GOOD, "prompt": "a\u2028b"}, ensure_ascii=False))
    )
    assert prompt.text == "a\u2028b"


def test_numbers_are_taken_as_ids_and_as_ground_truths(tmp_path):
    [prompt] = load_prompts(write_lines(tmp_path / "p.jsonl", {**GOOD, "id": 7, "ground_truth": 2}))
    assert (prompt.key, prompt.reference) == ("7", AnswerReference(text="2"))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("1e-05", "0.00001"),
        ("-2.5e-7", "-0.00000025"),
        ("1e16", "10000000000000000"),
        ("1.5e20", "150000000000000000000"),
        ("0.1", "0.1"),
        ("2.0", "2.0"),
        ("7" * 400, "7" * 400),
    ],
)
def test_a_number_as_ground_truth_is_written_without_an_exponent(tmp_path, number, text):
    [prompt] = load_prompts(write_lines(tmp_path / "p.jsonl", json.dumps(GOOD).replace('"2"', number)))
    assert prompt.reference == AnswerReference(text=text)


def test_the_order_of_the_file_is_kept(tmp_path):
    lines = [{**GOOD, "id": index, "domain": f"d{index % 3}"} for index in (5, 3, 9, 1)]
    assert [prompt.key for prompt in load_prompts(write_lines(tmp_path / "p.jsonl", *lines))] == ["5", "3", "9", "1"]


TEXT_PART = {"type": "text", "text": "1 + 1"}


def without(field):
    return {name: value for name, value in GOOD.items() if name != field}


def with_messages(messages):
    return {**without("prompt"), "messages": messages}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{broken", ["broken JSON at column 2"]),
        ('{"id": "a"', ["broken JSON at column 11"]),
        ("[1, 2]", ["is [1, 2], not an object"]),
        ('"text"', ["not an object"]),
        ('{"id": ' + "9" * 5000 + "}", ["cannot be read"]),
        ("[" * 100_000, ["cannot be read"]),
        (without("id"), ["the field `id` is missing", "`domain`, `prompt`, `ground_truth`"]),
        (without("domain"), ["the field `domain` is missing"]),
        ({**without("ground_truth"), "groundtruth": "2"}, ["rename `groundtruth` to `ground_truth`"]),
        (without("prompt"), ["the field `messages` or `prompt` is missing"]),
        (
            {**without("prompt"), "messages": None},
            ["the field `messages` or `prompt` is missing; `messages` is null", "add `messages` or `prompt`"],
        ),
        ({**without("prompt"), "messages": None, "message": []}, ["rename `message` to `messages`"]),
        ({**without("prompt"), "message": []}, ["rename `message` to `messages`"]),
        (
            {"id": "a", "question": "1 + 1", "answer": "2"},
            [
                "the field `messages` or `prompt` is missing; the field `domain` is missing",
                "Set data.domain=math",
                "Set 'data.columns={prompt:question,ground_truth:answer}'",
            ],
        ),
        (
            {**without("prompt"), "source": 3, "my task": "1 + 1"},
            ["Set 'data.columns={prompt:\"my task\"}', or rename `my task` to `prompt`"],
        ),
        ({**without("prompt"), "chat": [USER]}, ["Set 'data.columns={messages:chat}'"]),
        ({**GOOD, "id": ""}, ['`id` is ""']),
        ({**GOOD, "id": None}, ["`id` is null"]),
        ({**GOOD, "id": True}, ["`id` is true"]),
        ({**GOOD, "id": ["a"]}, ['`id` is ["a"]']),
        ('{"id": NaN}', ["`id` is NaN"]),
        ({**GOOD, "domain": 3}, ["`domain` is 3"]),
        ({**GOOD, "prompt": ["a"]}, ['`prompt` is ["a"]', "or a list of messages"]),
        ({**GOOD, "prompt": []}, ["`prompt` is []", "a list of at least one message"]),
        ({**GOOD, "prompt": [{"role": "user"}]}, ["`prompt[0]` is"]),
        ({**GOOD, "prompt": ""}, ['`prompt` is ""', "not blank"]),
        ({**GOOD, "prompt": " \n"}, ["`prompt` is"]),
        ({**GOOD, "prompt": "x" * 30 + "\ud800"}, ["`prompt`", "surrogate"]),
        ({**GOOD, "x\ud800": 1}, ["the field `x?` holds half of a surrogate pair"]),
        ('{"id": "a", "prompt": "1", "id": "b"}', ["an object has 'id' several times"]),
        ({**GOOD, "ground_truth": {"a": "b" * 100}}, ['`ground_truth` is {"a": "bbb', "..."]),
        (with_messages("not json"), ["`messages` is a string that holds no JSON"]),
        (with_messages('[{"role": "user", "content": "\\ud800"}]'), ["`messages`", "surrogate"]),
        (with_messages([]), ["`messages` is []"]),
        (with_messages({"role": "user"}), ["`messages` is {"]),
        (with_messages(["hello"]), ['`messages[0]` is "hello"']),
        (
            with_messages([USER, {"role": "user"}]),
            ["`messages[1]` is", "an object with the fields `role` and `content`"],
        ),
        (
            with_messages([{**USER, "role": "human"}]),
            ['the role of `messages[0]` is "human"', "system, developer, user, assistant, tool"],
        ),
        (with_messages([{**USER, "content": None}]), ["the content of `messages[0]` is null"]),
        (with_messages([{**USER, "content": ""}]), ["the content of `messages[0]`"]),
        (with_messages([{**USER, "content": []}]), ["the content of `messages[0]` is []"]),
        (
            with_messages([{**USER, "content": [TEXT_PART, {"type": "image_url"}]}]),
            ["images and other parts are not read"],
        ),
        (with_messages([{**USER, "content": [{**TEXT_PART, "text": " "}]}]), ["a text that is not blank"]),
        (with_messages([USER, {"role": "assistant", "content": "2"}]), ["ends with an answer of the assistant"]),
    ],
)
def test_a_wrong_line_is_named_with_its_number_and_what_is_wrong(tmp_path, line, words):
    message = error_of(write_lines(tmp_path / "p.jsonl", {**GOOD, "id": "first"}, line))
    assert "line 2: " in message
    for word in words:
        assert word in message


def test_content_in_parts_of_text_is_their_text(tmp_path):
    messages = [{**USER, "content": [TEXT_PART, {**TEXT_PART, "text": " ="}]}]
    [prompt] = load_prompts(write_lines(tmp_path / "p.jsonl", with_messages(messages)))
    assert prompt.messages == ({**USER, "content": "1 + 1 ="},)


def test_a_file_that_two_entries_have_is_refused_unless_other_columns_are_read(tmp_path):
    row = {"domain": "math", "prompt": "1 + 1 =", "ground_truth": "2", "harder": "1 + 1 + 0 ="}
    path, link = write_lines(tmp_path / "p.jsonl", row), tmp_path / "other.jsonl"
    link.symlink_to(path)
    for twice in ([path, path], [path, link], [tmp_path / "p.jsonl", tmp_path / "x" / ".." / "p.jsonl"]):
        with pytest.raises(DataError, match=r"p\.jsonl is listed twice: by .* and by "):
            load_prompts(*twice)
    harder = PromptFile(path=path, columns={"prompt": "harder"})
    plain, changed = reading.load_prompts([PromptFile(path=path), harder])
    assert (plain.text, changed.text) == ("1 + 1 =", "1 + 1 + 0 =")


@pytest.mark.parametrize("second", ["a", 1])
def test_a_duplicate_id_is_named_with_both_lines(tmp_path, second):
    lines = [{**GOOD, "id": str(second)}, {**GOOD, "id": "b"}, {**GOOD, "id": second}]
    message = error_of(write_lines(tmp_path / "p.jsonl", *lines))
    assert "line 3: " in message
    assert f"'{second}' was used in line 1" in message


def test_text_in_another_encoding_is_named_with_line_and_byte(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b'\n{"id": "caf\xe9"}\n')
    assert "line 2: byte 12 (0xe9) is not UTF-8" in error_of(path)


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_a_file_without_a_prompt_is_refused(tmp_path, content):
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    assert "is empty" in error_of(path)


def test_a_missing_file_is_refused_with_the_nearest_name(tmp_path):
    write_lines(tmp_path / "prompts.jsonl", GOOD)
    assert "Did you mean" in (message := error_of(tmp_path / "promts.jsonl"))
    assert "prompts.jsonl?" in message


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts", "prompts.csv", "prompts.parquet", "prompts.arrow"])
def test_a_pipe_is_refused_and_never_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    assert "is a pipe" in error_of(tmp_path / name)


def test_a_missing_directory_is_named(tmp_path):
    assert "other does not exist either" in error_of(tmp_path / "other" / "p.jsonl")


def test_a_directory_without_data_is_refused(tmp_path):
    (tmp_path / "README.md").write_text("# A data set whose files were not copied")
    assert "holds no data" in error_of(tmp_path)


def test_a_file_that_is_one_object_is_named_so_and_not_printed_whole(tmp_path):
    said = error_of(write_lines(tmp_path / "p.json", {f"row-{number}": GOOD for number in range(5000)}))
    assert "`row-19` and 4,980 more; a file that is one object of all its rows" in said
    assert len(said) < 1000
    assert "one object of all" not in error_of(
        write_lines(tmp_path / "wide.json", {f"column-{n}": n for n in range(30)})
    )


def test_the_address_of_a_data_set_of_the_hub_is_answered_with_its_name():
    with pytest.raises(DataError, match="by hf://openai/gsm8k, or"):
        load_prompts("https://huggingface.co/datasets/openai/gsm8k/tree/main")
