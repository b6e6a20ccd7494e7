"""What the commands of this room are given: names, and settings as key=value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.config.keys import nearest
from rollpacker.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def parse_settings(
    command: str, words: Sequence[str], defaults: Mapping[str, str], *, example: str
) -> tuple[list[str], dict[str, str]]:
    """Tell names from settings, and complete the settings; refuses one that is not among the defaults."""
    names, settings = [], dict(defaults)
    for word in words:
        key, has_value, value = word.partition("=")
        if not has_value:
            names.append(word)
        elif key not in defaults or not value:
            close = nearest(key, defaults)
            raise ConfigError(
                f"`rollpacker {command}` was given {word}.",
                f"It takes {', '.join(f'{each}=...' for each in defaults)}.",
                f"Write {close[0]}=..." if close else f"For example: rollpacker {command} {example}",
            )
        else:
            settings[key] = value
    return names, settings


def whole_number(settings: Mapping[str, str], key: str, *, least: int = 1) -> int:
    """Read a count."""
    text = settings[key]
    if text.isascii() and text.isdigit() and int(text) >= least:
        return int(text)
    raise ConfigError(
        f"{key}={text} is not legal.", f"`{key}` is an integer of at least {least}.", f"For example: {key}=2"
    )
