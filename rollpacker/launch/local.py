"""Runs the points of a sweep on this machine: processes beside each other, or none.

`local` starts a process per point, as many at a time as `array_parallelism` lets, with logs where a job's would be;
`debug` trains one point after the other in this process, where a debugger can follow. Slurm is not asked, nothing is
requeued, and a job's time limit does not count. Each process sees all GPUs that this process sees.

Each process has its own session: Ctrl-C at a terminal reaches only this process, which forwards every signal once. At
the first one a run saves a checkpoint, at the second it ends at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from submitit import DebugExecutor
from submitit.core.utils import DelayedSubmission, JobPaths

from rollpacker.config.launching import LauncherSettings
from rollpacker.config.words import counted
from rollpacker.core.errors import Interrupted, RollpackerError
from rollpacker.launch.job import PointCall, PointProcess, Task
from rollpacker.launch.points import Point
from rollpacker.launch.waiting import failure, log_end
from rollpacker.runtime.job.preemption import SHELL_SIGNALS
from rollpacker.runtime.job.signals import signals_handled
from rollpacker.terminal import Terminal

_POLL_S = 0.1
"""A process is asked for its end by one call of the operating system."""


def run_here(points: Sequence[Point], task: Task, settings: LauncherSettings, folder: Path, console: Terminal) -> None:
    """Run points, as `settings.executor` says.

    Raises:
        WorldError: Points failed.
        Interrupted: A signal ended points, or came before they began.
    """
    if settings.executor == "debug":
        _raise_failures(_debug(points, task, folder), len(points))
    else:
        _local(points, task, settings, folder, console)


def _raise_failures(stories: Sequence[Sequence[str]], num_points: int, received: Sequence[signal.Signals] = ()) -> None:
    """Raise one error for all points that did not finish; each has a story of some lines."""
    if stories:
        error = failure([line for story in stories for line in story], num_failed=len(stories), num_points=num_points)
        if received:
            problem = f"{SHELL_SIGNALS[received[0]]} ended the launch. {error.problem}"
            raise Interrupted(problem, error.allowed, error.remedy, received[0])
        raise error


def _debug(points: Sequence[Point], task: Task, folder: Path) -> list[list[str]]:
    executor = DebugExecutor(folder)
    stories = []
    for number, point in enumerate(points, start=1):
        try:
            error = executor.submit(PointCall(task, point.config)).exception()
        except SystemExit as ended:
            if not isinstance(ended.__cause__, Interrupted):
                raise
            stories.append([f"{point.title} was interrupted"])
            stories += ([f"{each.title} was not started"] for each in points[number:])
            _raise_failures(stories, len(points), [signal.Signals(ended.__cause__.exit_code - 128)])
        if error is not None and not isinstance(error, RollpackerError):
            raise error
        if error is not None:
            stories.append([f"{point.title} failed: {error}"])
    return stories


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    """A point and its process."""

    point: Point
    process: subprocess.Popen[bytes]
    log: Path


def _local(points: Sequence[Point], task: Task, settings: LauncherSettings, folder: Path, console: Terminal) -> None:
    """Start a process per point and wait for all, unless detached; after a signal, start none and wait for the rest."""
    waiting = list(points)
    running: list[_Started] = []
    stories: list[list[str]] = []
    received: list[signal.Signals] = []
    num_forwarded = 0
    with (
        signals_handled(SHELL_SIGNALS, lambda number, _: received.append(signal.Signals(number))),
        _interrupted_by_errors(running),
    ):
        while running or (waiting and not received):
            while waiting and not received and len(running) < (settings.array_parallelism or len(points)):
                started = _start(waiting.pop(0), task, folder)
                running.append(started)
                console.print(f"{started.point.title} is process {started.process.pid}, logging to {started.log}")
            if settings.detach and not waiting and not received:
                return
            for number in received[num_forwarded:]:
                num_forwarded += 1
                _send(number, running)
                console.print(_what_ends(number, len(running), is_first=num_forwarded == 1))
            for ended in [each for each in running if each.process.poll() is not None]:
                running.remove(ended)
                stories += _end(ended, console)
            time.sleep(_POLL_S if running else 0)
    _raise_failures([*stories, *([f"{point.title} was not started"] for point in waiting)], len(points), received)


@contextmanager
def _interrupted_by_errors(running: Sequence[_Started]) -> Iterator[None]:
    """End what still runs when the block raises."""
    try:
        yield
    except BaseException:
        _send(signal.SIGINT, running)
        for each in running:
            each.process.wait()
        raise


def _start(point: Point, task: Task, folder: Path) -> _Started:
    paths = JobPaths(folder, job_id=f"{os.getpid()}-{point.number}")
    DelayedSubmission(PointProcess(task, point.config)).dump(paths.submitted_pickle)
    command = [sys.executable, "-P", "-u", "-m", "rollpacker.launch.job", str(paths.submitted_pickle)]
    with paths.stdout.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603  (no shell, and the arguments are ours)
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    return _Started(point=point, process=process, log=paths.stdout)


def _send(number: signal.Signals, running: Sequence[_Started]) -> None:
    for each in running:
        each.process.send_signal(number)


def _what_ends(number: signal.Signals, num_running: int, *, is_first: bool) -> str:
    runs = counted(num_running, "run")
    if is_first:
        return f"{SHELL_SIGNALS[number]}: waiting for {runs} to save a checkpoint and end. Once more ends at once."
    return f"{SHELL_SIGNALS[number]}: ending {runs} at once"


def _end(ended: _Started, console: Terminal) -> list[list[str]]:
    """Print how a point ended; returns its story where it did not finish."""
    title, code = ended.point.title, ended.process.returncode
    killer = -code if code < 0 else code - 128  # as Popen and as our own exit codes tell of a signal
    verb = "has finished" if not code else "was interrupted" if killer in SHELL_SIGNALS else "failed"
    console.print(f"{title} {verb}")
    return [[f"{title} {verb} (process {ended.process.pid})", *log_end(ended.log)]] if code else []
