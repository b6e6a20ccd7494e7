"""A harness of `verifiers` that sends a task's conversation to the policy, in the process that asks.

verifiers' own harnesses run programs, which it installs for itself; one that calls tools or edits files needs that
(`environment.arguments={agent: {harness: {id: ...}}}`). A task that is a conversation needs none.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

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
        SUPPORTS_RESUME = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(self, *given: Any, **_: Any) -> Any:
            context, _trace, _runtime, endpoint, secret, _servers, data = given
            system, prompt = self.resolve_prompt(data)
            messages = [{"role": "system", "content": system}] if system else []
            opening = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else map(message_to_wire, prompt)
            async with httpx.AsyncClient(timeout=MOST_S, trust_env=False) as client:
                response = await client.post(
                    f"{endpoint}/chat/completions",
                    json={"model": context.model, "messages": [*messages, *opening]},
                    headers={"authorization": f"Bearer {secret}"},
                )
            return vf.ProgramResult(exit_code=int(response.is_error), stdout="", stderr=response.text)

    module = sys.modules[NAME] = ModuleType(NAME)
    module.__all__ = ["ChatHarness"]  # type: ignore[attr-defined]
    module.ChatHarness = ChatHarness  # type: ignore[attr-defined]
