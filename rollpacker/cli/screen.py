"""The output of the command line: consoles, error blocks, tables of facts, progress bars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from rollpacker.core.errors import InternalError, Interrupted, Preempted, RollpackerError, UserError
from rollpacker.metrics.outputs import is_standard_output
from rollpacker.terminal import Terminal


def output(*, beside: Path | None = None) -> Terminal:
    """The console for results, or for messages `beside` a result that goes to this path: never into it."""
    return Terminal(stderr=beside is not None and is_standard_output(beside))


def show_error(error: RollpackerError, *, title: str | None = None) -> None:
    """Print one block on stderr: what is wrong, what is allowed, what to do. In a terminal it is a panel."""
    console = Terminal(stderr=True)
    parts = [(error.problem or type(error).__name__, "bold"), (error.allowed, ""), (error.remedy, "green")]
    title = title or _heading(error)
    if console.is_terminal:
        lines = [_indented(line, style) for text, style in parts for line in text.splitlines()]
        console.print(Panel(Group(*lines), title=Text(title), title_align="left", border_style="red", box=box.ROUNDED))
    else:
        console.print(Text("\n".join([f"{title}:", *(text for text, _ in parts if text)])), soft_wrap=True)


_MANY_POINTS = 50
"""Composing takes 0.1 s each; from here on a message says so."""


def tell_points(num_points: int) -> None:
    """Print on stderr how many points of a multirun are composed, when there are many."""
    if num_points >= _MANY_POINTS:
        show_notes([f"{num_points:,} points are composed before the first one starts."])


def show_notes(notes: Iterable[str]) -> None:
    """Print notes on stderr, a line each."""
    console = Terminal(stderr=True)
    for note in notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def facts(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Make a borderless table of labels and contents."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, content in rows:
        table.add_row(label, content)
    return table


def heading(text: str) -> Text:
    """Make the title of a section."""
    return Text(text, style="bold cyan")


def _indented(line: str, style: str) -> Padding:
    """Keep a line's indentation when it wraps."""
    text = line.lstrip(" ")
    return Padding(Text(text, style=style), (0, 0, 0, len(line) - len(text)))


def _heading(error: RollpackerError) -> str:
    if isinstance(error, UserError):
        return "error"
    if isinstance(error, Preempted):
        return "preempted"
    if isinstance(error, Interrupted):
        return "interrupted"
    return "a bug in rollpacker" if isinstance(error, InternalError) else "failed"


class Progress:
    """A bar in a terminal; lines elsewhere."""

    def __init__(self, bar: Bar, num_runs: int | None = None) -> None:
        self._bar = bar
        self._num_runs = num_runs
        self._task = bar.add_task("", total=num_runs)
        self._num_done = 0
        self._tenths_shown = -1

    def stage(self, title: str) -> None:
        """The modelled runs of a stage are next."""
        self._bar.update(self._task, description=title)
        self._say(f"{self._num_done} of {self._num_runs} modelled runs; next: {title}")

    def advance(self) -> None:
        """A modelled run is done."""
        self._num_done += 1
        self._bar.advance(self._task)

    def points(self, num_done: int, num_points: int, what: str) -> None:
        """`num_done` points are measured, and `what` is next; without points, a stage starts."""
        self._bar.update(self._task, completed=num_done, total=num_points or None, description=what)
        tenths = 10 * num_done // num_points if num_points else -1
        if not num_points or tenths > self._tenths_shown:
            self._say(f"{num_done} of {num_points} points" if num_points else f"{what} ...")
            self._tenths_shown = tenths

    def note(self, text: str) -> None:
        self._bar.console.print(f"note: {text}")

    def _say(self, text: str) -> None:
        if not self._bar.console.is_terminal:
            self._bar.console.print(text)


@contextmanager
def profile_progress() -> Iterator[Progress]:
    """Show the progress of a profile."""
    console = Terminal(stderr=True)
    with _bar(console, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()) as bar:
        yield Progress(bar)


@contextmanager
def plan_progress(num_runs: int, num_workers: int) -> Iterator[Progress]:
    """Show the progress of modelled runs."""
    console = Terminal(stderr=True)
    processes = "1 process" if num_workers == 1 else f"{num_workers} processes"
    console.print(f"{num_runs} modelled runs in {processes}; Ctrl-C ends them.")
    with _bar(console, TimeElapsedColumn()) as bar:
        yield Progress(bar, num_runs)


def _bar(console: Terminal, *times: ProgressColumn) -> Bar:
    columns = (BarColumn(bar_width=30), MofNCompleteColumn(), *times, TextColumn("{task.description}", markup=False))
    return Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
