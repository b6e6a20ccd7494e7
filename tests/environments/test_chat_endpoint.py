"""The chat endpoint by an HTTP client: what a program of chat messages may ask of a policy, and what it may not."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.environments.chat_endpoint import ChatEndpoint
from rollpacker.environments.conversation import Conversation, ConversationError

PROMPT = [{"role": "system", "content": "Count."}, {"role": "user", "content": "from 1"}]
PARAMS = {"temperature": 1.0, "top_p": 1.0}
UNIONS = {
    "some": {"anyOf": [{"type": "array"}, {"type": "null"}]},
    "number": {"anyOf": [{"anyOf": [{"type": "integer"}]}, {"type": "null"}]},
    "text": {"type": ["string", "null"]},
    "other": {"enum": ["5"]},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {"properties": {"first": {"type": "integer"}, "label": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "pick", "parameters": {"properties": UNIONS}}},
]
OF_UNIONS = (
    "<tool_call><function=pick><parameter=some>[1, 2]</parameter><parameter=number>null</parameter>"
    "<parameter=text>5</parameter><parameter=other>5</parameter></function></tool_call>"
)
UNREADABLE = (
    'a call cannot be read, it is JSON: {"name": NAME, "arguments": {...}}: Expecting value: line 1 column 1 (char 0)'
)
CALLING = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add"}}]}


def no_json(first: object) -> str:
    """What is wrong with an argument `first`; Python's own words differ between its versions."""
    with pytest.raises((TypeError, ValueError)) as caught:
        json.dumps({"first": first}, allow_nan=False)
    return f"a call cannot be read, its arguments are no JSON: {caught.value}"


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def turn(text: str, finish_reason: str = "stop", spelled: str | None = None) -> dict[str, Any]:
    spelled = text if spelled is None else spelled
    fields = {"text": text, "spelled": spelled, "token_ids": [1, 2], "logprobs": [-1.0, -1.0]}
    return fields | {"finish_reason": finish_reason}


@given(st.lists(st.tuples(st.text(), st.lists(st.text(), min_size=1, max_size=3)), max_size=4))
def test_what_a_request_adds_is_all_that_follows_the_turn_that_it_answers(rounds):
    conversation = Conversation(PROMPT, PARAMS)
    messages: list[dict[str, Any]] = list(PROMPT)
    assert conversation.take({"messages": messages}) == []
    for text, added in rounds:
        conversation.answer({"role": "assistant", "content": text})
        messages += [{"role": "assistant", "content": text}, *map(said, added)]
        assert conversation.take({"messages": messages, "temperature": 1.0}) == [said(each) for each in added]


ANSWERED = [*PROMPT, {"role": "assistant", "content": "<think> hm </think> 2"}]


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"messages": [*PROMPT, {"role": "assistant", "content": "2"}, said("on")]}, r"message 2 of a request is '2'"),
        ({"messages": [*ANSWERED[1:], said("on")]}, "message 0 of a request is 'from 1' of the user"),
        ({"messages": PROMPT}, "leaves out message 2"),
        ({"messages": ANSWERED}, "adds nothing to the last turn"),
        ({"messages": [*ANSWERED, said("on")], "temperature": 0.2}, r"temperature=0\.2, and not 1\.0"),
        ({"messages": [*ANSWERED, said("on")], "n": 2}, "n=2"),
        ({"messages": [*ANSWERED, said("on")], "stream": True}, "stream=True"),
        ({"messages": [*ANSWERED, said("on")], "stop": ["\n"]}, r"stop=\['\\n'\], and not \[\]"),
        ({"messages": [*ANSWERED, said("on")], "response_format": {"type": "json_object"}}, "json_object"),
        ({"messages": [*ANSWERED, said("on")], "tools": TOOLS}, "has the tools add, pick, and its prompt no tools"),
        (
            {"messages": [*ANSWERED, CALLING, said("on")]},
            "adds '' of the assistant with calls, which the policy",
        ),
        (
            {"messages": [*ANSWERED, {"role": "user", "content": [{"type": "image_url"}]}]},
            "no message with a text alone",
        ),
    ],
)
def test_a_request_that_changes_what_was_said_or_asks_for_more_is_refused(request_: dict[str, Any], says: str):
    conversation = Conversation(PROMPT, PARAMS)
    conversation.take({"messages": PROMPT})
    conversation.answer(ANSWERED[-1])
    with pytest.raises(ConversationError, match=says):
        conversation.take(request_)


