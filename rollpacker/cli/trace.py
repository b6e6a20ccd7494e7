"""`rollpacker trace`: writes what every actor of a run did, and when, for ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollpacker.cli.arguments import Arguments

SETTINGS = ("steps", "out")
TRACE_FILE = "trace.json.gz"


def run(arguments: Arguments) -> None:
    """Write one run's trace, and say what it holds."""
    from rollpacker.cli.run_words import parse_run_words, parse_steps

    words = parse_run_words("trace", arguments.words, SETTINGS, max_runs=1)
    steps = parse_steps(words.settings["steps"]) if "steps" in words.settings else None
    run_dir = words.runs[0]
    out = Path(words.settings.get("out", run_dir / TRACE_FILE))

    from rollpacker.cli.screen import output
    from rollpacker.report.words import plural
    from rollpacker.timeline.chrome_trace import save_trace
    from rollpacker.timeline.run_tables import open_run

    tables = open_run(run_dir, steps)
    summary = save_trace(tables, out)
    console = output()
    for note in tables.notes:
        console.print(note, soft_wrap=True, style="dim")
    kind = "modelled" if tables.is_modelled else "measured"
    console.print(
        f"{out}: {plural(summary.num_steps, 'step')} ({kind}), {summary.num_tracks:,} tracks, "
        f"{summary.num_slices:,} slices, {summary.num_flows:,} migrations, {out.stat().st_size / 1e6:.1f} MB. "
        "Open it at https://ui.perfetto.dev (nothing is uploaded) or chrome://tracing.",
        soft_wrap=True,
    )


def show_help() -> None:
    """Print what `rollpacker trace` takes."""
    from rollpacker.cli.help import show_trace_help

    show_trace_help()
