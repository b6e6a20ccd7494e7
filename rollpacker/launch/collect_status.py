"""Finds the runs below folders and collects the status of each.

Reads only. Slurm is asked once for all jobs of a cluster, and once more where runs go on in later ones; where it does
not answer, the runs' own files are used alone.
"""

from __future__ import annotations

import errno
import os
import socket
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from rollpacker.core.errors import DataError, WorldError
from rollpacker.launch.elastic_status import workers_in_words
from rollpacker.launch.job_states import UNKNOWN, JobState, job_states
from rollpacker.launch.log_reasons import reason_in_logs
from rollpacker.launch.run_status_view import Progress, RunStatusView
from rollpacker.launch.submissions import JOB_FILE, read_submission
from rollpacker.paths import read_bytes
from rollpacker.runtime.job.file_lock import LOCK_FILE, is_locked
from rollpacker.runtime.run.run_folder import RUN_FILE
from rollpacker.runtime.run.status import STATUS_FILE, RunStatus, read_status

_MARKS = (JOB_FILE, STATUS_FILE, RUN_FILE)
"""Each of these files marks the folder of a run."""

Answer = TypeVar("Answer")

NUM_STEPS_OF_REWARD = 10
"""Over which the shown reward is averaged: with tail batching, so many steps contain short and long rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedStatus:
    """The status of some runs."""

    views: tuple[RunStatusView, ...]
    complaint: str
    """Why Slurm did not answer, or, where views have jobs, its accounting; empty when it did, or was not asked."""
    unread: tuple[str, ...]
    """Why jobs and tables of the runs cannot be read, a sentence each; none of those that are not there yet."""


def find_runs(folder: Path) -> Iterator[Path]:
    """Yield the run folders at or below `folder`, in the order of their names; runs do not lie in runs.

    Links to runs that do not lie below `folder` count, of several to one run the first; links to other folders are not
    followed. Folders below that the user may not read, or that vanish meanwhile, are skipped.

    Raises:
        OSError: A folder cannot be read for another reason.
    """
    return _runs_below(folder, folder.resolve(), set())


def _runs_below(folder: Path, top: Path, linked: set[Path]) -> Iterator[Path]:
    """Yield the runs at or below `folder`, which is `top` or below it, and add the targets of links to `linked`."""
    if _is_run(folder):
        yield folder
        return
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_symlink() or entry.is_dir(follow_symlinks=False))
    for below in (folder / name for name in names if not name.startswith(".")):
        try:
            if below.is_symlink():
                if not _is_run(below) or (target := below.resolve()).is_relative_to(top) or target in linked:
                    continue
                linked.add(target)
            yield from _runs_below(below, top, linked)
        except (PermissionError, FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if error.errno != errno.ESTALE:  # what NFS says of a folder that has vanished
                raise


def _is_run(folder: Path) -> bool:
    return any((folder / mark).is_file() for mark in _MARKS)


def collect_status(run_dirs: Sequence[Path]) -> CollectedStatus:
    """Read the status of runs, and ask Slurm about their jobs."""
    complaints: dict[str, None] = {}
    unread: list[str] = []
    views = _with_jobs([_without_job(run_dir, unread) for run_dir in run_dirs], _job_id, complaints)
    views = _with_jobs(views, lambda view: view.later_job_id, complaints)
    complaint = " ".join(filter(None, complaints))
    return CollectedStatus(views=tuple(map(_with_reason, views)), complaint=complaint, unread=tuple(unread))


def _with_jobs(
    views: Sequence[RunStatusView], job_id_of: Callable[[RunStatusView], str | None], complaints: dict[str, None]
) -> list[RunStatusView]:
    """Ask Slurm about a job of each view; one that has none, or of whose job Slurm says nothing new, stays as it is."""
    ids_by_cluster: dict[str | None, set[str]] = {}
    for view in views:
        if (job_id := job_id_of(view)) is not None:
            ids_by_cluster.setdefault(_cluster(view), set()).add(job_id)
    jobs: dict[tuple[str | None, str | None], JobState] = {}
    for cluster, ids in ids_by_cluster.items():
        try:
            found, complaint = job_states(sorted(ids), cluster)
        except WorldError as error:
            found, complaint = {}, error.problem
        jobs |= {(cluster, job_id): job for job_id, job in found.items()}
        complaints[complaint] = None
    joined = []
    for view in views:
        job = jobs.get((_cluster(view), job_id_of(view)))
        joined.append(replace(view, job=job) if job is not None and _is_new(job, view.job) else view)
    return joined


def _is_new(job: JobState, known: JobState | None) -> bool:
    """Whether Slurm says something of a job, and it is not the known one under its other number: 13 is 12_0, too."""
    return known is None or (job.state != UNKNOWN and replace(job, job_id=known.job_id) != known)


def _without_job(run_dir: Path, unread: list[str]) -> RunStatusView:
    status = read_status(run_dir)
    return RunStatusView(
        run_dir=run_dir,
        logged=problem_of_status(run_dir) if status is None else "",
        submission=_read(read_submission, run_dir, unread),
        status=status,
        progress=_read(_progress, run_dir, unread),
        held_out=_read(_held_out, run_dir, unread) or "",
        workers=workers_in_words(run_dir),
        is_locked=_is_locked(run_dir, status),
    )


def problem_of_status(run_dir: Path) -> str:
    """Say why `read_status` gives None, although a run has a status; empty where it has none."""
    try:
        read_bytes(run_dir / STATUS_FILE)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"{STATUS_FILE} cannot be read: {error.strerror}"
    return f"{STATUS_FILE} cannot be read: it is damaged, or another version wrote it"


def _job_id(view: RunStatusView) -> str | None:
    """The last job: the submitted one, or the one in which the run was started by hand."""
    if view.submission is not None:
        return view.submission.job_id
    return view.status.job_id if view.status is not None else None


def _cluster(view: RunStatusView) -> str | None:
    return None if view.submission is None else view.submission.cluster


def _with_reason(view: RunStatusView) -> RunStatusView:
    if view.state not in {"failed", "died"}:
        return view
    return replace(view, logged=reason_in_logs(tuple(_logs(view))))


def _logs(view: RunStatusView) -> Iterable[Path]:
    """The logs of the job, rank 0 first, then those of the last attempt's actors."""
    if view.submission is not None:
        for log in view.submission.logs:
            yield from (log, log.with_suffix(".err"))
    attempts = sorted((view.run_dir / "logs").glob("attempt-*"))
    if attempts:
        yield from sorted(attempts[-1].glob("*.log"))