@pytest.mark.parametrize("choice", ["required", "none", {"type": "function", "function": {"name": "add"}}])
def test_a_request_that_chooses_for_the_policy_whether_it_calls_a_tool_is_refused(choice):
    with pytest.raises(ConversationError, match=r"tool_choice=.*, and not auto"):
        Conversation(PROMPT, PARAMS, TOOLS).take({"messages": PROMPT, "tools": TOOLS, "tool_choice": choice})


@pytest.mark.parametrize(("tools", "choice"), [((), "none"), ((), "auto"), (TOOLS, "auto")])
def test_what_clients_send_of_themselves_is_no_reason_to_refuse(tools, choice):
    settings = {"stop": None, "response_format": {"type": "text"}, "max_tokens": 4096, "parallel_tool_calls": True}
    request = {"messages": PROMPT, "tools": list(tools), "tool_choice": choice, **settings}
    assert Conversation(PROMPT, PARAMS, tools).take(request) == []


def test_a_first_request_that_is_not_the_prompt_is_refused():
    with pytest.raises(ConversationError, match="its first request adds 'now' of the user to the prompt"):
        Conversation(PROMPT, PARAMS).take({"messages": [*PROMPT, said("now")]})


@pytest.mark.parametrize("tools", [None, [{"type": "custom", "name": "patch"}]])
def test_a_request_without_the_tools_of_its_prompt_is_refused(tools):
    with pytest.raises(ConversationError, match="and its prompt the tools add"):
        Conversation(PROMPT, PARAMS, TOOLS).take({"messages": PROMPT, "tools": tools})


def test_the_first_request_says_what_prompt_and_tools_are_where_nothing_does():
    conversation = Conversation(None, {}, tools=None)
    assert conversation.take({"messages": PROMPT, "tools": TOOLS}) == PROMPT
    assert conversation.tools == TOOLS
    with pytest.raises(ConversationError, match="no tools, and its prompt the tools add, pick"):
        conversation.take({"messages": [*PROMPT, said("on")]})


