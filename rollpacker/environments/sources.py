"""Says which class the process of a run's environments makes, and with which arguments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig


_OF_PROMPTS = ("chat_template", "template_arguments", "system_prompt", "plain_as_chat")
"""Keys of the data section that say how prompts become text."""


class Source(NamedTuple):
    """What an environment is made of."""

    name: str
    """Of the class, `FILE.py:NAME` or `PACKAGE.MODULE:NAME`."""
    arguments: dict[str, Any]


def source_of(config: RunConfig) -> Source:
    """Look it up; the configuration has environments."""
    section = config.environment
    assert section is not None
    if section.name == "tools":
        return Source(
            "rollpacker.environments.tools:Tools", {"tools": list(section.tools), "parser": section.tool_parser}
        )
    if section.name == "loop":
        return Source(
            "rollpacker.environments.loop:Loop",
            {
                "loop": section.loop,
                "arguments": section.arguments,
                "model_path": str(config.model.directory),
                "data": config.data.model_dump(mode="json", include=set(_OF_PROMPTS)),
                "max_turns": section.max_turns,
                "needs_reward": "environment" in config.reward.names,
            },
        )
    assert section.env is not None
    if section.name == "verifiers":
        return Source(
            "rollpacker.environments.verifiers:Verifiers",
            {
                "env": section.env,
                "arguments": section.arguments,
                "max_turns": section.max_turns,
                "tool_parser": section.tool_parser,
            },
        )
    return Source(section.env, section.arguments)


def files_of(config: RunConfig) -> Iterator[Path]:
    """Give the files and folders that a configuration's environments name, and with a loop the model's tokenizer."""
    section = config.environment
    assert section is not None
    for text in _texts_in([section.env, section.loop, section.tools, section.arguments]):
        file = text.rpartition(":")[0]
        if file.endswith(".py"):
            yield Path(file).parent
        elif text.startswith("/"):
            yield Path(text)
    if section.name == "loop":
        yield config.model.directory
        if config.data.chat_template is not None:
            yield config.data.chat_template


def _texts_in(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            yield from _texts_in(list(value.values()))
        case list() | tuple():
            for each in value:
                yield from _texts_in(each)
