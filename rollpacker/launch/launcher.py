"""Launches the points of a sweep as Hydra's launcher: submits them, and waits for their jobs unless `detach` is set.

A point that has finished is skipped; one whose job is in the queue is not submitted again, but waited for; one whose
job is ending is submitted after the others, when that job is over. The same command may therefore be given again at
any time.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict

from rollpacker.config.launching import LauncherSettings, validate_launcher
from rollpacker.config.multirun import config_of_point, point_names
from rollpacker.core.errors import Interrupted, WorldError
from rollpacker.launch.batches import Batch, batch_folder, batch_script, batches, workers_name, workers_script
from rollpacker.launch.job import PointProcess, Task
from rollpacker.launch.points import Point
from rollpacker.launch.queued_points import points_in_queue
from rollpacker.launch.sbatch import jobs_of, looks_for_workers, submit, submit_workers, workers_array
from rollpacker.launch.shape import workers_shape
from rollpacker.launch.slurm_commands import has_slurm, run_slurm
from rollpacker.launch.submissions import Submission, read_submission
from rollpacker.launch.waiting import wait_for
from rollpacker.metrics.files import make_private_folder
from rollpacker.runtime.job.elastic_folder import ElasticFolder
from rollpacker.runtime.job.file_lock import held_lock
from rollpacker.runtime.job.preemption import how_to_go_on
from rollpacker.runtime.placing.automatic import complete_point
from rollpacker.terminal import Terminal

_LOCK_FILE = "launch.lock"

_END_WAIT_S = 300.0
"""For a job that is ending: Slurm kills it KillWait after SIGTERM, 30 s by default, and then cleans up its nodes."""


def launch_from_hydra(
    context: HydraContext,
    task: Task,
    config: DictConfig,
    overrides: Sequence[Sequence[str]],
    first_number: int,
    *,
    settings: dict[str, Any],
) -> list[JobReturn]:
    """Compose the points as Hydra's own launcher does, and launch them."""
    launcher = validate_launcher(settings)
    points = []
    for number, (words, name) in enumerate(zip(overrides, point_names(overrides), strict=True), start=first_number):
        composed = context.config_loader.load_sweep_config(config, list(words))
        with open_dict(composed):
            composed.hydra.job.num = number
        HydraConfig.instance().set_config(composed)
        points.append(Point(number=number, name=name, config=config_of_point(composed, complete_point(launcher))))
    try:
        launch(points, task, launcher, Path(config.hydra.sweep.dir))
    except Interrupted as error:
        error.remedy = how_to_go_on_with_points(composed)
        raise
    return [JobReturn(overrides=list(words), status=JobStatus.COMPLETED) for words in overrides]


def how_to_go_on_with_points(composed: DictConfig) -> str:
    """Say how an interrupted multirun is resumed.

    Args:
        composed: By Hydra for any of its points. Where `run.dir` has no interpolation it is the folder of that point
            alone, and the answer does not name it.
    """
    run_dir = OmegaConf.to_container(composed, resolve=False)["run"]["dir"]  # type: ignore[call-overload, index]
    return how_to_go_on(f"'{run_dir}'" if "${" in run_dir else None)


def launch(points: Sequence[Point], task: Task, settings: LauncherSettings, folder: Path) -> None:
    """Launch validated points.

    Raises:
        WorldError: Points failed, or could not be submitted.
        Interrupted: A signal ended points on this machine.
        KeyboardInterrupt: Ctrl-C while waiting; the jobs go on.
    """
    console = Terminal(soft_wrap=True)
    unfinished = _unfinished(points, console)
    if not unfinished:
        return
    if settings.is_for_slurm:
        _launch_jobs(unfinished, task, settings, folder, console)
    else:
        from rollpacker.launch.local import run_here

        make_private_folder(batch_folder(folder))
        run_here(unfinished, task, settings, batch_folder(folder), console)


def _unfinished(points: Sequence[Point], console: Terminal) -> list[Point]:
    """Leave out the points that have finished, and name them."""
    unfinished = []
    for point in points:
        if point.has_finished:
            console.print(f"{point.title} has finished: skipped")
        else:
            unfinished.append(point)
    return unfinished


def _launch_jobs(
    points: Sequence[Point], task: Task, settings: LauncherSettings, folder: Path, console: Terminal
) -> None:
    def refusal(holder: str) -> WorldError:
        return WorldError(
            f"Another launch is submitting points of {folder}{holder}.",
            "Points are submitted by one launch at a time, so that none is submitted twice.",
            "Try again when it has ended.",
        )

    make_private_folder(batch_folder(folder))
    with held_lock(batch_folder(folder) / _LOCK_FILE, refusal):
        queued, ending = points_in_queue(points)
        late = [point for point in points if point.number in ending]
        submitted = [point for point in points if point.number not in ending]
        _submit_points(submitted, task, settings, folder, console, queued=queued)
        if late:
            console.print(f"Waiting until jobs that are ending have left the queue: {', '.join(ending.values())}")
            with _saying_that_jobs_stay(submitted, folder):
                queued, ending = _wait_for_ends(late, ending, settings.poll_interval_s)
            over = [point for point in _unfinished(late, console) if point.number not in ending]
            _submit_points(over, task, settings, folder, console, queued=queued)
            submitted += over
    if ending:
        if submitted:
            console.print(_what_next(submitted, folder))
        raise WorldError(
            f"Jobs are still ending: {', '.join(ending.values())}.",
            "A run is submitted again when its job is over, which may be saving a checkpoint now"
            f"{'; the other points are submitted' if submitted else ''}.",
            f"Launch again when `squeue --jobs={','.join(ending.values())}` lists none.",
        )
    if settings.detach or not has_slurm():
        console.print(_what_next(points, folder))
        return
    with _saying_that_jobs_stay(points, folder):
        wait_for(points, settings.poll_interval_s, console)


