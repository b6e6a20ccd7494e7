"""The chat endpoint by an HTTP client: what a program of chat messages may ask of a policy, and what it may not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.environments.chat_endpoint import ChatEndpoint
from rollpacker.environments.conversation import Conversation, ConversationError

PROMPT = [{"role": "system", "content": "Count."}, {"role": "user", "content": "from 1"}]
PARAMS = {"temperature": 1.0, "top_p": 1.0}


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def turn(text: str, finish_reason: str = "stop") -> dict[str, Any]:
    return {"text": text, "token_ids": [1, 2], "logprobs": [-1.0, -1.0], "finish_reason": finish_reason}


@given(st.lists(st.tuples(st.text(), st.lists(st.text(), min_size=1, max_size=3)), max_size=4))
def test_what_a_request_adds_is_all_that_follows_the_turn_that_it_answers(rounds):
    conversation = Conversation(PROMPT, PARAMS)
    messages: list[dict[str, Any]] = list(PROMPT)
    assert conversation.take({"messages": messages}) == []
    for text, added in rounds:
        conversation.answer(text)
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
        ({"messages": [*ANSWERED, said("on")], "tools": [{"type": "function"}]}, "tools="),
        (
            {"messages": [*ANSWERED, {"role": "user", "content": [{"type": "image_url"}]}]},
            "no message with a text alone",
        ),
    ],
)
def test_a_request_that_changes_what_was_said_or_asks_for_more_is_refused(request_: dict[str, Any], says: str):
    conversation = Conversation(PROMPT, PARAMS)
    conversation.take({"messages": PROMPT})
    conversation.answer(ANSWERED[-1]["content"])
    with pytest.raises(ConversationError, match=says):
        conversation.take(request_)


def test_a_first_request_that_is_not_the_prompt_is_refused():
    with pytest.raises(ConversationError, match="its first request adds 'now' of the user to the prompt"):
        Conversation(PROMPT, PARAMS).take({"messages": [*PROMPT, said("now")]})


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
        self, messages: Any, token: str | None = None, path: str = "/v1/chat/completions"
    ) -> tuple[int, Any]:
        body = json.dumps({"model": "policy", "messages": messages}).encode()
        head = f"POST {path} HTTP/1.1\r\nAuthorization: Bearer {token or self.endpoint.token}\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status = int((await self.reader.readline()).split()[1])
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        length = next(int(line.split()[1]) for line in lines if line.startswith("content-length"))
        return status, json.loads(await self.reader.readexactly(length))


def talk(endpoint: ChatEndpoint, *turns: Mapping[str, Any]) -> list[tuple[int, Any]]:
    """The answers to one request more than there are turns; each request goes on from the last turn."""

    async def run() -> list[tuple[int, Any]]:
        client = await Client(endpoint).connect()
        endpoint.begin(Conversation(PROMPT, PARAMS))
        messages, answers = list(PROMPT), []
        for each in turns:
            asking = asyncio.create_task(client.post(messages))
            await endpoint.asked
            endpoint.give(each)
            answers.append(await asking)
            messages += [answers[-1][1]["choices"][0]["message"], said("on")]
        async with asyncio.timeout(5.0):
            return [*answers, await client.post(messages)]

    return asyncio.run(run())


def test_a_turn_comes_back_as_an_openai_client_reads_it_and_past_the_last_one_the_context_is_full():
    endpoint = ChatEndpoint(max_turns=2)
    (status, answer), _, (last, refusal) = talk(endpoint, turn("2"), turn("3"))
    assert status == 200
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "2"}
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 2
    assert (last, refusal["error"]["code"]) == (400, "context_length_exceeded")
    assert endpoint.is_full
    assert endpoint.refused is None


def test_after_a_turn_that_was_cut_off_there_is_no_other():
    (_, answer), (last, _) = talk(ChatEndpoint(max_turns=9), turn("2", "length"))
    assert answer["choices"][0]["finish_reason"] == "length"
    assert last == 400


def test_a_request_that_nothing_can_be_trained_of_is_answered_and_kept_as_the_reason():
    async def run() -> None:
        endpoint = ChatEndpoint(max_turns=9)
        client = await Client(endpoint).connect()
        endpoint.begin(Conversation(PROMPT, PARAMS))
        status, answer = await client.post([said("from 7")])
        assert status == 400
        assert "from 7" in answer["error"]["message"]
        assert "from 7" in str(endpoint.refused)
        assert not endpoint.asked.done()

    asyncio.run(run())


def test_two_requests_at_once_are_refused_since_a_trajectory_has_one_sequence():
    async def run() -> None:
        endpoint = ChatEndpoint(max_turns=9)
        client = await Client(endpoint).connect()
        endpoint.begin(Conversation(PROMPT, PARAMS))
        first = asyncio.create_task(client.post(PROMPT))
        await endpoint.asked
        status, _ = await (await Client(endpoint).connect()).post(PROMPT)
        assert status == 400
        assert "another one waits" in str(endpoint.refused)
        first.cancel()

    asyncio.run(run())


@pytest.mark.parametrize(("token", "path", "status"), [("other", None, 401), (None, "/v1/models", 404)])
def test_another_token_or_path_reaches_no_policy(token: str | None, path: str | None, status: int):
    async def run() -> None:
        endpoint = ChatEndpoint(max_turns=9)
        client = await Client(endpoint).connect()
        endpoint.begin(Conversation(PROMPT, PARAMS))
        answered, _ = await client.post(PROMPT, token, path or "/v1/chat/completions")
        assert answered == status
        assert not endpoint.asked.done()

    asyncio.run(run())
