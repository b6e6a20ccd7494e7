"""Separates the options of a command from its other arguments; raises for an unknown option, with the nearest one."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from rollpacker.cli.command_help import CommandHelp
from rollpacker.config.words import key_of
from rollpacker.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel

    from rollpacker.config.roots import Root

_KEY = re.compile(r"[A-Za-z_][\w.]*(/\w+)?")
"""A dotted key, or a group such as hydra/launcher."""

_OTHER_FORMATS = (".parquet", ".arrow", ".csv", ".tsv", ".xlsx", ".gz", ".zst", ".zip")
"""Endings of tables and of packed files."""

OVERWRITE = (
    "overwrite",
    "true replaces the file that `out` names, if it exists. Default: false",
)
"""An argument of commands that write one file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What follows a command."""

    words: tuple[str, ...]
    """All arguments that are no options, in order."""
    is_help: bool
    is_multirun: bool


class _Parser(argparse.ArgumentParser):
    """Raises our errors instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}.", "", f"`{self.prog} --help` says what it takes.")


def parse_arguments(command: str, argv: Sequence[str], help_text: CommandHelp, *, can_sweep: bool) -> Arguments:
    """Parse what follows `rollpacker <command>`."""
    parser = _Parser(prog=f"rollpacker {command}", add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    if can_sweep:
        parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("words", nargs="*")
    found, unknown = parser.parse_known_intermixed_args(list(argv))
    if unknown:
        raise _unknown_option(command, unknown[0], ["--help", "--multirun"] if can_sweep else ["--help"], help_text)
    if not found.help:
        _refuse_empty(command, found.words)
        _refuse_repeated(found.words)
        _refuse_misspelt(command, found.words, help_text)
    return Arguments(words=tuple(found.words), is_help=found.help, is_multirun=getattr(found, "multirun", False))


def refuse_other_format(out: Path) -> None:
    """Refuse a name for JSON lines that ends as files of another format do; it would be read as one."""
    if out.suffix.lower() in _OTHER_FORMATS:
        raise ConfigError(
            f"out={out} ends with {out.suffix}, and what is written is JSON lines.",
            f"It is a file of any other ending than {', '.join(_OTHER_FORMATS)}, or - for standard output.",
            f"Write out={str(out.with_suffix('')).removesuffix('.jsonl')}.jsonl",
        )


def is_overwriting(settings: Mapping[str, str]) -> bool:
    """Read `overwrite`, which may be empty."""
    from rollpacker.cli.settings import choice

    return choice({"overwrite": settings["overwrite"] or "false"}, "overwrite", ("true", "false")) == "true"


def _refuse_empty(command: str, words: Sequence[str]) -> None:
    """Refuse an empty argument, as a shell passes for an unset variable in quotes: it would name this folder."""
    if any(not word.strip() for word in words):
        raise ConfigError(
            f"An argument of `rollpacker {command}` is empty.",
            "An argument names a folder, a file or a key.",
            "Leave it out, or set the variable that it is made of.",
        )


def _refuse_repeated(words: Sequence[str]) -> None:
    """Refuse a key, group or setting that is given twice: the last one would win silently."""
    given: dict[str, list[str]] = {}
    for word in words:
        name = key_of(word)
        if "=" in word and _KEY.fullmatch(name) and not os.path.exists(word):  # noqa: PTH110  a folder may be called so
            given.setdefault(name, []).append(word)
    for name, repeated in given.items():
        if len(repeated) > 1:
            raise ConfigError(
                f"`{name}` is given twice: {' and '.join(f'`{word}`' for word in repeated)}.",
                "A key or a group has one value; several values for a multirun (-m) are one list: KEY=A,B.",
                "Leave out all but one; a mapping is quoted for the shell: 'KEY={a:b,c:d}'.",
            )


def _refuse_misspelt(command: str, words: Sequence[str], help_text: CommandHelp) -> None:
    """Refuse a word that is nearly one of the command's own, before it is read as a key."""
    from rollpacker.config.keys import nearest

    named = [word for word, _ in help_text.arguments if word.isalpha() and word.islower()]
    own = [word for word in named if f"{word}=" not in help_text.usage]
    for word in words if help_text.takes_keys else ():
        if "=" not in word and word not in own and (close := nearest(word, own)):
            raise ConfigError(
                f"`{word}` is not an argument of `rollpacker {command}`.",
                f"It takes {' or '.join(own)}; all else is key=value or group=option.",
                f"Write {close[0]}.",
            )


def _unknown_option(command: str, option: str, options: Sequence[str], help_text: CommandHelp) -> ConfigError:
    from rollpacker.config.keys import nearest
    from rollpacker.config.names_elsewhere import is_set_otherwise, key_beside, key_for, value_set_by, why_absent
    from rollpacker.config.roots import SCORE, TRAIN

    name, _, value = option.lstrip("-").partition("=")
    name = name.replace("-", "_")
    rest = "all else is key=value or group=option" if help_text.takes_keys else f"it takes {help_text.usage}"
    problem = f"`{option}` is not an option."
    allowed = f"`rollpacker {command}` has the options {', '.join(options)}; {rest}."
    if help_text.takes_keys and (reason := why_absent(name)):
        return ConfigError(problem, reason, "Leave it out.")
    if help_text.takes_keys and (ours := key_for(name)):
        unknown = f"VALUE and {second}=VALUE" if (second := key_beside(name)) else "VALUE"
        given = value_set_by(name, value) or (unknown if is_set_otherwise(name) else value or unknown)
        return ConfigError(problem, allowed, f"Keys have no dashes: write {ours}={given}")
    if close := nearest(option, options):
        return ConfigError(problem, allowed, f"Write {close[0]}")
    if close := nearest(name, [word for word, _ in help_text.arguments if word.islower()]):
        assigned = f"={value or 'VALUE'}" if f"{close[0]}=" in help_text.usage else ""
        return ConfigError(problem, allowed, f"Arguments have no dashes: write {close[0]}{assigned}")
    root = SCORE if help_text.lists_keys_of == "score" else TRAIN
    if help_text.takes_keys and (meant := _meant(root, name, value)):
        return ConfigError(problem, allowed, f"Keys have no dashes: write {meant}={value or 'VALUE'}")
    return ConfigError(problem, allowed, f"`rollpacker {command} --help` says what it takes.")


def _meant(root: Root[BaseModel], name: str, value: str) -> str:
    """The group or key nearest to a name; of a group, its path where the value is none of its options."""
    from rollpacker.config.keys import legal_keys, nearest
    from rollpacker.config.roots import groups

    keys = legal_keys(root.schema)
    close = next(iter(nearest(name, [*groups(root), *keys])), "")
    is_option = close in groups(root) and value in groups(root)[close].options
    return f"{close}.path" if f"{close}.path" in keys and not is_option else close
