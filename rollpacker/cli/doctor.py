"""`rollpacker doctor`: prints one line per check of what would stop a run here, with a remedy for each problem."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rollpacker.cli.command_help import KEYS_OF_TRAIN, CommandHelp
from rollpacker.core.errors import WorldError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rollpacker.cli.arguments import Arguments
    from rollpacker.launch.doctor.findings import Finding
    from rollpacker.terminal import Terminal

_DEFAULTS = ("model.path=.", "data.path=.", "run.dir=runs")
"""Keys that `train` requires and the doctor does not check, and the default folder."""

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
_WIDTHS = {"level": 7, "subject": 17}
"""Columns of the longest level and of the longest subject; a line is printed as soon as its check is done."""


HELP = CommandHelp(
    purpose=(
        "Check for what would stop a run here, one line per check: ok, or a warning or problem with its remedy. On a "
        "login node it checks Slurm and what would be submitted; inside a job also the GPUs, memory, ports and clocks "
        "of its nodes. Writes a few small files into run.dir and removes them. Model and prompts it leaves to "
        "`rollpacker check`. The exit code is 1 when there is a problem."
    ),
    usage="[cluster=OPTION] [run.dir=DIR] [key=value | group=option] ...",
    arguments=(
        ("cluster", "The cluster, with its partition, container and limits."),
        ("run.dir", "Where a run would write. Default: runs"),
        KEYS_OF_TRAIN,
    ),
    examples=("rollpacker doctor cluster=h800 run.dir=runs/x",),
)


def run(arguments: Arguments) -> None:
    """Make the checks and print them.

    Raises:
        WorldError: there is a problem.
    """
    if int(os.environ.get("SLURM_PROCID", "0")) > 0:
        return  # the first task of a step checks all nodes
    from rollpacker.cli.screen import output
    from rollpacker.config.compose import compose
    from rollpacker.launch.doctor.examination import examine
    from rollpacker.runtime.run.streams import keep_writing

    keep_writing("stdout", is_result=True)  # without a reader all checks are made and decide the exit code
    config = compose([*_defaults(arguments.words), *arguments.words])
    console = output()
    findings = list(_printed(console, examine(config, os.environ)))
    num_problems = sum(finding.level == "problem" for finding in findings)
    num_warnings = sum(finding.level == "warning" for finding in findings)
    if num_problems:
        raise WorldError(
            f"{num_problems} of {len(findings)} checks found a problem.",
            f"A run needs every check to be without a problem; {num_warnings} gave a warning, with which it may run.",
            "The remedy is below each of them.",
        )
    console.print(f"{len(findings)} checks: no problem, {num_warnings} warning{'' if num_warnings == 1 else 's'}.")


def _defaults(arguments: Sequence[str]) -> list[str]:
    from rollpacker.config.words import key_of

    given = set(map(key_of, arguments))
    return [default for default in _DEFAULTS if key_of(default) not in given]


def _printed(console: Terminal, findings: Iterable[Finding]) -> Iterable[Finding]:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    for finding in findings:
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_column(width=_WIDTHS["level"], no_wrap=True)
        line.add_column(width=_WIDTHS["subject"], no_wrap=True, style="bold")
        line.add_column(overflow="fold")
        line.add_row(Text(finding.level, style=_STYLES[finding.level]), finding.subject, Text(finding.text))
        console.print(line)
        if finding.remedy:
            console.print(Padding(Text(finding.remedy, style="green"), (0, 0, 0, sum(_WIDTHS.values()) + 4)))
        yield finding
