"""What models write as calls of tools, and what they write beside them."""

from __future__ import annotations

import json
import keyword
import time
from contextlib import suppress
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.config.sections.environment import EnvironmentSection
from rollpacker.environments.tool_calls import (
    PARSERS,
    Call,
    MalformedCallError,
    parse_deepseek,
    parse_hermes,
    parse_llama3_json,
    parse_pythonic,
    parse_qwen3_coder,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.from_regex(r"[A-Za-z_][A-Za-z_0-9]{0,8}", fullmatch=True).filter(lambda key: not keyword.iskeyword(key))


def calls_of(keys: st.SearchStrategy[str], values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Call]]:
    arguments = st.dictionaries(keys, values, max_size=3)
    return st.lists(st.builds(Call, keys, arguments, are_texts=st.just(value=False)), min_size=1, max_size=3)


CALLS = calls_of(st.text(), VALUES)
TEXTS = st.text().filter(lambda text: not any(tag in text for tag in ("<tool_call>", "<function=", "</think>")))


def token(name: str) -> str:
    """One of DeepSeek's, in ordinary letters."""
    return "<\uff5c" + name.replace("_", "\u2581") + "\uff5c>"


def written(call: Call, key: str) -> str:
    """JSON that spells no tag: within a text, `<` is as good as its escape."""
    return json.dumps({"name": call.name, key: call.arguments}).replace("<", "\\u003c")


@given(CALLS, st.sampled_from(["arguments", "parameters"]), TEXTS, TEXTS)
def test_what_hermes_writes_is_read_whatever_stands_around_it(calls: list[Call], key: str, before: str, after: str):
    text = before + after.join(f"<tool_call>\n{written(each, key)}\n</tool_call>" for each in calls) + "<|im_end|>"
    assert parse_hermes(text) == calls
    assert parse_hermes(f"<think><tool_call>{{</tool_call></think>{text}") == calls, "thinking calls nothing"
    assert parse_hermes(f"<tool_call>{written(calls[0], key)}<|im_end|>") == calls[:1], "the last tag is missing"


@given(CALLS, st.sampled_from(["arguments", "parameters"]), st.sampled_from(["", "<|python_tag|>"]))
def test_what_llama_writes_is_read_from_the_beginning_of_the_turn_on(calls: list[Call], key: str, tag: str):
    assert parse_llama3_json(tag + "; ".join(written(each, key) for each in calls) + "<|eom_id|>") == calls


@given(calls_of(KEYS, st.text(alphabet="ab1 .,:{}[]'\"\\\n")), TEXTS, st.sampled_from(["<tool_call>\n", "", "it is "]))
def test_what_qwen3_coder_writes_is_read_as_plain_texts_and_without_opening_tags(
    calls: list[Call], before: str, opening: str
):
    text = before
    for call in calls:
        parameters = (f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in call.arguments.items())
        text += f"{opening}<function={call.name}>\n{''.join(parameters)}</function>\n</tool_call>\n"
    assert parse_qwen3_coder(f"{text}<|im_end|>") == [call._replace(are_texts=True) for call in calls]


def test_a_value_may_have_the_tag_that_begins_a_parameter():
    text = "<function=f>\n<parameter=a>is <parameter=b> it</parameter>\n<parameter=c>1</parameter>\n</function>"
    assert parse_qwen3_coder(text) == [Call("f", {"a": "is <parameter=b> it", "c": "1"}, are_texts=True)]


@given(calls_of(KEYS, VALUES), st.sampled_from([("", "<|eot|>"), ("<|python_start|>", "<|python_end|><|eot|>")]))
def test_what_llama_4_writes_is_read_as_python(calls: list[Call], around: tuple[str, str]):
    text = ", ".join(
        f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})" for call in calls
    )
    assert parse_pythonic(f"[{text}]".join(around)) == calls


def test_constants_of_json_are_constants_of_a_call_in_python():
    assert parse_pythonic("[f(a=true, b=[null, {'c': false}])]") == [Call("f", {"a": True, "b": [None, {"c": False}]})]


@given(
    calls_of(KEYS, VALUES), st.sampled_from(["function{sep}{name}\n```json\n{json}\n```", "{name}{sep}{json}"]), TEXTS
)
def test_what_deepseek_writes_is_read_in_both_forms(calls: list[Call], form: str, before: str):
    text = before + token("tool_calls_begin")
    for name, arguments, _ in calls:
        body = form.format(name=name, sep=token("tool_sep"), json=json.dumps(arguments))
        text += token("tool_call_begin") + body + token("tool_call_end")
    assert parse_deepseek(text + token("tool_calls_end")) == calls


def test_the_parsers_are_those_that_may_be_chosen():
    chosen = get_type_hints(EnvironmentSection)["tool_parser"]
    assert set(get_args(chosen)) == set(PARSERS)


@pytest.mark.parametrize("parser", sorted(set(PARSERS) - {"llama3_json"}))
@given(TEXTS)
def test_a_text_without_a_tag_is_an_answer(parser: str, text: str):
    assert PARSERS[parser](text) == []


@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
@given(st.text(alphabet='<tool_cal>/{}[]":,;1 name\\|python_tag'))
def test_no_text_raises_anything_but_what_the_model_is_told(parse: Any, text: str):
    begun = f"<tool_call>{text}", f"<|python_tag|>{text}", '{"name": ' + text, f"[f({text}", f"[f(a={text})]"
    for each in (text, *begun, token("tool_call_begin") + text, f"<tool_call><function={text}", f"<function={text}"):
        calls: list[Call] = []
        with suppress(MalformedCallError):
            calls = parse(each)
        assert all(isinstance(call, Call) for call in calls)


