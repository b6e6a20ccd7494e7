"""What models write as calls of tools, and what they write beside them."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.environments.tool_calls import PARSERS, Call, MalformedCallError, parse_hermes, parse_llama3_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
CALLS = st.lists(
    st.builds(Call, name=st.text(), arguments=st.dictionaries(st.text(), VALUES, max_size=3)), min_size=1, max_size=3
)
TEXTS = st.text().filter(lambda text: "<tool_call>" not in text and "</think>" not in text)


def written(call: Call, key: str) -> str:
    """JSON that spells no tag: within a text, `<` is as good as its escape."""
    return json.dumps({"name": call.name, key: call.arguments}).replace("<", "\\u003c")


@given(CALLS, st.sampled_from(["arguments", "parameters"]), TEXTS, TEXTS)
def test_what_hermes_writes_is_read_whatever_stands_around_it(calls: list[Call], key: str, before: str, after: str):
    text = before + after.join(f"<tool_call>\n{written(each, key)}\n</tool_call>" for each in calls) + "<|im_end|>"
    assert parse_hermes(text) == calls
    assert parse_hermes(f"<think><tool_call>{{</tool_call></think>{text}") == calls, "thinking calls nothing"


@given(CALLS, st.sampled_from(["arguments", "parameters"]), st.sampled_from(["", "<|python_tag|>"]))
def test_what_llama_writes_is_read_from_the_beginning_of_the_turn_on(calls: list[Call], key: str, tag: str):
    assert parse_llama3_json(tag + "; ".join(written(each, key) for each in calls) + "<|eom_id|>") == calls


@given(TEXTS)
def test_a_text_without_a_tag_is_an_answer(text: str):
    assert parse_hermes(text) == []


@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
@given(st.text(alphabet='<tool_cal>/{}[]":,;1 name\\|python_tag'))
def test_no_text_raises_anything_but_what_the_model_is_told(parse: Any, text: str):
    for each in (text, f"<tool_call>{text}", f"<|python_tag|>{text}", '{"name": ' + text):
        calls: list[Call] = []
        with suppress(MalformedCallError):
            calls = parse(each)
        assert all(isinstance(call, Call) for call in calls)


@pytest.mark.parametrize("text", ["The answer is \\boxed{5}.", '{"answer": 5}', "", 'It is {"name": "f"}.'])
def test_of_llama_json_that_names_no_function_and_braces_in_a_text_are_answers(text: str):
    assert parse_llama3_json(text) == []


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {</tool_call>'),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>'),
        ("hermes", "<tool_call>[1]</tool_call>"),
        ("hermes", "<tool_call>" + "[" * 100_000),
        ("llama3_json", '{"name": "f", "parameters": {'),
        ("llama3_json", '{"name": "f"}'),
        ("llama3_json", "<|python_tag|>f()"),
        ("llama3_json", "<|python_tag|>[1]"),
    ],
)
def test_a_call_that_cannot_be_read_is_said_to_the_model(parser: str, text: str):
    with pytest.raises(MalformedCallError, match=r'"name": NAME, "arguments"'):
        PARSERS[parser](text)
