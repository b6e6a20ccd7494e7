"""`rollpacker analysis compare RUN|DIR ... [out=DIR]`: reads the runs, prints the table and writes the figure.

The first column is the baseline; of a folder's runs, plain batches are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.text import Text

from rollpacker.analysis.compare.columns import columns_of, said_of_settings
from rollpacker.analysis.compare.figure import draw
from rollpacker.analysis.compare.numbers import rows_of
from rollpacker.analysis.compare.scores import scores_of
from rollpacker.analysis.compare.table import error_said, is_mixed, tables_of
from rollpacker.analysis.runs import Run, find_runs, read_runs, shared_steps
from rollpacker.config.words import counted
from rollpacker.core.errors import ConfigError
from rollpacker.terminal import Terminal

BASELINE = "verl"
"""The system that a folder's other runs are compared with."""

_RECORD_OF_MULTIRUN = "multirun.yaml"
"""Hydra writes it beside the runs; a shell's `runs/*` names it, too."""

_WAITS = (
    "The rollout time of an asynchronous column is what a step waits for its batch: engines go on while the trainer "
    "learns. It has no rollout speedup."
)

_MIXED = "Measured and modelled times are not compared: columns of another kind than the first have no speedup."


def show(given: Sequence[Path], out: Path) -> None:
    """Print the table and write the figure; what cannot be read is left out, and said.

    Raises:
        ConfigError: A path does not exist, no run could be read, or they have no step in common.
    """
    if absent := [path for path in given if not path.exists()]:
        raise ConfigError(
            f"{' and '.join(map(str, absent))} {'does' if len(absent) == 1 else 'do'} not exist.",
            "Runs, or folders with runs, are compared.",
            "Check the path; `rollpacker jobs DIR` lists the runs below DIR.",
        )
    runs, problems = _read(given)
    for problem in problems:
        _note(problem)
    shared = shared_steps(runs)
    if not shared:
        missing = "step that all runs have" if runs else "run with a finished step"
        raise ConfigError(
            f"There is no {missing} in {', '.join(map(str, given)) or 'what was given'}.",
            "Runs, or folders with runs, are compared with the first of them.",
            "For example: rollpacker analysis compare runs/verl runs/rollpacker",
        )
    console = Terminal()
    columns = columns_of(runs)
    scores = scores_of(columns)
    rows = rows_of(columns, scores, shared)
    for table in tables_of(columns, rows, len(shared), console.width):
        console.print(table)
    if any(each and each.error is not None for row in rows for each in row.values):
        console.print(Text(f"+-: {error_said(columns, scores)}", style="dim"))
    for sentence in (
        _said_of_steps(runs, len(shared)),
        said_of_settings(columns),
        _WAITS if any(column.is_async for column in columns) else "",
        _MIXED if is_mixed(columns) else "",
        *scores.said(shared[-1] + 1),
    ):
        if sentence:
            console.print(sentence, soft_wrap=True)
    times = next(row for row in rows if row.title == "rollout time")
    for path in draw(columns, scores, times, shared, out / "compare"):
        console.print(f"figure: {path}", soft_wrap=True)
    for sentence in dict.fromkeys(sentence for run in runs for sentence in run.unread):
        _note(sentence)


def _read(given: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Read every run once, in the order given and in a folder the baseline's first; also what to say of the others."""
    runs: dict[str, Run] = {}
    problems = []
    for path in given:
        found, own = read_runs(_folders(path))
        problems += own
        for run in sorted(found, key=lambda run: run.system != BASELINE):
            runs.setdefault(os.path.realpath(run.folder), run)
    return list(runs.values()), problems


def _folders(path: Path) -> list[Path]:
    """The runs at or below a folder; of anything else itself."""
    if path.name == _RECORD_OF_MULTIRUN and path.is_file():
        return []
    return list(find_runs(path)) or [path]


def _said_of_steps(runs: Sequence[Run], num_shared: int) -> str:
    """That runs have different steps, and which has the fewest; empty where all have the same."""
    lengths = {len(run.steps) for run in runs}
    if lengths == {num_shared}:
        return ""
    fewest = min(runs, key=lambda run: len(run.steps)).folder
    numbers = f"{min(lengths)} to {max(lengths)} steps" if len(lengths) > 1 else counted(min(lengths), "step")
    return f"The runs have {numbers}, {fewest} the fewest: all means are over the {num_shared} that all have."


def _note(text: str) -> None:
    Terminal(stderr=True).print(text, style="dim", soft_wrap=True)