WORD = json.dumps("print('</think>')")


@pytest.mark.parametrize("thinking", ["", "hm</think>", "<think>I write <tool_call> and [f(</think>\n"])
@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("hermes", f'<tool_call>{{"name": "f", "arguments": {{"code": {WORD}}}}}</tool_call>'),
        ("llama3_json", f'{{"name": "f", "parameters": {{"code": {WORD}}}}}<|eom_id|>'),
        (
            "qwen3_coder",
            f"<tool_call><function=f><parameter=code>{json.loads(WORD)}</parameter></function></tool_call>",
        ),
        ("qwen3_coder", f"<function=f><parameter=code>{json.loads(WORD)}</parameter></function></tool_call>"),
        ("pythonic", f"[f(code={WORD})]"),
        ("deepseek_v31", f'{token("tool_call_begin")}f{token("tool_sep")}{{"code": {WORD}}}{token("tool_call_end")}'),
    ],
)
def test_the_end_of_thinking_in_an_argument_ends_no_thinking(parser: str, text: str, thinking: str):
    [call] = PARSERS[parser](thinking + text)
    assert (call.name, call.arguments) == ("f", {"code": json.loads(WORD)})


@pytest.mark.parametrize(
    ("parser", "thought"),
    [
        ("pythonic", '[search(q="x")] would be a call, but I know it.'),
        ("pythonic", '[search(q="x")]'),
        ("pythonic", "[search(q=...] is the form, [1] is not."),
        ("llama3_json", '{"name": "f", "parameters": {"a": 1}} would be it.'),
        ("llama3_json", '{"name": "f", "parameters"...} is the form.'),
        ("llama3_json", 'a</think>{"name": "f", "parameters": {"a": 1}} hm'),
        ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}'),
    ],
)
def test_what_begins_the_thinking_of_a_turn_is_no_call(parser: str, thought: str):
    parse, call = PARSERS[parser], '[f(a="</think>")]' if parser == "pythonic" else '{"name": "f", "parameters": {}}'
    assert parse(f"{thought}</think>\nThe answer is 4.") == []
    assert [each.name for each in parse(f"{thought}</think>\n{call}")] == ["f"]


@pytest.mark.parametrize(
    "text",
    [
        "The answer is \\boxed{5}.",
        '{"answer": 5}',
        "",
        'It is {"name": "f"}.',
        "{1, 2}",
        '{"a", "b"}',
        "{x: 'name'}",
        "{1, 2}, name: S",
    ],
)
def test_of_llama_json_that_names_no_function_and_braces_in_a_text_are_answers(text: str):
    assert parse_llama3_json(text) == []


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {</tool_call>'),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>'),
        ("hermes", "<tool_call>[1]</tool_call>"),
        ("hermes", "<tool_call>" + "[" * 100_000),
        ("qwen3_coder", "<tool_call><function=f><parameter=a>1</function></tool_call>"),
        ("qwen3_coder", "<tool_call><function=f>a=1</function></tool_call>"),
        ("qwen3_coder", "<function=f>a<parameter=a>1</parameter></function>"),
        ("qwen3_coder", "<function=f><parameter=a>1</parameter>a<parameter=b>2</parameter></function>"),
        ("qwen3_coder", "I call <function=f><parameter=a>1</function></tool_call>"),
        ("qwen3_coder", "<function=f><parameter=a>1</parameter>"),
        ("qwen3_coder", '<tool_call>{"name": "f"}</tool_call>'),
        ("pythonic", "[f(1)]"),
        ("pythonic", "[f(a=g())]"),
        ("pythonic", "[f(a=1), 2]"),
        ("pythonic", "[f(a=1"),
        ("pythonic", "[f(**{'a': 1})]"),
        ("pythonic", f"[f(a={'-' * 10_000}1)]"),
        ("deepseek_v3", f"{token('tool_call_begin')}function{token('tool_sep')}f\n```json\n{{\n```"),
        ("deepseek_v31", f"{token('tool_call_begin')}f{{}}"),
        ("llama3_json", '{"name": "f", "parameters": {'),
        ("llama3_json", '{"name": "f"}'),
        ("llama3_json", "{'name': 'f', 'parameters': {}}"),
        ("llama3_json", '{"function": "f", "parameters": {}'),
        ("llama3_json", '{"function": "f", "parameters": {}}'),
        ("llama3_json", '{name: "f", arguments: {}}'),
        ("llama3_json", "<|python_tag|>f()"),
        ("llama3_json", "<|python_tag|>[1]"),
    ],
)
def test_a_call_that_cannot_be_read_is_said_to_the_model(parser: str, text: str):
    with pytest.raises(MalformedCallError, match=r"a call cannot be read, it is .*NAME"):
        PARSERS[parser](text)


@pytest.mark.parametrize("repeated", ["\n", "<parameter=a>", "<parameter=", "<parameter=a></parameter>"])
def test_four_times_what_is_repeated_without_end_does_not_take_eight_times_the_time(repeated: str):
    times_s = []
    for number in (1_000, 4_000):
        began_s = time.process_time()
        with suppress(MalformedCallError):
            parse_qwen3_coder(f"<function=f>{10 * number // len(repeated) * repeated}x</function>")
        times_s.append(time.process_time() - began_s)
    assert times_s[1] < 8 * times_s[0] + 0.2
