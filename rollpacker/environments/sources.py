"""Says which class the process of a run's environments makes, and with which arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig


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
    assert section.env is not None
    return Source(section.env, section.arguments)
