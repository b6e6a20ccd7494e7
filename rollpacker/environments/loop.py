"""Runs an agent loop of one's own as an environment: from each call of `generate` to the next one.

    reset ──the loop begins──> tokens that it appended to the prompt
    step with a turn ──`generate` gives it, the loop goes on──> tokens that it appended, or its output, and the end

Invariant: the loop runs only between a question and its answer; while engines generate, its process stands still.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from rollpacker.config.python_names import UnusableFunction, in_words, load_named
from rollpacker.environments.agent_loop import LoopError, LoopPrompts, ServerManager


class Loop:
    """An environment with the interface of `rollpacker.environments`.

    Args:
        loop: The class, `FILE.py:NAME` or `PACKAGE.MODULE:NAME`.
        arguments: Given to it by name.
        model_path: The model directory.
        data: As `LoopPrompts` takes it.
        max_turns: That a policy writes.
        needs_reward: Whether the loop gives the reward.
    """

    takes_tokens = True

    def __init__(
        self,
        loop: str,
        arguments: Mapping[str, Any],
        model_path: str,
        data: Mapping[str, Any],
        *,
        max_turns: int,
        needs_reward: bool,
    ) -> None:
        self._kind = load_named(loop)
        if not inspect.isclass(self._kind) or not inspect.iscoroutinefunction(getattr(self._kind, "run", None)):
            raise UnusableFunction(f"{loop} is no class with `async def run(self, sampling_params, **kwargs)`")
        self._arguments = arguments
        self._prompts = LoopPrompts(model_path, data)
        self._max_turns, self._needs_reward = max_turns, needs_reward
        self._runner = asyncio.Runner()
        self._running: asyncio.Task[Any] | None = None
        self._server: ServerManager

    def reset(
        self,
        *,
        options: Mapping[str, Any],
        messages: Sequence[Mapping[str, Any]],
        text: str | None,
        prompt_ids: Sequence[int] = (),
        max_tokens: int = 1 << 30,
        sampling_params: Mapping[str, float] | None = None,
    ) -> tuple[list[int], dict[str, Any]]:
        """Run a new loop until it asks for its first turn; gives the tokens that it appended to the prompt.

        Raises:
            LoopError: It ended before, or asked for what cannot be.
        """
        self._prompts.begin(messages, text, options)
        ids = list(prompt_ids) or self._prompts.encode()
        row = {**options, "raw_prompt": [dict(each) for each in messages], "prompt_ids": list(ids)}
        self._runner.run(self._begin(ids, row, sampling_params or {}, max_tokens))
        output = self._runner.run(self._go_on())
        if not self._server.asked.done():
            raise LoopError(f"it returned {output!r:.200} before it called `generate`")
        return self._server.asked.result(), {}

    def step(self, turn: Mapping[str, Any]) -> tuple[list[int], float, bool, bool, dict[str, Any]]:
        """Give it its turn, and run it until it asks for the next one, or returns.

        Raises:
            LoopError: It asked for what cannot be, or returned something else than an output of what was sampled.
        """
        self._runner.run(self._give(turn))
        output = self._runner.run(self._go_on())
        if self._server.asked.done():
            return self._server.asked.result(), 0.0, False, False, {}
        self._server.check(output)
        if self._needs_reward and output.reward_score is None:
            raise LoopError("reward=environment, and it gave no reward_score")
        return [], float(output.reward_score) if self._needs_reward else 0.0, True, False, {}

    def close(self) -> None:
        """End the loop that is under way."""
        self._runner.close()

    async def _begin(
        self, prompt_ids: list[int], row: Mapping[str, Any], sampling_params: Mapping[str, float], max_tokens: int
    ) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        self._server = ServerManager(prompt_ids, sampling_params, max_tokens, self._max_turns, self._prompts.num_words)
        loop = self._kind(
            server_manager=self._server, prompts=self._prompts, response_length=max_tokens, **self._arguments
        )
        self._running = asyncio.create_task(_without_exit(loop.run(dict(sampling_params), **row)))
        # what it raised is not asked for where it was refused: asyncio would print it
        self._running.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    async def _give(self, turn: Mapping[str, Any]) -> None:
        self._server.give(turn)

    async def _go_on(self) -> Any:
        """Run until the loop asks or ends; gives what it returned in the latter case."""
        assert self._running is not None
        await asyncio.wait([self._running, self._server.asked], return_when=asyncio.FIRST_COMPLETED)
        if self._server.refused is not None:
            raise self._server.refused
        return self._running.result() if self._running.done() else None


async def _without_exit(running: Awaitable[Any]) -> Any:
    """Wait for a loop; `sys.exit` would stop the event loop under the next trajectory as well."""
    try:
        return await running
    except SystemExit as error:
        raise LoopError(in_words(error, __file__)) from error
