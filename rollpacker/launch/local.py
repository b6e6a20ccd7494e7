"""Runs the points of a sweep on this machine, by submitit's local executors: processes beside each other, or none.

`local` starts a process per point, as many at a time as `array_parallelism` lets, with logs where a job's would be;
`debug` trains one point after the other in this process, where a debugger can follow. Slurm is not asked, requeueing is
not there, and the processes end with Ctrl-C. Each sees all GPUs that this process sees.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from submitit import DebugExecutor, LocalExecutor
from submitit.core.core import Job

from rollpacker.config.launching import LauncherSettings
from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.core.errors import RollpackerError
from rollpacker.launch.job import PointCall, PointProcess, Task
from rollpacker.launch.points import Point
from rollpacker.launch.waiting import failure, log_end
from rollpacker.terminal import Terminal

_NO_LIMIT_MIN = 60 * 24 * 365
"""submitit's local jobs have a limit in any case: a year."""
_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_POLL_S = 0.1
"""A process is asked for its end by one call of the operating system."""


def run_here(points: Sequence[Point], task: Task, settings: LauncherSettings, folder: Path, console: Terminal) -> None:
    """Run points, as `settings.executor` says.

    Raises:
        WorldError: Points failed.
    """
    if settings.executor == "debug":
        stories = _debug(points, task, folder)
    else:
        stories = _local(points, task, settings, folder, console)
    if stories:
        lines = [line for story in stories for line in story]
        raise failure(lines, num_failed=len(stories), num_points=len(points))


def _debug(points: Sequence[Point], task: Task, folder: Path) -> list[list[str]]:
    executor = DebugExecutor(folder)
    stories = []
    for point in points:
        error = executor.submit(PointCall(task, point.config)).exception()
        if error is not None and not isinstance(error, RollpackerError):
            raise error
        if error is not None:
            stories.append([f"{point.title} failed: {error}"])
    return stories


def _local(
    points: Sequence[Point], task: Task, settings: LauncherSettings, folder: Path, console: Terminal
) -> list[list[str]]:
    """Start a process per point and wait for all; what still runs ends with an error or Ctrl-C."""
    executor = LocalExecutor(folder, python=_python(os.environ))
    waiting = list(points)
    running: list[tuple[Point, Job[None]]] = []
    stories: list[list[str]] = []
    try:
        while waiting or running:
            while waiting and len(running) < (settings.array_parallelism or len(points)):
                point = waiting.pop(0)
                job = _start(executor, PointProcess(task, point.config), point.config.cluster)
                console.print(f"{point.title} is process {job.job_id}, logging to {job.paths.stdout}")
                running.append((point, job))
            if settings.detach and not waiting:
                return []
            for point, job in [pair for pair in running if pair[1].done()]:
                running.remove((point, job))
                has_failed = not job.paths.result_pickle.exists()
                console.print(f"{point.title} has {'failed' if has_failed else 'finished'}")
                if has_failed:
                    stories.append([f"{point.title} failed (process {job.job_id})", *log_end(job.paths.stdout)])
            time.sleep(_POLL_S if running else 0)
    except BaseException:
        for _, job in running:
            job.cancel()
        while any(not job.done() for _, job in running):  # submitit kills what does not end within a second
            time.sleep(_POLL_S)
        raise
    return stories


def _start(executor: LocalExecutor, call: PointProcess, cluster: ClusterSection | None) -> Job[None]:
    executor.update_parameters(
        timeout_min=(cluster and cluster.time_limit_min) or _NO_LIMIT_MIN,
        stderr_to_stdout=True,
    )
    return executor.submit(call)


def _python(environment: Mapping[str, str]) -> str:
    """The command of an interpreter that sees the GPUs which this process sees; submitit shows it the first ones."""
    gpus = environment.get(_VISIBLE_GPUS)
    change = ["--unset", _VISIBLE_GPUS] if gpus is None else [f"{_VISIBLE_GPUS}={gpus}"]
    return shlex.join(["env", *change, sys.executable])
