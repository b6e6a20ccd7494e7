"""Settings NAME=VALUE of commands that are not keys of a run's configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollpacker.core.errors import ConfigError

_MOST_DIGITS = 9
"""Of a count: Python reads no number of 5,000 digits, and tables have no such rows."""


def parse_settings(
    command: str, arguments: Sequence[str], defaults: Mapping[str, str], *, example: str, takes_keys: bool = False
) -> tuple[list[str], dict[str, str]]:
    """Separate the other arguments of a command from its settings, and complete these by their defaults.

    Args:
        command: Its name.
        arguments: A folder whose name has a `=` (as Hydra names some) is no setting.
        defaults: Of every setting.
        example: Arguments for the message.
        takes_keys: The other arguments may be keys and groups of a run.

    Raises:
        ConfigError: A setting is unknown, or has no value.
    """
    others, settings = [], dict(defaults)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        is_folder = os.path.isdir(argument)  # noqa: PTH112  never raises: a value may be longer than a path
        if not equals or not (name.isidentifier() or name in defaults) or is_folder:
            others.append(argument)
        elif name in defaults and value:
            settings[name] = value
        elif takes_keys and _may_be_key(name, defaults):
            others.append(argument)
        else:
            raise _unknown_setting(command, argument, defaults, example, takes_keys=takes_keys)
    return others, settings


def parse_runs(
    command: str, arguments: Sequence[str], names: Sequence[str], max_runs: int, example: str = "runs/x"
) -> tuple[tuple[Path, ...], dict[str, str]]:
    """Separate the run folders, at least one, from the settings; a setting that is not given is empty."""
    runs, settings = parse_settings(command, arguments, dict.fromkeys(names, ""), example=example)
    if not 1 <= len(runs) <= max_runs:
        folders = "the run.dir of one run" if max_runs == 1 else "the run.dir of one run, or of two to compare"
        optional = f", and any of {', '.join(f'{name}=...' for name in names)}" if names else ""
        raise ConfigError(
            f"`rollpacker {command}` was given {' '.join(runs) or 'no run'}.",
            f"It takes {folders}{optional}.",
            f"For example: rollpacker {command} {example}",
        )
    return tuple(map(Path, runs)), settings


def whole_number(settings: Mapping[str, str], name: str, *, least: int = 1) -> int:
    """Read a count."""
    text = settings[name]
    if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and int(text) >= least:
        return int(text)
    raise ConfigError(
        f"{name}={text} is not legal.",
        f"`{name}` is an integer of at least {least}, with at most {_MOST_DIGITS} digits.",
        f"For example: {name}=2",
    )


def choice(settings: Mapping[str, str], name: str, options: Sequence[str]) -> str:
    """Read one of a few values, in whatever case it is written."""
    if (value := settings[name].lower()) in options:
        return value
    named = [option for option in options if option]
    raise ConfigError(
        f"{name}={settings[name]} is not legal.", f"`{name}` is one of {', '.join(named)}.", f"Write {name}={named[0]}."
    )


def parse_steps(text: str) -> tuple[int, int]:
    """Read FIRST:LAST or a single step, counted from 1; gives the first and the last one as the tables count them."""
    first, colon, last = text.partition(":")
    if _is_step(first) and (not colon or (_is_step(last) and int(first) <= int(last))):
        return int(first) - 1, int(last if colon else first) - 1
    raise ConfigError(
        f"steps={text}.",
        "It is one step, counted from 1, or FIRST:LAST with both included.",
        "For example: steps=10:20",
    )


def _is_step(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS and int(text) > 0


def _may_be_key(name: str, settings: Mapping[str, str]) -> bool:
    """Whether a name is a group or a key of a run, or like no setting: then composing the run reports it."""
    from rollpacker.config.keys import legal_keys, nearest
    from rollpacker.config.roots import TRAIN, groups
    from rollpacker.config.schema import RunConfig

    return name in groups(TRAIN) or name in legal_keys(RunConfig) or not nearest(name, settings)


def _unknown_setting(
    command: str, argument: str, names: Mapping[str, str], example: str, *, takes_keys: bool
) -> ConfigError:
    from rollpacker.config.keys import nearest

    close = nearest(argument.partition("=")[0], names)
    beside = "Beside keys and groups of a run it" if takes_keys else "It"
    return ConfigError(
        f"`rollpacker {command}` was given {argument}.",
        f"{beside} takes {', '.join(f'{name}=...' for name in names)}.",
        f"Write {close[0]}=..." if close else f"For example: rollpacker {command} {example}",
    )