def _read(read: Callable[[Path], Answer], run_dir: Path, unread: list[str]) -> Answer | None:
    """Read the job or a table of a run; None where that cannot be read: the status file still counts."""
    try:
        return read(run_dir)
    except (DataError, WorldError) as error:
        unread.append(f"{error.problem}.")
    except OSError as error:
        unread.append(f"{run_dir}: {error}.")
    return None


def _progress(run_dir: Path) -> Progress | None:
    if not (run_dir / "metrics").is_dir():
        return None
    from rollpacker.metrics.tables import read_last_steps

    rows = read_last_steps(run_dir, NUM_STEPS_OF_REWARD)
    if not rows:
        return None
    last = rows[-1]
    step, elapsed_s, is_modelled = last["step"], last["finished_at_s"], last["modelled"]
    assert isinstance(step, int)
    assert isinstance(elapsed_s, float)
    assert isinstance(is_modelled, bool)
    reward = statistics.fmean(row["reward_mean"] for row in rows)  # type: ignore[misc]  # a column of floats
    return Progress(num_steps=step + 1, reward_mean=reward, elapsed_s=elapsed_s, is_modelled=is_modelled)


def _held_out(run_dir: Path) -> str:
    """Of the newest evaluation the first set that has a score, and how many others there are: `aime24 0.312 +1`."""
    if not (run_dir / "evaluation").is_dir():
        return ""
    from rollpacker.metrics.tables import EVALUATION_FOLDER, load_manifest, read_table

    manifest = load_manifest(run_dir / EVALUATION_FOLDER)
    if manifest is None or manifest.last_step is None:
        return ""
    rows = read_table(run_dir, "evaluations", (manifest.last_step, manifest.last_step)).to_pylist()
    first = next((row for row in rows if row["reward_mean"] is not None), None)
    others = f" +{len(rows) - 1}" if len(rows) > 1 else ""
    return f"{first['set']} {first['reward_mean']:.3f}{others}" if first is not None else ""


def _is_locked(run_dir: Path, status: RunStatus | None) -> bool | None:
    """Test the lock of a run on this machine; the lock of another machine may not be visible here."""
    if status is None or status.state != "running" or status.host != socket.gethostname():
        return None
    return is_locked(run_dir / LOCK_FILE)
