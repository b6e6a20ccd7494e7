"""Waits for the jobs of a sweep, shows how their runs stand, and says in the end which points failed and why.

A job that Slurm requeues is still the same job, and is waited for. What ends the wait is the last job's end or Ctrl-C;
a controller that does not answer for a while does not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.live import Live

from rollpacker.core.errors import WorldError
from rollpacker.launch.job_table import job_table
from rollpacker.launch.points import Point
from rollpacker.launch.survey import look_at
from rollpacker.paths import open_to_read

if TYPE_CHECKING:
    from rollpacker.launch.standing import RunStatusView
    from rollpacker.launch.survey import Survey
    from rollpacker.terminal import Terminal

LAUNCH_AGAIN = (
    "Give the same command with the same run.dir: finished points are skipped, the others go on from their last "
    "checkpoint."
)
TAIL_LINES = 12
"""Of a failed point's log: an error in three parts with its panel, or the end of a traceback."""
_TAIL_BYTES = 16384


def wait_for(points: Sequence[Point], poll_interval_s: float, console: Terminal) -> None:
    """Wait until the jobs of all these points have ended.

    Raises:
        WorldError: Which points failed, how they stand, and the end of each one's log.
    """
    show = _LiveTable(console) if console.is_terminal else _Lines(points, console)
    with show:
        while True:
            survey = look_at([point.config.run.dir for point in points])
            show.update(survey)
            if not survey.complaint and all(standing.job and standing.job.is_over for standing in survey.standings):
                break
            time.sleep(poll_interval_s)
    raise_failures(list(zip(points, survey.standings, strict=True)))


def raise_failures(ended: Sequence[tuple[Point, RunStatusView]]) -> None:
    """Raise one error for all points that did not finish; nothing when all did."""
    failed = [(point, standing) for point, standing in ended if standing.word != "finished"]
    if failed:
        raise failure(
            [line for pair in failed for line in _story(*pair)], num_failed=len(failed), num_points=len(ended)
        )


def failure(lines: Sequence[str], *, num_failed: int, num_points: int) -> WorldError:
    """The error of a multirun in which points failed; each has told its story in `lines`."""
    return WorldError("\n".join([f"{num_failed} of {num_points} points did not finish.", *lines]), "", LAUNCH_AGAIN)


def log_end(file: Path) -> list[str]:
    """Say how a log ends, in indented lines."""
    try:
        with open_to_read(file) as log:
            log.seek(max(0, log.seek(0, 2) - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return [f"  {file} is not there"]
    lines = [line for line in text.splitlines() if line.strip()][-TAIL_LINES:]
    return [f"  {file} ends with", *(f"    {line}" for line in lines)] if lines else [f"  {file} is empty"]


class _LiveTable:
    """Redraws one table."""

    def __init__(self, console: Terminal) -> None:
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, survey: Survey) -> None:
        table = job_table(survey.standings, now=time.time(), complaint=survey.complaint)
        self._live.update(table, refresh=True)


class _Lines:
    """Says every change in a line of its own, where no terminal is."""

    def __init__(self, points: Sequence[Point], console: Terminal) -> None:
        self._points = points
        self._console = console
        self._told: dict[int, str] = {}
        self._complaint = ""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, survey: Survey) -> None:
        if survey.complaint != self._complaint:
            self._complaint = survey.complaint
            self._say(survey.complaint or "Slurm answers again.")
        for point, standing in zip(self._points, survey.standings, strict=True):
            words = _words(standing)
            if words != self._told.get(point.number):
                self._told[point.number] = words
                self._say(f"{point.title}: {words}")

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def _words(standing: RunStatusView) -> str:
    job = standing.job
    place = f" on {job.node_list}" if job and job.node_list else ""
    restarts = f", requeued {job.num_restarts} x" if job and job.num_restarts else ""
    reason = f": {standing.reason}" if standing.reason else ""
    return f"{standing.word}{place}{restarts}{reason}"


def _story(point: Point, standing: RunStatusView) -> list[str]:
    job, submission = standing.job, standing.submission
    slurm = f"job {job.job_id}, {job.state}" if job else "no job"
    code = f", exit code {job.exit_code}" if job and job.exit_code else ""
    reason = f": {standing.reason}" if standing.reason else ""
    return [
        f"{point.title} {standing.word} ({slurm}{code}){reason}",
        *(log_end(submission.logs[0]) if submission else []),
    ]
