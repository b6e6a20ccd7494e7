"""Feeds the event logs of a run into fresh machines and verifies that they give the same commands.

Invariant: the machines have no clock, no randomness and no other input, so a difference is our bug (or a log that was
changed, or written by other code). Each attempt is replayed on its own, from the snapshot at its head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollpacker.core.errors import DataError, ReplayDiverged, RollpackerError
from rollpacker.core.scheduler import Scheduler
from rollpacker.metrics.event_log import EVENTS_FOLDER, attempt_paths, read_event_log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rollpacker.core.commands import Command
    from rollpacker.metrics.event_log import LogRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What was replayed; every command agreed."""

    attempts: int
    events: int
    commands: int


def replay(run_dir: Path) -> ReplayReport:
    """Replay every attempt of a run, finished or not.

    Raises:
        DataError: The run has no event log, or a log is damaged.
        ReplayDiverged: An event gave other commands, or was refused; the message names it.
    """
    paths = attempt_paths(run_dir)
    if not paths:
        raise DataError(
            f"{run_dir} has no event log",
            f"A run writes {EVENTS_FOLDER}/attempt-000.jsonl into its directory when it starts",
            "Check the path (it is the run.dir of the run)",
        )
    num_events = num_commands = 0
    for path in paths:
        records = replay_log(path)
        num_events += len(records)
        num_commands += sum(len(record.commands) for record in records)
    return ReplayReport(attempts=len(paths), events=num_events, commands=num_commands)


def replay_log(path: Path) -> Sequence[LogRecord]:
    """Replay the log of one attempt and return its records; raises as `replay` does."""
    log = read_event_log(path)
    scheduler = Scheduler(log.settings) if log.snapshot is None else Scheduler.restore(log.settings, log.snapshot)
    for record in log.records:
        try:
            commands = scheduler.handle(record.event, record.now)
        except RollpackerError as error:
            raise _diverged(path, record, f"{type(error).__name__}: {error}") from error
        if commands != record.commands:
            raise _diverged(path, record, _first_difference(record.commands, commands))
    return log.records


def _diverged(path: Path, record: LogRecord, difference: str) -> ReplayDiverged:
    return ReplayDiverged(
        f"{path.stem}, event {record.seq} at {record.now:.3f} s: {record.event}\n{difference}",
        "The same events must give the same commands",
        f"Replay with the version of rollpacker that wrote {path}; if it differs there too, report it with that file",
    )


def _first_difference(expected: Sequence[Command], got: Sequence[Command]) -> str:
    """Show the first command that differs: a step's commands may be thousands."""
    index = next(
        (index for index, (one, other) in enumerate(zip(expected, got, strict=False)) if one != other),
        min(len(expected), len(got)),
    )
    lines = [
        f"{name} command {index} of {len(commands)}: {commands[index] if index < len(commands) else 'none'}"
        for name, commands in (("expected", expected), ("got", got))
    ]
    return "\n".join(lines)
