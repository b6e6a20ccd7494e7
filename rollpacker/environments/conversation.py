"""A conversation of chat messages that a program goes on with, request by request, as an OpenAI client does.

    the prompt's messages ──request──> turn ──request: all of them, the turn, and new messages──> turn ──> ...

A chat client sends everything again with each request. Nothing of that is rendered again: what a request has beyond the
conversation so far is new, and follows the turn's tokens as they were sampled. A turn may call tools that the request
has; what they gave is messages of the role `tool`.

Invariant: a request goes on from the messages so far, the policy's turns among them, as they were, and has the tools
that the prompt has; another is refused. How long a turn may be is for the run to say: many clients always send a
`max_tokens`, which is not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]

_OF_ALL = {"stream": False, "n": 1, "stop": [], "response_format": {"type": "text"}}
"""What a request may have, by OpenAI's names: a turn is one text, whole, and ends as the policy ends it."""
_LONGEST = 200
"""Characters of a message, where a refusal shows one."""


class ConversationError(Exception):
    """A request that no training could use; the message says why."""


class Conversation:
    """The messages of one trajectory.

    Args:
        messages: Of its prompt; None takes those of the first request.
        sampling_params: Of every turn, by OpenAI's names.
        tools: Of its prompt, as JSON schemas; None takes those of the first request.
    """

    def __init__(
        self,
        messages: Sequence[Mapping[str, Any]] | None,
        sampling_params: Mapping[str, float],
        tools: Sequence[Mapping[str, Any]] | None = (),
    ) -> None:
        self._messages = [message_of(each) for each in messages or ()]
        self._sampling_params = dict(sampling_params)
        self._may_add = messages is None
        self.tools = None if tools is None else list(tools)

    def take(self, request: Mapping[str, Any]) -> list[Message]:
        """Give the messages that a request adds.

        Raises:
            ConversationError: It changes or leaves out a message, adds one before the first turn or none after it,
                has other tools, or asks for what a turn cannot be.
        """
        tools = request.get("tools") or []
        of_tools = {"tool_choice": "auto"} if tools else {}
        for name, allowed in (_OF_ALL | of_tools | self._sampling_params).items():
            if request.get(name) not in (None, allowed):
                raise ConversationError(f"a request has {name}={request[name]!r:.100}, and not {allowed}")
        if self.tools is None:
            self.tools = tools
        if tools != self.tools:
            raise ConversationError(f"a request has {_names(tools)}, and its prompt {_names(self.tools)}")
        messages = [message_of(each) for each in request["messages"]]
        known = self._messages
        for number, (theirs, ours) in enumerate(zip(messages, known, strict=False)):
            if theirs != ours:
                raise ConversationError(f"message {number} of a request is {_shown(theirs)}, and was {_shown(ours)}")
        if len(messages) < len(known):
            raise ConversationError(f"a request leaves out message {len(messages)}, {_shown(known[len(messages)])}")
        added = messages[len(known) :]
        if calling := next((each for each in added if "tool_calls" in each), None):
            raise ConversationError(f"a request adds {_shown(calling)} with calls, which the policy has not written")
        if bool(added) is not self._may_add:
            raise ConversationError(
                "a request adds nothing to the last turn"
                if self._may_add
                else f"its first request adds {_shown(added[0])} to the prompt"
            )
        self._messages = messages
        self._may_add = True
        return [self._of_tool(each) if each["role"] == "tool" else each for each in added]

    def _of_tool(self, message: Message) -> Message:
        """What a tool gave, as chat templates take it: with the tool's name."""
        calls = [call for each in self._messages for call in each.get("tool_calls", ())]
        names = [call["function"]["name"] for call in calls if call["id"] == message.get("tool_call_id")]
        return {"role": "tool", "content": message["content"]} | ({"name": names[-1]} if names else {})

    def answer(self, message: Mapping[str, Any]) -> None:
        """Go on by a turn of the policy, as the client gets it."""
        self._messages.append(message_of(message))


def message_of(message: Mapping[str, Any]) -> Message:
    """Give a message as role and text, with the calls of tools in it, or that of which it is the result.

    Raises:
        ConversationError: It holds something else, such as a picture.
    """
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str | None):
        raise ConversationError(f"{message!r:.{_LONGEST}} is no message with a text alone")
    of_tools = {name: message[name] for name in ("tool_calls", "tool_call_id") if message.get(name)}
    return {"role": str(message["role"]), "content": content or "", **of_tools}


def _names(tools: Sequence[Mapping[str, Any]]) -> str:
    names = [str(tool.get("function", tool).get("name")) for tool in tools]
    return f"the tools {', '.join(names)}" if names else "no tools"


def _shown(message: Message) -> str:
    return f"{message['content']!r:.{_LONGEST}} of the {message['role']}"
