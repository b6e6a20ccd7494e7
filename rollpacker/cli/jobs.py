"""`rollpacker jobs`: shows the status of the runs below some folders, once or until they are over."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from rollpacker.cli.command_help import CommandHelp
from rollpacker.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from rollpacker.cli.arguments import Arguments
    from rollpacker.terminal import Terminal

DEFAULT_FOLDER = "runs"
WATCH = "watch"

_POLL_INTERVAL_S = 5.0
"""Slurm's controller serves all users; polling it more often would load it."""

_MOST_UNREAD = 3
"""Sentences about what cannot be read: each run of another version has one or two."""

_ACTIVE = frozenset({"waiting", "requeued", "starting", "running", "ending"})


HELP = CommandHelp(
    purpose=(
        "Show the runs below some folders: which run, wait, failed, died or were requeued, the step of each and the "
        "mean reward of its last 10 steps, and why it waits or stopped. `held out` is the score of the first held-out "
        "set that has one in the newest evaluation; +1 says that there is another set. `time` is how long the last "
        "attempt of its job ran; of a run without a job, how long all attempts took until its last step's end, with "
        "evaluations and checkpoints before that, and without their start and what was done again. Asks Slurm about "
        "runs that have a job. A run whose status is `running` although its job is over is shown as died. Changes "
        "nothing."
    ),
    usage="[DIR ...] [watch]",
    arguments=(
        ("DIR", "A run.dir, or a folder with runs somewhere below it. Default: runs"),
        ("watch", "Redraw the table every 5 s until no run is active; Ctrl-C ends it."),
    ),
    examples=("rollpacker jobs runs/e2e watch",),
)


def run(arguments: Arguments) -> None:
    """Print the status of the runs; with `watch`, again until none of them is active."""
    watches = WATCH in arguments.words
    folders = [Path(word) for word in arguments.words if word != WATCH]
    _refuse_unknown(folders)
    from rollpacker.cli.screen import output

    console = output()
    if watches:
        _watch(console, folders)
    else:
        shown, _ = _draw(folders)
        for part in shown:
            console.print(part, crop=False, soft_wrap=isinstance(part, Text))


def _refuse_unknown(folders: list[Path]) -> None:
    if absent := [folder for folder in folders if not folder.is_dir()]:
        from rollpacker.config.keys import nearest

        is_one, parent = len(absent) == 1, absent[0].parent
        beside = [str(each) for each in parent.iterdir() if each.is_dir()] if parent.is_dir() else []
        close = nearest(str(absent[0]), [*beside, WATCH]) if is_one else []
        raise ConfigError(
            f"{', '.join(map(str, absent))} {'is not a folder' if is_one else 'are not folders'}.",
            f"`rollpacker jobs` takes folders with runs, and the argument {WATCH}.",
            f"Write rollpacker jobs {shlex.quote(close[0])}" if close else "For example: rollpacker jobs runs",
        )


def _watch(console: Terminal, folders: list[Path]) -> None:
    if not console.is_terminal:
        raise ConfigError(
            f"`{WATCH}` was given, and the output is not a terminal.",
            "A table can be redrawn only in a terminal.",
            f"Leave `{WATCH}` out; each call of `rollpacker jobs` prints the table once.",
        )
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        while True:
            _refuse_unknown(folders)  # one may have been removed meanwhile
            shown, is_active = _draw(folders)
            live.update(Group(*shown), refresh=True)
            if not is_active:
                return
            time.sleep(_POLL_INTERVAL_S)


def _draw(folders: list[Path]) -> tuple[list[RenderableType], bool]:
    """Draw the runs below the folders, with sentences as `Text`, and say whether one of the runs is active."""
    from rollpacker.launch.collect_status import collect_status, find_runs
    from rollpacker.launch.job_table import job_table

    found = (run_dir for folder in folders or _default() for run_dir in find_runs(folder))
    collected = collect_status(list(dict.fromkeys(found)))
    if not collected.views:
        return [Text(_nothing(folders))], False
    table = job_table(collected.views, now=time.time(), complaint=collected.complaint)
    sentences = ["", *_first(collected.unread)] if collected.unread else []
    return [table, *map(Text, sentences)], any(view.state in _ACTIVE for view in collected.views)


def _first(sentences: Sequence[str]) -> list[str]:
    """The first few, and how many more there are."""
    from rollpacker.config.words import counted

    num_more = len(sentences) - _MOST_UNREAD
    more = [f"And {counted(num_more, 'more file')} cannot be read."] if num_more > 0 else []
    return [*sentences[:_MOST_UNREAD], *more]


def _default() -> list[Path]:
    return [Path(DEFAULT_FOLDER)] if Path(DEFAULT_FOLDER).is_dir() else []


def _nothing(folders: list[Path]) -> str:
    places = ", ".join(map(str, folders)) or DEFAULT_FOLDER
    return f"There are no runs below {places}. `rollpacker train` makes them; `rollpacker jobs DIR` shows others."
