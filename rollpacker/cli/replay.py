"""`rollpacker replay`: verifies that a run's event logs still lead to the decisions that they record."""

from __future__ import annotations

from rollpacker.cli.arguments import Arguments
from rollpacker.cli.command_help import CommandHelp

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
    from rollpacker.runtime.rollout.replay import replay

    (run_dir,), _ = parse_runs("replay", arguments.words, (), max_runs=1)
    report = replay(run_dir)
    attempts = "1 attempt" if report.attempts == 1 else f"{report.attempts} attempts"
    output().print(
        f"{run_dir}: {attempts}, {report.events:,} events replayed; all {report.commands:,} commands are the same."
    )