@contextlib.contextmanager
def _saying_that_jobs_stay(points: Sequence[Point], folder: Path) -> Iterator[None]:
    """After Ctrl-C in a wait, tell how to follow and cancel the jobs of these points, if there are any."""
    try:
        yield
    except KeyboardInterrupt:
        if points:
            goodbye = f"No longer waiting; the jobs stay.\n{_what_next(points, folder)}"
            Terminal(soft_wrap=True).print(goodbye)  # rich's console holds back lines after an interrupted print
        raise


def _wait_for_ends(
    points: Sequence[Point], ending: dict[int, str], poll_interval_s: float
) -> tuple[dict[int, str], dict[int, str]]:
    """Wait until no job of these points is ending: it is over then, or Slurm has requeued it.

    The wait goes on while the controller does not answer, but not longer than `_END_WAIT_S`.

    Returns:
        The last answer of `points_in_queue`.
    """
    queued: dict[int, str] = {}
    deadline = time.monotonic() + _END_WAIT_S
    while ending and time.monotonic() < deadline:
        time.sleep(poll_interval_s)
        with contextlib.suppress(WorldError):
            queued, ending = points_in_queue(points)
    return queued, ending


def _submit_points(
    points: Sequence[Point],
    task: Task,
    settings: LauncherSettings,
    folder: Path,
    console: Terminal,
    *,
    queued: Mapping[int, str],
) -> None:
    """Submit the points whose jobs are not in the queue, and the workers that the others lack."""
    for point in points:
        if point.number in queued:
            console.print(f"{point.title} is {queued[point.number]}: not submitted again")
            _add_workers(point, folder, console)
    for batch in batches([point for point in points if point.number not in queued]):
        for point in batch.points:
            _cancel_workers_of_earlier_job(point)
        for point in filter(_has_workers, batch.points):
            ElasticFolder(point.config.run.dir).reopen()  # an earlier job of the run may have ended it
        for point, submission in zip(batch.points, _submit(batch, task, settings, folder), strict=True):
            console.print(f"{point.title} is job {submission.job_id}, submitted for {batch.nodes}")
            _submit_workers(point, submission, folder, console)


def _submit(batch: Batch, task: Task, settings: LauncherSettings, folder: Path) -> list[Submission]:
    calls = {point.config.run.dir: PointProcess(task, point.config) for point in batch.points}
    script = batch_script(batch, settings, folder)
    return submit(batch_folder(folder), script, calls, batch.shape.num_nodes)


def _has_workers(point: Point) -> bool:
    return workers_shape(point.config) is not None


def _submit_workers(point: Point, submission: Submission, folder: Path, console: Terminal) -> None:
    if not _has_workers(point):
        return
    script = workers_script(point, submission.job_id, folder)
    array = submit_workers(batch_folder(folder), script, submission, ElasticFolder(point.config.run.dir).path)
    console.print(f"its rollout workers are array {array}")


def _add_workers(point: Point, folder: Path, console: Terminal) -> None:
    """Submit the workers that a job in the queue looks for, of which sbatch refused the array before."""
    submission = read_submission(point.config.run.dir)
    if submission is not None and looks_for_workers(submission):
        _submit_workers(point, submission, folder, console)


def _cancel_workers_of_earlier_job(point: Point) -> None:
    """Cancel the rollout workers beside a job that is over: those that Slurm holds would stay in the queue.

    By name, too: a cluster that has lost its state may have given their number to another job.
    """
    submission = read_submission(point.config.run.dir)
    if submission is not None and (array := workers_array(submission)) is not None:
        name = f"--name={workers_name(point)}"
        run_slurm("scancel", name, array, cluster=submission.cluster)  # fails for an array that is over, too


def _what_next(points: Sequence[Point], folder: Path) -> str:
    """How to follow and cancel the jobs."""
    submissions = [read_submission(point.config.run.dir) for point in points]
    jobs = [job for submission in submissions if submission for job in jobs_of(submission)]
    numbers = dict.fromkeys(job.partition("_")[0] for job in jobs)
    return (
        f"See them:     rollpacker jobs {shlex.quote(str(folder))}\n"
        f"Cancel them:  scancel {' '.join(numbers)}\n"
        f"Wait again:   give the same command, with run.dir in {folder}"
    )
