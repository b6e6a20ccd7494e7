"""Shows how far the runs of several experiments are: one bar in a terminal, a line per experiment elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rollpacker.config.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rollpacker.terminal import Terminal


@contextmanager
def shown_progress(runs: Mapping[str, set[Path]], console: Terminal) -> Iterator[Callable[[Path, bool], None]]:
    """Show how many runs are done; yields what is to be told of each run as it ends: its folder, whether it failed.

    Args:
        runs: What is to be done of each experiment.
        console: That people read while it lasts.
    """
    began = time.monotonic()
    waiting = {experiment: set(folders) for experiment, folders in runs.items()}
    failed: set[Path] = set()
    columns = (
        TextColumn("modelling {task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("runs"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        bar = progress.add_task(_current(waiting), total=len(set().union(*runs.values())))

        def on_run(folder: Path, has_failed: bool) -> None:
            if has_failed:
                failed.add(folder)
            for experiment in [name for name, folders in waiting.items() if folder in folders]:
                waiting[experiment].discard(folder)
                if not waiting[experiment] and not console.is_terminal:
                    num_ended = sum(not folders for folders in waiting.values())
                    num_failed = len(runs[experiment] & failed)
                    console.print(
                        f"{experiment}: {counted(len(runs[experiment]) - num_failed, 'run')} modelled"
                        f"{f', {num_failed} failed' if num_failed else ''}; {num_ended} of {len(runs)} experiments "
                        f"after {time.monotonic() - began:.0f} s",
                        soft_wrap=True,
                    )
            progress.update(bar, advance=1, description=_current(waiting))

        yield on_run


def _current(waiting: Mapping[str, set[Path]]) -> str:
    """The experiment at hand, and how many came before it."""
    names = list(waiting)
    at_hand = next((name for name, folders in waiting.items() if folders), "")
    return f"{at_hand} ({names.index(at_hand) + 1} of {len(names)} experiments)" if at_hand else ""
