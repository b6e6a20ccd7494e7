"""`rollpacker report`: writes one HTML page about a run, alone or against another one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.core.errors import ConfigError

if TYPE_CHECKING:
    from rollpacker.cli.arguments import Arguments

SETTINGS = ("step", "out")
REPORT_FILE = "report.html"


def run(arguments: Arguments) -> None:
    """Write the page, and say where it lies and what it says first."""
    from rollpacker.cli.run_words import parse_run_words

    words = parse_run_words("report", arguments.words, SETTINGS, max_runs=2)
    step = _step(words.settings["step"]) if "step" in words.settings else None
    out = Path(words.settings.get("out", words.runs[0] / REPORT_FILE))

    from rollpacker.cli.screen import output
    from rollpacker.metrics.files import write_atomically
    from rollpacker.report.page import render
    from rollpacker.report.story import tell
    from rollpacker.report.words import plural

    stories = [tell(run_dir, step) for run_dir in words.runs]
    write_atomically(out, render(stories).encode())
    console = output()
    for story in stories:
        kind = "modelled" if story.is_modelled else "measured"
        mean_s = story.total_s / len(story.steps)
        console.print(
            f"{story.tables.run_dir}: {plural(len(story.steps), 'step')} ({kind}), {mean_s:.3g} s per step, "
            f"{story.bubble_ratio:.0%} of the decode slots idle.",
            soft_wrap=True,
        )
    console.print(f"{out}: {out.stat().st_size / 1e3:.0f} kB; open it in a browser.", soft_wrap=True)


def show_help() -> None:
    """Print what `rollpacker report` takes."""
    from rollpacker.cli.help import show_report_help

    show_report_help()


def _step(text: str) -> int:
    if text.isdecimal():
        return int(text)
    raise ConfigError(f"step={text}.", "It is the number of one step, from 0.", "For example: step=12")
