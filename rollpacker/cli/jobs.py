"""`rollpacker jobs`: shows how the runs below some folders stand, once or until they are over."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.cli.command_help import CommandHelp
from rollpacker.core.errors import ConfigError

if TYPE_CHECKING:
    from rollpacker.cli.arguments import Arguments
    from rollpacker.launch.survey import Survey
    from rollpacker.terminal import Terminal

DEFAULT_FOLDER = "runs"
WATCH = "watch"

_SECONDS_BETWEEN_LOOKS = 5.0
"""Slurm's controller serves everybody; more often would not be kind to it."""

_AT_WORK = frozenset({"waiting", "requeued", "starting", "running", "ending"})


HELP = CommandHelp(
    purpose=(
        "Show the runs below some folders: what runs, waits, failed, died or was requeued, the step and reward of "
        "each, and the reason why it waits or stopped. Asks Slurm where a run has a job. A run that says it runs "
        "although its job is over is shown as died. Changes nothing."
    ),
    usage="[DIR ...] [watch]",
    arguments=(
        ("DIR", "A run.dir, or a folder with runs somewhere below it. Default: runs"),
        ("watch", "Draws the table again every 5 s until nothing runs or waits; Ctrl-C ends it."),
    ),
    examples=("rollpacker jobs runs/e2e watch",),
)


def run(arguments: Arguments) -> None:
    """Print how the runs stand; with `watch`, again and again until none of them is at work."""
    watches = WATCH in arguments.words
    folders = [Path(word) for word in arguments.words if word != WATCH]
    _refuse_unknown(folders)
    from rollpacker.cli.screen import output

    console = output()
    if watches:
        _watch(console, folders)
    else:
        _show(console, folders)


def _refuse_unknown(folders: list[Path]) -> None:
    for folder in folders:
        if folder.is_dir():
            continue
        from rollpacker.config.keys import nearest

        beside = [str(each) for each in folder.parent.iterdir() if each.is_dir()] if folder.parent.is_dir() else []
        close = nearest(str(folder), [*beside, WATCH])
        raise ConfigError(
            f"{folder} is not a folder.",
            f"`rollpacker jobs` takes folders with runs, and the word {WATCH}.",
            f"Write rollpacker jobs {close[0]}" if close else "For example: rollpacker jobs runs",
        )


def _show(console: Terminal, folders: list[Path]) -> None:
    from rollpacker.launch.job_table import job_table

    survey = _look(folders)
    if not survey.standings:
        console.print(_nothing(folders), soft_wrap=True)
        return
    console.print(job_table(survey.standings, now=time.time(), complaint=survey.complaint), crop=False)


def _watch(console: Terminal, folders: list[Path]) -> None:
    if not console.is_terminal:
        raise ConfigError(
            f"`{WATCH}` was given, and the output is not a terminal.",
            "A table that changes needs a terminal to change in.",
            f"Leave `{WATCH}` out; each call of `rollpacker jobs` prints the table once.",
        )
    from rich.live import Live
    from rich.text import Text

    from rollpacker.launch.job_table import job_table

    with Live(console=console, auto_refresh=False) as live:
        while True:
            survey = _look(folders)
            if survey.standings:
                table = job_table(survey.standings, now=time.time(), complaint=survey.complaint)
                live.update(table, refresh=True)
            else:
                live.update(Text(_nothing(folders)), refresh=True)
            if not any(standing.word in _AT_WORK for standing in survey.standings):
                return
            time.sleep(_SECONDS_BETWEEN_LOOKS)


def _look(folders: list[Path]) -> Survey:
    from rollpacker.launch.survey import find_runs, look_at

    found = (run_dir for folder in folders or _default() for run_dir in find_runs(folder))
    return look_at(list(dict.fromkeys(found)))


def _default() -> list[Path]:
    return [Path(DEFAULT_FOLDER)] if Path(DEFAULT_FOLDER).is_dir() else []


def _nothing(folders: list[Path]) -> str:
    places = ", ".join(map(str, folders)) or DEFAULT_FOLDER
    return f"There are no runs below {places}. `rollpacker train` makes them; `rollpacker jobs DIR` looks elsewhere."