class Client:
    """Posts to an endpoint, over one connection."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self.endpoint = endpoint

    async def connect(self) -> Client:
        address = await self.endpoint.start()
        port = int(address.rpartition(":")[2].partition("/")[0])
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        return self

    async def post(
        self, messages: Any, token: str | None = None, path: str = "/v1/chat/completions", **more: Any
    ) -> tuple[int, Any]:
        body = json.dumps({"model": "policy", "messages": messages, **more}).encode()
        head = f"POST {path} HTTP/1.1\r\nAuthorization: Bearer {token or self.endpoint.token}\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status = int((await self.reader.readline()).split()[1])
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        length = next(int(line.split()[1]) for line in lines if line.startswith("content-length"))
        return status, json.loads(await self.reader.readexactly(length))


async def begun(endpoint: ChatEndpoint, tools: Sequence[dict[str, Any]] = ()) -> Client:
    """Connect to an endpoint, and begin a conversation there."""
    client = await Client(endpoint).connect()
    endpoint.begin(Conversation(PROMPT, PARAMS, tools))
    return client


async def talk(endpoint: ChatEndpoint, *turns: Mapping[str, Any]) -> list[tuple[int, Any]]:
    """The answers to one request more than there are turns; each request goes on from the last turn."""
    client = await begun(endpoint)
    messages, answers = list(PROMPT), []
    for each in turns:
        asking = asyncio.create_task(client.post(messages))
        await endpoint.asked
        endpoint.give(each)
        answers.append(await asking)
        messages += [answers[-1][1]["choices"][0]["message"], said("on")]
    async with asyncio.timeout(5.0):
        return [*answers, await client.post(messages)]


async def test_a_turn_comes_back_as_an_openai_client_reads_it_and_past_the_last_one_the_context_is_full():
    endpoint = ChatEndpoint(2, "hermes")
    (status, answer), _, (last, refusal) = await talk(endpoint, turn("2"), turn("3"))
    assert status == 200
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "2"}
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 2
    assert (last, refusal["error"]["code"]) == (400, "context_length_exceeded")
    assert endpoint.is_full
    assert endpoint.refused is None


@pytest.mark.parametrize(
    ("parser", "text", "calls"),
    [
        (
            "hermes",
            '<tool_call>{"name": "add", "arguments": {"first": 1}}</tool_call>' * 2,
            [("add", {"first": 1}), ("add", {"first": 1})],
        ),
        (
            "qwen3_coder",
            "<tool_call><function=add><parameter=first>1</parameter><parameter=label>1</parameter></function></tool_call>",
            [("add", {"first": 1, "label": "1"})],
        ),
        ("qwen3_coder", OF_UNIONS, [("pick", {"some": [1, 2], "number": None, "text": "5", "other": "5"})]),
        ("hermes", "<tool_call>add</tool_call>", [("malformed_call", {"problem": UNREADABLE})]),
        (
            "qwen3_coder",
            "<tool_call><function=add><parameter=first>{1, 2}</parameter></function></tool_call>",
            [("malformed_call", {"problem": no_json({1, 2})})],
        ),
        ("pythonic", "[add(first={(1, 2): 3})]", [("malformed_call", {"problem": no_json({(1, 2): 3})})]),
        ("pythonic", "[add(first=1e999)]", [("malformed_call", {"problem": no_json(math.inf)})]),
        ("hermes", "three", []),
    ],
)
async def test_calls_of_tools_are_found_in_a_turn_and_what_they_give_follows_it_with_the_name(parser, text, calls):
    endpoint = ChatEndpoint(9, parser)
    client = await begun(endpoint, TOOLS)
    asking = asyncio.create_task(client.post(PROMPT, tools=TOOLS))
    await endpoint.asked
    endpoint.give(turn(text))
    choice = (await asking)[1]["choices"][0]
    message = choice["message"]
    assert (message["content"], choice["finish_reason"]) == (text, "tool_calls" if calls else "stop")
    made = message.get("tool_calls", [])
    arguments = [json.loads(each["function"]["arguments"]) for each in made]
    assert [(each["function"]["name"], of) for each, of in zip(made, arguments, strict=True)] == calls
    results = [{"role": "tool", "tool_call_id": each["id"], "content": str(at)} for at, each in enumerate(made)]
    following = asyncio.create_task(client.post([*PROMPT, message, *(results or [said("on")])], tools=TOOLS))
    added = await endpoint.asked
    following.cancel()
    named = [{"role": "tool", "content": str(at), "name": name} for at, (name, _) in enumerate(calls)]
    assert added == (named or [said("on")])


async def test_calls_between_special_tokens_are_found_and_no_such_token_is_content():
    endpoint = ChatEndpoint(9, "hermes")
    client = await begun(endpoint, TOOLS)
    asking = asyncio.create_task(client.post(PROMPT, tools=TOOLS))
    await endpoint.asked
    call = '{"name": "add", "arguments": {"first": 1}}'
    endpoint.give(turn(call, spelled=f"<tool_call>{call}</tool_call><|im_end|>"))
    message = (await asking)[1]["choices"][0]["message"]
    assert message["content"] == call
    assert [each["function"]["name"] for each in message["tool_calls"]] == ["add"]


async def test_after_a_turn_that_was_cut_off_there_is_no_other():
    (_, answer), (last, _) = await talk(ChatEndpoint(9, "hermes"), turn("2", "length"))
    assert answer["choices"][0]["finish_reason"] == "length"
    assert last == 400


async def test_a_request_that_nothing_can_be_trained_of_is_answered_and_kept_as_the_reason():
    endpoint = ChatEndpoint(9, "hermes")
    client = await begun(endpoint)
    status, answer = await client.post([said("from 7")])
    assert status == 400
    assert "from 7" in answer["error"]["message"]
    assert "from 7" in str(endpoint.refused)
    assert not endpoint.asked.done()


async def test_two_requests_at_once_are_refused_since_a_trajectory_has_one_sequence():
    endpoint = ChatEndpoint(9, "hermes")
    client = await begun(endpoint)
    first = asyncio.create_task(client.post(PROMPT))
    await endpoint.asked
    status, _ = await (await Client(endpoint).connect()).post(PROMPT)
    assert status == 400
    assert "another one waits" in str(endpoint.refused)
    first.cancel()


@pytest.mark.parametrize(("token", "path", "status"), [("other", None, 401), (None, "/v1/models", 404)])
async def test_another_token_or_path_reaches_no_policy(token: str | None, path: str | None, status: int):
    endpoint = ChatEndpoint(9, "hermes")
    client = await begun(endpoint)
    answered, _ = await client.post(PROMPT, token, path or "/v1/chat/completions")
    assert answered == status
    assert not endpoint.asked.done()
