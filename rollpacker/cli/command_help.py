"""The help text of a command: each command's module has one, `HELP`, and `cli.help` prints it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

INPUTS = "model.path=DIR data.path=prompts.jsonl"
"""The inputs of a real run, for examples."""

CONFIG_FILE = (
    "config",
    (
        "The config.yaml of a run, its folder, or a YAML file of your own. Other words override its values; an option "
        "of system, model, elastic, placement, hardware, workload or cluster replaces a section that names another "
        "one, and of one that names none the settings that the option itself sets. Not with -m: the points of a "
        "multirun are composed from words."
    ),
)
"""An argument of commands that compose a run."""

KEYS_OF_TRAIN = ("all others", "As `rollpacker train` takes them; `rollpacker train --help` lists them.")
"""An argument of commands that describe a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandHelp:
    """A command's help text."""

    purpose: str
    usage: str
    """What follows the command's name."""
    arguments: tuple[tuple[str, str], ...] = ()
    """Each with its text."""
    examples: tuple[str, ...]
    """Command lines that can be copied."""
    lists_keys_of: Literal["train", "score"] | None = None
    """The primary file of `conf/` whose groups and keys are part of the text."""

    @property
    def takes_keys(self) -> bool:
        """Whether arguments are keys and groups of the configuration."""
        return self.lists_keys_of is not None or KEYS_OF_TRAIN in self.arguments
