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
    """Read FIRST:LAST or a single step, counted from 1; gives the first and the last one as the tables count them."""
    first, colon, last = text.partition(":")
    if _is_step(first) and (not colon or (_is_step(last) and int(first) <= int(last))):
        return int(first) - 1, int(last if colon else first) - 1
    raise ConfigError(
        f"steps={text}.",
        "It is one step, counted from 1, or FIRST:LAST with both included.",
        "For example: steps=10:20",
    )


def parse_step(text: str) -> int:
    """Read a step, counted from 1; gives it as the tables count it."""
    if _is_step(text):
        return int(text) - 1
    raise ConfigError(f"step={text}.", "It is the number of one step, counted from 1.", "For example: step=12")


def _is_step(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


def _unknown_setting(command: str, word: str, name: str, settings: Sequence[str]) -> ConfigError:
    from rollpacker.config.keys import nearest

    close = nearest(name, settings)
    return ConfigError(
        f"`rollpacker {command}` was given {word}.",
        f"Beside runs it takes {', '.join(f'{each}=...' for each in settings)}.",
        f"Write {close[0]}=..." if close else f"`rollpacker {command} --help` says what each is.",
    )
