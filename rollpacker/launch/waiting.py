"""Waits for the jobs of a sweep, shows the status of their runs, and reports at the end which points failed and why.

A requeued job is the same job and is waited for. The wait ends with the last job or with Ctrl-C; it goes on while the
controller does not answer. A run whose folder was removed is not waited for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.live import Live

from rollpacker.core.errors import WorldError
from rollpacker.launch.collect_status import CollectedStatus, collect_status
from rollpacker.launch.job_table import job_table
from rollpacker.launch.log_reasons import last_lines
from rollpacker.launch.points import Point
from rollpacker.launch.run_status_view import RunStatusView
from rollpacker.launch.submissions import JOB_FILE, read_submission
from rollpacker.terminal import Terminal

LAUNCH_AGAIN = (
    "Give the same command with the same run.dir: finished points are skipped, the others resume from their last "
    "checkpoint."
)
TAIL_LINES = 12
"""Of a failed point's log: an error in three parts with its panel, or the end of a traceback."""


def wait_for(points: Sequence[Point], poll_interval_s: float, console: Terminal) -> None:
    """Wait until the jobs of all these points have ended.

    Raises:
        WorldError: Points failed; it has their status and the end of each log.
    """
    lines = _ChangedLines(points, console)
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        while True:
            collected = collect_status([point.config.run.dir for point in points])
            if live is None:
                lines.update(collected)
            else:
                table = job_table(collected.views, now=time.time(), complaint=collected.complaint)
                live.update(table, refresh=True)
            if all(map(_has_ended, collected.views)):
                break
            time.sleep(poll_interval_s)
    raise_failures(list(zip(points, collected.views, strict=True)))


def _has_ended(view: RunStatusView) -> bool:
    """Whether the run's job is over, or is not known since the run's folder was removed."""
    if view.job is not None:
        return view.job.is_over
    try:
        return read_submission(view.run_dir) is None
    except WorldError:  # shared files may fail for a while
        return False


def raise_failures(ended: Sequence[tuple[Point, RunStatusView]]) -> None:
    """Raise one error for all points that did not finish; nothing when all did."""
    failed = [(point, view) for point, view in ended if view.state != "finished"]
    if failed:
        raise failure(
            [line for pair in failed for line in _describe(*pair)], num_failed=len(failed), num_points=len(ended)
        )


def failure(lines: Sequence[str], *, num_failed: int, num_points: int) -> WorldError:
    """The error of a multirun in which points failed; `lines` describe each."""
    return WorldError("\n".join([f"{num_failed} of {num_points} points did not finish.", *lines]), "", LAUNCH_AGAIN)


def log_end(file: Path) -> list[str]:
    """The last lines of a log, indented."""
    found = last_lines(file)
    if found is None:
        return [f"  {file} is not there"]
    lines = [line for line in found if line][-TAIL_LINES:]
    return [f"  {file} ends with", *(f"    {line}" for line in lines)] if lines else [f"  {file} is empty"]


class _ChangedLines:
    """Prints every change on a line of its own, for output that is no terminal."""

    def __init__(self, points: Sequence[Point], console: Terminal) -> None:
        self._points = points
        self._console = console
        self._shown: dict[int, str] = {}
        self._complaint = ""

    def update(self, collected: CollectedStatus) -> None:
        if collected.complaint != self._complaint:
            self._complaint = collected.complaint
            self._say(collected.complaint or "Slurm answers again.")
        for point, view in zip(self._points, collected.views, strict=True):
            line = _line(view)
            if line != self._shown.get(point.number):
                self._shown[point.number] = line
                self._say(f"{point.title}: {line}")

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def _line(view: RunStatusView) -> str:
    job = view.job
    place = f" on {job.node_list}" if job and job.node_list else ""
    restarts = f", requeued {job.num_restarts} x" if job and job.num_restarts else ""
    reason = f": {view.reason}" if view.reason else ""
    return f"{view.state}{place}{restarts}{reason}"


def _describe(point: Point, view: RunStatusView) -> list[str]:
    job, submission = view.job, view.submission
    slurm = f"job {job.job_id}, {job.state}" if job else f"no {JOB_FILE} in {view.run_dir}"
    code = f", exit code {job.exit_code}" if job and job.exit_code else ""
    reason = f": {view.reason}" if view.reason else ""
    return [
        f"{point.title} {view.state} ({slurm}{code}){reason}",
        *(log_end(submission.logs[0]) if submission else []),
    ]
