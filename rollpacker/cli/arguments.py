"""Splits the words after a command into options and the rest; an unknown option is refused with the nearest one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from rollpacker.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What follows a command."""

    words: tuple[str, ...]
    """Everything that is not an option, in order."""
    is_help: bool
    is_multirun: bool


class _Parser(argparse.ArgumentParser):
    """Raises our errors instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}.", "", f"`{self.prog} --help` says what it takes.")


def parse_arguments(command: str, argv: Sequence[str], *, can_sweep: bool) -> Arguments:
    """Parse what follows `rollpacker <command>`."""
    parser = _Parser(prog=f"rollpacker {command}", add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    if can_sweep:
        parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("words", nargs="*")
    found, unknown = parser.parse_known_intermixed_args(list(argv))
    if unknown:
        raise _unknown_option(command, unknown[0], ["--help", "--multirun"] if can_sweep else ["--help"])
    return Arguments(words=tuple(found.words), is_help=found.help, is_multirun=getattr(found, "multirun", False))


def _unknown_option(command: str, option: str, options: Sequence[str]) -> ConfigError:
    from rollpacker.config.keys import legal_keys, nearest
    from rollpacker.config.schema import RunConfig

    name, _, value = option.lstrip("-").replace("-", "_").partition("=")
    allowed = f"`rollpacker {command}` has the options {', '.join(options)}; all else is key=value or group=option."
    if close := nearest(option, options):
        return ConfigError(f"`{option}` is not an option.", allowed, f"Write {close[0]}")
    if close := nearest(name, legal_keys(RunConfig)):
        return ConfigError(
            f"`{option}` is not an option.", allowed, f"Keys have no dashes: write {close[0]}={value or 'VALUE'}"
        )
    return ConfigError(f"`{option}` is not an option.", allowed, f"`rollpacker {command} --help` says what it takes.")
