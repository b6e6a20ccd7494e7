"""A harness of `verifiers` that sends a task's conversation to the policy, in the process that asks.

    conversation and tools ──POST──> turn ──its calls, by MCP──> what they gave ──POST──> ... ──> a turn without calls

verifiers' own harnesses run programs, which it installs for itself; one that edits files or browses needs that
(`environment.arguments={agent: {harness: {id: ...}}}`). A task that is a conversation, and the tools of its taskset,
need none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import ModuleType
from typing import Any

from rollpacker.config.python_names import in_words
from rollpacker.environments.chat_endpoint import MALFORMED
from rollpacker.environments.tool_calls import no_tool

NAME = "rollpacker_chat"
"""By which `verifiers` finds it, as if it were a package that is installed."""

MOST_S = 1e6
"""Of a request: how long a turn may take is decided elsewhere."""


def register() -> None:
    """Let `verifiers` find the harness."""
    import httpx
    import verifiers.v1 as vf
    from verifiers.v1.dialects.chat import message_to_wire

    class ChatHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]  # of a package without types here
        APPENDS_SYSTEM_PROMPT = True
        SUPPORTS_MCP = True
        SUPPORTS_RESUME = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(self, *given: Any, **_: Any) -> Any:
            context, _trace, _runtime, endpoint, secret, servers, data = given
            system, prompt = self.resolve_prompt(data)
            opening = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else map(message_to_wire, prompt)
            messages = [*([{"role": "system", "content": system}] if system else []), *opening]
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(httpx.AsyncClient(timeout=MOST_S, trust_env=False))
                tools = await _Tools.of(servers, self.config.tool_timeout, stack)
                while True:
                    request = {"model": context.model, "messages": messages}
                    response = await client.post(
                        f"{endpoint}/chat/completions",
                        json={**request, "tools": tools.schemas} if tools.schemas else request,
                        headers={"authorization": f"Bearer {secret}"},
                    )
                    message = {} if response.is_error else response.json()["choices"][0]["message"]
                    messages += [message, *[await tools.call(each) for each in message.get("tool_calls") or ()]]
                    if not message.get("tool_calls"):
                        return vf.ProgramResult(exit_code=int(response.is_error), stdout="", stderr=response.text)

    module = sys.modules[NAME] = ModuleType(NAME)
    module.__all__ = ["ChatHarness"]  # type: ignore[attr-defined]
    module.ChatHarness = ChatHarness  # type: ignore[attr-defined]


class _Tools:
    """Those that the MCP servers of a trajectory have."""

    def __init__(self, schemas: list[dict[str, Any]], dispatch: Mapping[str, Any], servers: Mapping[str, Any]) -> None:
        self.schemas = schemas
        """As a request has them."""
        self._dispatch, self._servers = dispatch, servers

    @classmethod
    async def of(cls, addresses: Mapping[str, str], timeout_s: float, stack: AsyncExitStack) -> _Tools:
        if not addresses:
            return cls([], {}, {})
        from verifiers.v1.harnesses.utils.mcp import connect_mcp

        servers = {name: {"url": url, "timeout": timeout_s} for name, url in addresses.items()}
        return cls(*await connect_mcp({"mcpServers": servers}, stack))

    async def call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Give the message that answers a call; what goes wrong is for the policy to read."""
        from verifiers.v1.harnesses.utils.mcp import call_mcp

        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        if name in self._dispatch:
            try:
                result = await call_mcp(self._servers, self._dispatch, name, arguments)
            except Exception as error:  # noqa: BLE001 a call's boundary: the model is told, and may call again
                result = f"Error: {in_words(error)}"
        elif name == MALFORMED:
            result = f"Error: {arguments['problem']}"
        else:
            result = no_tool(name, self._dispatch)
        return {"role": "tool", "tool_call_id": call["id"], "content": result}
