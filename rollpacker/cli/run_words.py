"""What `rollpacker trace` and `rollpacker report` are given: folders of runs, and a few settings as key=value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWords:
    """Words of a command line, told apart."""

    runs: tuple[Path, ...]
    settings: Mapping[str, str]


def parse_run_words(command: str, words: Sequence[str], settings: Sequence[str], max_runs: int) -> RunWords:
    """Tell runs from settings; a folder whose name looks like a setting (as Hydra names some) is a folder."""
    runs: list[Path] = []
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier() or Path(word).is_dir():
            runs.append(Path(word))
        elif name not in settings or not value:
            raise _unknown_setting(command, word, name, settings)
        else:
            found[name] = value
    if not 1 <= len(runs) <= max_runs:
        given = " ".join(map(str, runs)) or "no run"
        folders = "the run.dir of one run" if max_runs == 1 else "the run.dir of one run, or of two to compare"
        raise ConfigError(
            f"`rollpacker {command}` was given {given}.",
            f"It takes {folders}, and {', '.join(f'{each}=...' for each in settings)}.",
            f"For example: rollpacker {command} runs/x",
        )
    return RunWords(runs=tuple(runs), settings=found)


def parse_steps(text: str) -> tuple[int, int]:
    """Read FIRST:END, whose END does not count, or a single step; gives the first and the last step."""
    first, colon, end = text.partition(":")
    if first.isdecimal() and (not colon or (end.isdecimal() and int(first) < int(end))):
        return int(first), int(end) - 1 if colon else int(first)
    raise ConfigError(
        f"steps={text}.",
        "It is one step from 0, or FIRST:END with FIRST below END; END itself does not count.",
        "For example: steps=10:20",
    )


def _unknown_setting(command: str, word: str, name: str, settings: Sequence[str]) -> ConfigError:
    from rollpacker.config.keys import nearest

    close = nearest(name, settings)
    return ConfigError(
        f"`rollpacker {command}` was given {word}.",
        f"Beside runs it takes {', '.join(f'{each}=...' for each in settings)}.",
        f"Write {close[0]}=..." if close else f"`rollpacker {command} --help` says what each is.",
    )
