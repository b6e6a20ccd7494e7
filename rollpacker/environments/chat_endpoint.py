"""A chat endpoint on the loopback, as OpenAI's, for the environment that runs in this process.

    POST /v1/chat/completions ──> `asked`: what it adds to the conversation     `give` a turn ──> the response

Requests come one at a time, with the token that only this process knows. Each waits for the turn that the run's policy
writes. Where a request has tools, calls are looked for in the turn, special tokens included; one that cannot be read is
a call of `MALFORMED`, whose result is for the policy to read. A request that cannot be answered gets HTTP status 400,
which no client sends again, and is kept as `refused`; past the last turn, the status says in OpenAI's words that the
context is full.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from rollpacker.environments.conversation import Conversation, ConversationError, Message
from rollpacker.environments.tool_calls import PARSERS, Call, MalformedCallError, value_of

MODEL = "policy"
"""The name of the model."""

MALFORMED = "malformed_call"
"""Stands for the name in a call that cannot be read; its argument `problem` says why."""

_PATH = "/v1/chat/completions"
_HEAD_BYTES = 1 << 16


class ChatEndpoint:
    """Answers one trajectory at a time.

    Args:
        max_turns: That it may have.
        tool_parser: How the policy writes calls: one of `rollpacker.environments.tool_calls.PARSERS`.
    """

    def __init__(self, max_turns: int, tool_parser: str) -> None:
        self._max_turns = max_turns
        self._calls_in = PARSERS[tool_parser]
        self.token = secrets.token_urlsafe(32)
        self._server: asyncio.Server | None = None
        self._conversation = Conversation((), {})
        self._num_turns_left = 0
        self._turn: asyncio.Future[Mapping[str, Any]] | None = None
        self.asked: asyncio.Future[list[Message]]
        """Gets the messages that a request adds to the conversation."""
        self.refused: ConversationError | None = None
        """The first refusal of the trajectory."""
        self.is_full = False
        """Whether a turn was asked for that may not come."""

    async def start(self) -> str:
        """Listen; gives the address, for `base_url`."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_HEAD_BYTES)
        port = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/v1"

    @property
    def tools(self) -> list[Mapping[str, Any]]:
        """Of the trajectory's requests, as JSON schemas."""
        return self._conversation.tools or []

    def begin(self, conversation: Conversation) -> None:
        """Take the next trajectory; requests of an earlier one are given up."""
        if self._turn is not None:
            self._turn.cancel()
        self._conversation, self._num_turns_left, self._turn = conversation, self._max_turns, None
        self.asked = asyncio.get_running_loop().create_future()
        self.refused, self.is_full = None, False

    def give(self, turn: Mapping[str, Any]) -> None:
        """Answer the request that waits, with the fields of `rollpacker.protocols.environment.EnvironmentTurn`."""
        assert self._turn is not None
        answer, self._turn = self._turn, None
        self.asked = asyncio.get_running_loop().create_future()
        completion = completion_of(turn, self._calls_of(turn["spelled"]) if self.tools else [])
        self._conversation.answer(completion["choices"][0]["message"])
        if turn["finish_reason"] != "stop":
            self._num_turns_left = 0
        answer.set_result(completion)

    def _calls_of(self, text: str) -> list[dict[str, str]]:
        try:
            calls = [_as_schemed(call, self.tools) if call.are_texts else call for call in self._calls_in(text)]
            return [_as_function(call) for call in calls]
        except MalformedCallError as error:
            return [_as_function(Call(MALFORMED, {"problem": str(error)}))]

    async def _complete(self, request: Mapping[str, Any]) -> tuple[HTTPStatus, Mapping[str, Any]]:
        if self._turn is not None:
            self.refused = self.refused or ConversationError("a request comes while another one waits for its turn")
        else:
            try:
                added = self._conversation.take(request)
            except ConversationError as error:
                self.refused = self.refused or error
        if self.refused is not None:
            return HTTPStatus.BAD_REQUEST, {"error": {"message": str(self.refused), "type": "invalid_request_error"}}
        if self._num_turns_left == 0:
            self.is_full = True
            full = "This model's maximum context length is reached."
            return HTTPStatus.BAD_REQUEST, {"error": {"message": full, "code": "context_length_exceeded"}}
        self._num_turns_left -= 1
        self._turn = asyncio.get_running_loop().create_future()
        self.asked.set_result(added)
        return HTTPStatus.OK, await self._turn

    # HTTP

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection, as long as it stands."""
        try:
            while True:
                status, answer = await self._answer_of(reader)
                body = json.dumps(answer).encode()
                head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
                writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the client or its trajectory has gone, or it speaks something else
        finally:
            writer.close()

    async def _answer_of(self, reader: asyncio.StreamReader) -> tuple[HTTPStatus, Mapping[str, Any]]:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if not secrets.compare_digest(headers.get("authorization", ""), f"Bearer {self.token}"):
            return HTTPStatus.UNAUTHORIZED, {"error": {"message": "the token is another"}}
        if lines[0].split(" ")[:2] != ["POST", _PATH]:
            return HTTPStatus.NOT_FOUND, {"error": {"message": f"there is POST {_PATH} alone"}}
        return await self._complete(json.loads(body))


def _as_schemed(call: Call, tools: Sequence[Mapping[str, Any]]) -> Call:
    """Read the arguments of a call that were written as plain text, but for those that are texts."""
    functions = {tool["function"]["name"]: tool["function"] for tool in tools if "function" in tool}
    schemas = functions.get(call.name, {}).get("parameters", {}).get("properties", {})
    types = {name: _types_of(schema) for name, schema in schemas.items()}
    others = {name for name, of_it in types.items() if of_it and "string" not in of_it}
    return Call(call.name, {key: value_of(text) if key in others else text for key, text in call.arguments.items()})


def _types_of(schema: Mapping[str, Any]) -> set[str]:
    """All that a schema names; none where it says it otherwise."""
    named = schema.get("type", [])
    return ({named} if isinstance(named, str) else set(named)).union(*map(_types_of, schema.get("anyOf", ())))


def _as_function(call: Call) -> dict[str, str]:
    """Give a call as OpenAI's: its arguments are JSON.

    Raises:
        MalformedCallError: One is a constant of Python that JSON lacks, such as a set or infinity.
    """
    try:
        return {"name": call.name, "arguments": json.dumps(call.arguments, allow_nan=False)}
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedCallError(f"a call cannot be read, its arguments are no JSON: {error}") from error


def completion_of(turn: Mapping[str, Any], calls: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Give a turn, and the calls in it, as OpenAI's response."""
    num_tokens = len(turn["token_ids"])
    message: dict[str, Any] = {"role": "assistant", "content": turn["text"]}
    finish_reason = "stop" if turn["finish_reason"] == "stop" else "length"
    if calls:
        finish_reason = "tool_calls"
        message["tool_calls"] = [
            {"id": f"call_{secrets.token_hex(8)}", "type": "function", "function": call} for call in calls
        ]
    return {
        "id": f"chatcmpl-{secrets.token_hex(8)}",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": finish_reason,
                "logprobs": None,
            }
        ],
        "usage": {"prompt_tokens": 0, "completion_tokens": num_tokens, "total_tokens": num_tokens},
    }
