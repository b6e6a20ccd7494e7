"""Runs an environment of the package `verifiers` (github.com/PrimeIntellect-ai/verifiers), as it is published.

    reset ──an episode begins, and its agent asks the chat endpoint for a turn──> nothing: the prompt says it all
    step with a turn ──the endpoint answers, the episode goes on──> messages that its next request adds, or its reward

It runs in an interpreter of its own (`environment.python`), since `verifiers` needs other versions of packages than
engines do. So nothing here, nor in what this imports, needs more than Python and `verifiers`.

Invariant: an episode has one sequence of one agent, and goes on only between a question and its answer.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rollpacker.config.python_names import UnusableFunction, in_words
from rollpacker.environments import chat_harness
from rollpacker.environments.chat_endpoint import MODEL, ChatEndpoint
from rollpacker.environments.conversation import Conversation, ConversationError, Message, message_of

_TOKEN_VARIABLE = "ROLLPACKER_ENDPOINT_TOKEN"  # noqa: S105 a name
_PATIENCE_S = 5.0
"""For an episode that was broken off to end."""


class EpisodeError(Exception):
    """An episode ended without a reward that could be trained; the message says why."""


class Verifiers:
    """An environment with the interface of `rollpacker.environments`.

    Args:
        env: Id of the taskset, as `vf-eval` takes it.
        arguments: The environment's other settings, as `vf-eval` takes them below `--env`.
        max_turns: That a policy writes.
        tool_parser: How it writes calls of tools: one of `rollpacker.environments.tool_calls.PARSERS`.
    """

    takes_tokens = True

    def __init__(self, env: str, arguments: Mapping[str, Any], max_turns: int, tool_parser: str) -> None:
        self._env = _loaded(env, arguments, max_turns)
        self._max_turns, self._tool_parser = max_turns, tool_parser
        self._runner = asyncio.Runner()
        self._endpoint: ChatEndpoint | None = None
        self._address = ""
        self._serving: asyncio.Task[None] | None = None
        self._episode: asyncio.Task[Any] | None = None

    def prompts(self, most: int | None, most_of_endless: int | None) -> list[dict[str, Any]]:
        """Give the first tasks as rows of a prompt file, of a taskset without end so many of its own; None is all.

        A task without a prompt, whose user opens the conversation, begins an episode: what it asks first is the prompt,
        and has to be asked again in each episode of that task. So does the first task of a taskset with tools: those
        that it has are the tools of all.

        Raises:
            UnusableFunction: They cannot be loaded, or ask for nothing.
        """
        taskset = self._env.taskset
        if not taskset.bounded:
            if most_of_endless is None:
                raise UnusableFunction("it makes tasks without end; say by data.max_prompts how many are trained")
            most = most_of_endless
        try:
            tasks = list(itertools.islice(iter(taskset), most))
            has_tools = bool(tasks and (taskset.toolsets(taskset.config) or tasks[0].toolsets(tasks[0].config)))
            tools = {"tools": self._opening_of(tasks[0])[1]} if has_tools else {}
            return [
                {
                    "id": str(task.data.idx),
                    "messages": self._opening_of(task)[0] if task.data.prompt is None else _messages_of(task.data),
                    "ground_truth": "",
                    "task": _row_of(task),
                    **tools,
                }
                for task in tasks
            ]
        except UnusableFunction:
            raise
        except Exception as error:
            raise UnusableFunction(f"loading its tasks raised {in_words(error)}") from error

    def _opening_of(self, task: Any) -> tuple[list[Message], list[Mapping[str, Any]]]:
        """What an episode of a task asks first, and with which tools."""
        self._runner.run(self._begin(_row_of(task), Conversation(None, {}, tools=None), {}))
        if (episode := self._runner.run(self._go_on())) is not None:
            raise UnusableFunction(f"an episode of task {task.data.idx} asked for no turn: {_errors_of(episode)}")
        assert self._endpoint is not None
        return self._endpoint.asked.result(), self._endpoint.tools

    def reset(
        self,
        *,
        options: Mapping[str, Any],
        messages: Sequence[Mapping[str, Any]],
        sampling_params: Mapping[str, float] | None = None,
    ) -> tuple[list[Message], dict[str, Any]]:
        """Begin an episode of the task in `options`, and run it until its agent asks for the first turn.

        Raises:
            EpisodeError: It ended before.
            ConversationError: What it asks is not the prompt.
        """
        if "task" not in options:
            raise EpisodeError("the prompt's line has no `task`, the data of one of the environment's tasks")
        params = dict(sampling_params or {})
        conversation = Conversation(messages, params, options.get("tools") or ())
        self._runner.run(self._begin(options["task"], conversation, params))
        if (episode := self._runner.run(self._go_on())) is not None:
            raise EpisodeError(f"it asked for no turn: {_errors_of(episode)}")
        return [], {}

    def step(self, turn: Mapping[str, Any]) -> tuple[list[Message], float, bool, bool, dict[str, Any]]:
        """Answer with a turn, and run the episode until its agent asks for the next one, or ends.

        Raises:
            EpisodeError: It failed.
            ConversationError: It asks for what does not go on from the turn.
        """
        self._runner.run(self._give(turn))
        episode = self._runner.run(self._go_on())
        assert self._endpoint is not None
        if episode is None:
            return self._endpoint.asked.result(), 0.0, False, False, {}
        if self._endpoint.is_full:
            return [], 0.0, False, True, {}
        if not episode.ok:
            raise EpisodeError(_errors_of(episode))
        return [], sum(trace.reward for trace in episode.traces), True, False, {}

    def close(self) -> None:
        """End what it has started."""
        self._runner.close()

    # Within the loop

    async def _begin(self, row: Mapping[str, Any], conversation: Conversation, params: Mapping[str, float]) -> None:
        import verifiers.v1 as vf

        if self._episode is not None and not self._episode.done():
            self._episode.cancel()
            await asyncio.wait([self._episode], timeout=_PATIENCE_S)
        if self._endpoint is None:
            self._endpoint = ChatEndpoint(self._max_turns, self._tool_parser)
            self._address = await self._endpoint.start()
            os.environ[_TOKEN_VARIABLE] = self._endpoint.token
            await self._serve()
        self._endpoint.begin(conversation)
        kind = type(self._env.taskset).task_type()
        task = kind(kind.data_type().model_validate(dict(row)), self._env.taskset.config.task)
        client = vf.EvalClientConfig(base_url=self._address, api_key_var=_TOKEN_VARIABLE)
        named = {name: params[name] for name in ("temperature", "top_p") if name in params}
        context = vf.ModelContext(model=MODEL, client=client, sampling=vf.Sampling(**named))
        self._episode = asyncio.create_task(self._env.run_episode(task, context))

    async def _serve(self) -> None:
        """Start what the environment serves its agents with, in a task of its own."""
        is_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def serve() -> None:
            async with self._env.serving():
                is_up.set_result(None)
                await asyncio.Event().wait()

        self._serving = asyncio.create_task(serve())
        await asyncio.wait([self._serving, is_up], return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            self._serving.result()

    async def _give(self, turn: Mapping[str, Any]) -> None:
        assert self._endpoint is not None
        self._endpoint.give(turn)

    async def _go_on(self) -> Any:
        """Run until the agent asks, or the episode ends; gives the episode in the latter case."""
        assert self._endpoint is not None
        assert self._episode is not None
        await asyncio.wait([self._episode, self._endpoint.asked], return_when=asyncio.FIRST_COMPLETED)
        if self._endpoint.refused is not None:
            raise self._endpoint.refused
        return None if self._endpoint.asked.done() else self._episode.result()


def _loaded(env: str, arguments: Mapping[str, Any], max_turns: int) -> Any:
    """Load an environment.

    Raises:
        UnusableFunction: `verifiers` or the environment's package is not there, or takes other arguments.
    """
    try:
        import verifiers.v1 as vf
        from verifiers.v1.utils.loaders import builtin_harness_ids
    except ImportError as error:
        raise UnusableFunction(_without_package(error)) from error
    sys.path.append(str(Path.cwd()))
    chat_harness.register()
    assert chat_harness.NAME not in builtin_harness_ids()
    try:
        kind = vf.env_config_type(env, arguments.get("id", ""))
        defaults = {name: field.default for name, field in kind.model_fields.items()}
        role = _only_agent([name for name, value in defaults.items() if isinstance(value, vf.AgentConfig)])
        given = {**arguments, "taskset": {**arguments.get("taskset", {}), "id": env}}
        given[role] = {"max_turns": max_turns, "runtime": {"type": "subprocess"}, **arguments.get(role, {})}
        if defaults[role].harness is None and vf.default_harness_id(env) == "bash":
            given[role].setdefault("harness", {"id": chat_harness.NAME})
        return vf.load_environment(kind.model_validate(given))
    except UnusableFunction:
        raise
    except ModuleNotFoundError as error:
        raise UnusableFunction(
            f"{error}; install its package there, such as {sys.executable} -m pip install {env}, or name one that is"
        ) from error
    except Exception as error:
        raise UnusableFunction(f"loading it raised {in_words(error)}") from error


def _only_agent(roles: Sequence[str]) -> str:
    if len(roles) != 1:
        raise UnusableFunction(f"it has the agents {', '.join(roles)}; an episode of one agent can be trained")
    return roles[0]


def _without_package(error: ImportError) -> str:
    try:
        there = f"verifiers {metadata.version('verifiers')} of {sys.executable} cannot be imported ({error})"
    except metadata.PackageNotFoundError:
        there = f"{sys.executable} has no package verifiers"
    return (
        f"{there}; install it, best in an environment of its own: python -m venv DIR && "
        "DIR/bin/pip install 'verifiers>=0.4,<0.5', and set environment.python=DIR/bin/python"
    )


def _messages_of(data: Any) -> list[Message]:
    """The prompt of a task, as agents that send a conversation send it."""
    from verifiers.v1.dialects.chat import message_to_wire

    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    wire = (
        [{"role": "user", "content": data.prompt}]
        if isinstance(data.prompt, str)
        else map(message_to_wire, data.prompt)
    )
    try:
        return [*system, *map(message_of, wire)]
    except ConversationError as error:
        raise UnusableFunction(f"task {data.idx}: {error}") from error


def _row_of(task: Any) -> dict[str, Any]:
    row: dict[str, Any] = task.data.model_dump(mode="json")
    return row


def _errors_of(episode: Any) -> str:
    """What went wrong in an episode, the last first."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    return "; ".join(f"{error.type}: {error.message:.300}" for error in reversed(errors)) or "it ended without a reward"
