"""`rollpacker gpu-check`: shows on real GPUs what a machine without any cannot, one line per row."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rollpacker.cli.command_help import CommandHelp
from rollpacker.core.errors import ConfigError, Interrupted, WorldError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from rich.table import Table

    from rollpacker.cli.arguments import Arguments
    from rollpacker.gpu_check.outcomes import Outcome
    from rollpacker.gpu_check.table import Row

_MODEL = "model.path"
DEFAULTS = {_MODEL: "", "rows": "", "out": "runs/gpu-check", "again": "false"}

_STYLES = {"passed": "green", "failed": "bold red", "not possible": "dim"}

HELP = CommandHelp(
    purpose=(
        "Run on this machine's GPUs (1 to 8) what only GPUs can show: engines and trainers that share one and free its "
        "memory, weights by CUDA IPC and NCCL, FSDP2 and Megatron-core against torch, flash attention, whole runs, and "
        "figures. Each row passes, fails with its reason, or is not possible here. Rows that have passed with the same "
        "GPUs, model and code are not run again; nor is one on a GPU that others use. Expect a quarter of an hour on "
        "one GPU; all rows together have run nowhere yet. The exit code is 0 when rows have passed and none has failed."
    ),
    usage="[model.path=DIR] [rows=NAME,...] [out=DIR] [again=true]",
    arguments=(
        ("model.path", "Measures with this model, a directory or a name in the local cache. Default: a random one"),
        ("rows", "Only these rows. Default: all"),
        ("out", f"Results, logs and models that it makes. Default: {DEFAULTS['out']}"),
        ("again", "true also runs the rows that have passed. Default: false"),
    ),
    examples=("rollpacker gpu-check", "rollpacker gpu-check model.path=Qwen/Qwen2.5-1.5B-Instruct rows=decode,mfu"),
)


def run(arguments: Arguments) -> None:
    """Run the rows and print what became of each.

    Raises:
        WorldError: A row failed, or none could run.
    """
    from rich.text import Text

    from rollpacker.cli.screen import output
    from rollpacker.cli.settings import choice, parse_settings
    from rollpacker.gpu_check.checking import Checking, this_machine
    from rollpacker.runtime.job.signals import signals_handled
    from rollpacker.runtime.run.folder_checks import check_folder
    from rollpacker.runtime.run.streams import keep_writing

    keep_writing("stdout", is_result=True)  # without a reader all rows are run and decide the exit code
    others, settings = parse_settings("gpu-check", arguments.words, DEFAULTS, example="rows=decode,mfu")
    if others:
        raise ConfigError(
            f"`rollpacker gpu-check` was given {others[0]}.", f"It takes {HELP.usage}.", f"Leave out {others[0]}."
        )
    model, rows, out = _model(settings[_MODEL]), _rows(settings["rows"]), Path(settings["out"])
    again = choice(settings, "again", ("true", "false")) == "true"
    check_folder("out", out)
    checking = Checking(folder=out, machine=this_machine(), model=model, again=again)
    console = output()
    console.print(Text(checking.key, style="dim"))
    outcomes: dict[str, Outcome] = {}
    with signals_handled((signal.SIGTERM, signal.SIGHUP), _leave):
        for row, outcome in checking.run(rows):
            outcomes[row.name] = outcome
            console.print(_line(row, outcome))
    failed = [name for name, outcome in outcomes.items() if outcome.status == "failed"]
    num_passed = sum(outcome.status == "passed" for outcome in outcomes.values())
    if failed:
        raise WorldError(
            f"{len(failed)} of {len(outcomes)} rows failed: {', '.join(failed)}.",
            "",
            f"{out / 'logs'} has what each of them wrote.",
        )
    if not num_passed:
        raise WorldError("No row could run.", "Each needs what its line says.", "Run it on a machine with CUDA GPUs.")
    console.print(f"{num_passed} passed, {len(outcomes) - num_passed} not possible here. {out / 'results.json'}")


def _model(path: str) -> Path | None:
    from rollpacker.config.sections.model import ModelSection
    from rollpacker.data.shapes import transformer_of

    if not path:
        return None
    section = ModelSection(path=Path(path))
    transformer_of(section)  # refuses what is no model's directory
    return section.directory


def _rows(names: str) -> Sequence[Row]:
    from rollpacker.config.keys import nearest
    from rollpacker.gpu_check.table import ROWS

    named = {row.name: row for row in ROWS}
    chosen = [name.strip() for name in names.split(",") if name.strip()] or list(named)
    if unknown := [name for name in chosen if name not in named]:
        close = nearest(unknown[0], named)
        raise ConfigError(
            f"rows={names} names {unknown[0]}.",
            f"The rows are {', '.join(named)}.",
            f"Write {close[0]}." if close else "Leave it out.",
        )
    return [row for row in ROWS if row.name in chosen]


def _line(row: Row, outcome: Outcome) -> Table:
    from rich.table import Table
    from rich.text import Text

    from rollpacker.gpu_check.table import ROWS

    figures = ", ".join(f"{name} {value:.4g}" for name, value in outcome.figures.items())
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(width=max(map(len, _STYLES)), no_wrap=True)
    line.add_column(width=max(len(each.name) for each in ROWS), no_wrap=True, style="bold")
    line.add_column(overflow="fold")
    took = f" ({outcome.seconds:.0f} s)" if outcome.seconds else ""
    said = outcome.why or row.shows
    line.add_row(Text(outcome.status, style=_STYLES[outcome.status]), row.name, Text(f"{said}{took}"))
    if figures:
        line.add_row("", "", Text(figures, style="dim"))
    return line


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    """End the row that runs, and this process, as Ctrl-C does."""
    name = signal.Signals(number).name
    raise Interrupted(f"{name} ended the check.", "Rows that have passed are kept.", "Give it again.", number)
