"""Finds runs below folders, and asks how each of them stands.

Reads only: looking at a run never changes it. Slurm is asked once for all jobs, and where it cannot be asked, the runs
still tell what they know.
"""

from __future__ import annotations

import fcntl
import os
import socket
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rollpacker.core.errors import DataError, WorldError
from rollpacker.launch.failures import reason_in_logs
from rollpacker.launch.queue import JobState, job_states
from rollpacker.launch.standing import Progress, RunStatusView
from rollpacker.launch.submissions import JOB_FILE, read_submission
from rollpacker.paths import open_to_read
from rollpacker.runtime.run.run_folder import RUN_FILE
from rollpacker.runtime.run.status import STATUS_FILE, RunStatus, read_status

_MARKS = (JOB_FILE, STATUS_FILE, RUN_FILE)
"""A folder with one of these is a run's."""

_LOCK_FILE = "lock"
"""Held by a run's one process."""


_NUM_STEPS_OF_REWARD = 10
"""Over which the shown reward is averaged: of tail batching, that many steps hold short and long rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What was seen."""

    standings: tuple[RunStatusView, ...]
    complaint: str
    """Why Slurm could not be asked; empty when it answered, or when there was nothing to ask."""


def find_runs(folder: Path) -> Iterator[Path]:
    """Yield the run folders at or below `folder`, in the order of their names; runs do not lie in runs."""
    if any((folder / mark).is_file() for mark in _MARKS):
        yield folder
        return
    with os.scandir(folder) as entries:
        below = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    for name in below:
        if not name.startswith("."):
            try:
                yield from find_runs(folder / name)
            except PermissionError:
                continue


def look_at(run_dirs: Sequence[Path]) -> Survey:
    """See how runs stand."""
    seen = [_without_job(run_dir) for run_dir in run_dirs]
    jobs: Mapping[str, JobState] = {}
    complaint = ""
    if ids := {job_id for standing in seen if (job_id := _job_id(standing)) is not None}:
        try:
            jobs = job_states(sorted(ids))
        except WorldError as error:
            complaint = error.problem
    joined = (replace(standing, job=jobs.get(_job_id(standing) or "")) for standing in seen)
    return Survey(standings=tuple(map(_with_reason, joined)), complaint=complaint)


def _without_job(run_dir: Path) -> RunStatusView:
    status = read_status(run_dir)
    is_damaged = status is None and (run_dir / STATUS_FILE).exists()
    return RunStatusView(
        run_dir=run_dir,
        logged=f"{STATUS_FILE} cannot be read: it is damaged, or another version wrote it" if is_damaged else "",
        submission=read_submission(run_dir),
        status=status,
        progress=_progress(run_dir),
        is_locked=_is_locked(run_dir, status),
    )


def _job_id(standing: RunStatusView) -> str | None:
    """Of the last job: the submitted one, or the one within which it was started by hand."""
    if standing.submission is not None:
        return standing.submission.job_id
    return standing.status.job_id if standing.status is not None else None


def _with_reason(standing: RunStatusView) -> RunStatusView:
    if standing.word not in {"failed", "died"}:
        return standing
    return replace(standing, logged=reason_in_logs(tuple(_logs(standing))))


def _logs(standing: RunStatusView) -> Iterable[Path]:
    """The job's, rank 0 first, then those of the last attempt's actors."""
    if standing.submission is not None:
        for log in standing.submission.logs:
            yield from (log, log.with_suffix(".err"))
    attempts = sorted((standing.run_dir / "logs").glob("attempt-*"))
    if attempts:
        yield from sorted(attempts[-1].glob("*.log"))


def _progress(run_dir: Path) -> Progress | None:
    if not (run_dir / "metrics").is_dir():
        return None
    from rollpacker.metrics.tables import read_last_steps

    try:
        rows = read_last_steps(run_dir, _NUM_STEPS_OF_REWARD)
    except (DataError, OSError):
        return None  # it is being written, or by another version; what the run says of itself still counts
    if not rows:
        return None
    last = rows[-1]
    step, elapsed_s, is_modelled = last["step"], last["finished_at_s"], last["modelled"]
    assert isinstance(step, int)
    assert isinstance(elapsed_s, float)
    assert isinstance(is_modelled, bool)
    reward = statistics.fmean(row["reward_mean"] for row in rows)  # type: ignore[misc]  # a column of floats
    return Progress(num_steps=step + 1, reward_mean=reward, elapsed_s=elapsed_s, is_modelled=is_modelled)


def _is_locked(run_dir: Path, status: RunStatus | None) -> bool | None:
    """Try the lock of a run that says it runs on this machine; a lock of another machine may not be seen here."""
    if status is None or status.state != "running" or status.host != socket.gethostname():
        return None
    try:
        with open_to_read(run_dir / _LOCK_FILE) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False
