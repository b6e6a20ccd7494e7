"""`rollpacker replay`: verifies that a run's event logs still lead to the decisions that they record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.cli.arguments import Arguments
from rollpacker.cli.command_help import CommandHelp
from rollpacker.core.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

HELP = CommandHelp(
    purpose=(
        "Feed the event logs of a run into fresh schedulers and verify that they give the same commands. A log that "
        "replays is a regression test; one that does not shows what changed."
    ),
    usage="RUN",
    arguments=(("RUN", "The run.dir of a run, finished or not."),),
    examples=("rollpacker replay runs/x",),
)


def run(arguments: Arguments) -> None:
    """Replay one run, and print what was verified."""
    from rollpacker.cli.screen import output
    from rollpacker.cli.settings import parse_runs
    from rollpacker.metrics.event_log import attempt_paths
    from rollpacker.runtime.rollout.replay import replay
    from rollpacker.timeline.run_tables import refuse_other_folders

    (run_dir,), _ = parse_runs("replay", arguments.words, (), max_runs=1)
    if not attempt_paths(run_dir):
        refuse_other_folders(run_dir)
    report = replay(run_dir)
    attempts = "1 attempt" if report.attempts == 1 else f"{report.attempts} attempts"
    console = output()
    console.print(
        f"{run_dir}: {attempts}, {report.events:,} events replayed; all {report.commands:,} commands are the same."
    )
    if note := _note_of_silent_steps(run_dir):
        console.print(note)


def _note_of_silent_steps(run_dir: Path) -> str:
    """Say which steps the tables have and the logs do not, in a sentence; empty without any."""
    from rollpacker.metrics.tables import METRICS_FOLDER, load_manifest, read_table
    from rollpacker.timeline.moments import read_moments
    from rollpacker.timeline.run_tables import silence_of

    try:
        manifest = load_manifest(run_dir / METRICS_FOLDER)
        if manifest is None or not manifest.parts:
            return ""
        steps = read_table(run_dir, "steps")["step"].to_pylist()
    except DataError as error:
        return f"Whether the logs are complete is not known: {error.problem.rstrip('.')}."
    return silence_of(read_moments(run_dir), steps)
