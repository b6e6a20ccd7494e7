"""`rollpacker trace`: writes the intervals of every actor of a run, for ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

from pathlib import Path

from rollpacker.cli.arguments import OVERWRITE, Arguments, is_overwriting
from rollpacker.cli.command_help import CommandHelp

SETTINGS = ("steps", "out", "overwrite")
TRACE_FILE = "trace.json.gz"


HELP = CommandHelp(
    purpose=(
        "Write a trace of a run, finished or not, from its tables and event logs: every request on its engine, "
        "migrations and turns as arrows, trainer, rewards and driver, rounds and steps, lost engines, and how many "
        "requests ran and waited; those of complete held-out sets from launch to end. Open it at ui.perfetto.dev or "
        "chrome://tracing. Forty steps on 64 GPUs take some seconds."
    ),
    usage="RUN [steps=FIRST:LAST] [out=FILE] [overwrite=true]",
    arguments=(
        ("RUN", "The run.dir of a run."),
        ("steps", "The first and the last step, counted from 1, or one step. Default: all"),
        (
            "out",
            "The file to write, compressed if it ends in .gz, or -. Default: RUN/trace.json.gz, which is replaced",
        ),
        OVERWRITE,
    ),
    examples=("rollpacker trace runs/x steps=10:20 out=x.json.gz",),
)


def run(arguments: Arguments) -> None:
    """Write one run's trace, and print its size."""
    from rollpacker.cli.settings import parse_runs, parse_steps

    (run_dir,), settings = parse_runs("trace", arguments.words, SETTINGS, max_runs=1)
    steps = parse_steps(settings["steps"]) if settings["steps"] else None
    default = run_dir / TRACE_FILE
    out = Path(settings["out"] or default)

    from rollpacker.cli.screen import output
    from rollpacker.metrics.outputs import check_output, is_stream
    from rollpacker.paths import real_path
    from rollpacker.report.words import plural, size
    from rollpacker.timeline.run_tables import open_run

    check_output(out, can_replace=is_overwriting(settings) or real_path(out) == real_path(default))
    tables = open_run(run_dir, steps)
    from rollpacker.timeline.chrome_trace import save_trace

    summary = save_trace(tables, out)
    console = output(beside=out)
    last_step = int(tables.steps["step"].iloc[-1])
    if steps is not None and last_step < steps[1]:
        console.print(f"{run_dir} has no step after {last_step + 1}.", soft_wrap=True)
    for note in summary.notes:
        console.print(note, soft_wrap=True, style="dim")
    kind = "modelled" if tables.is_modelled else "measured"
    written = "" if is_stream(out) else f", {size(out.stat().st_size)}"
    console.print(
        f"{out}: {plural(summary.num_steps, 'step')} ({kind}), {summary.num_tracks:,} tracks, "
        f"{summary.num_slices:,} slices, {plural(summary.num_migrations, 'migration')}{written}.\n"
        "Open it at https://ui.perfetto.dev (nothing is uploaded) or chrome://tracing.",
        soft_wrap=True,
    )
