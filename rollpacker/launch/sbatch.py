"""Submits jobs of one shape by sbatch, and nothing else of Slurm: pickled calls, one script, one job or array.

sbatch is asked first. When the job's number is known, the folder of each run is told of it, and the calls take their
final names at last; a job that starts at once waits for its call (a minute at most, by submitit). So a launch that is
interrupted in between leaves no job that trains and that the next launch would submit again; where a file cannot be
written, the error names the job.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from submitit.core.utils import DelayedSubmission, JobPaths

from rollpacker.core.errors import WorldError
from rollpacker.launch.elastic_script import ARRAY_SUFFIX
from rollpacker.launch.job import PointProcess
from rollpacker.launch.slurm_commands import named_cluster
from rollpacker.launch.submission_environment import submission_environment
from rollpacker.launch.submissions import Submission, write_submission
from rollpacker.metrics.files import storage_errors, write_atomically
from rollpacker.processes.programs import run_program

DEADLINE_S = 60.0
"""sbatch answers within a second; a busy controller takes longer."""

_TOO_MANY = re.compile(r"job array|submit limit", re.IGNORECASE)
"""In what sbatch complains of: too many elements of an array (MaxArraySize), or too many jobs of a user or account."""

_FEWER = {
    "cluster": "give fewer points at once, and the others when those are over",
    "elastic.job": "lower elastic.job.num_elements",
}
"""What to do then, by the section of the job."""


def submit(folder: Path, script: str, calls: Mapping[Path, PointProcess], num_nodes: int) -> list[Submission]:
    """Submit one job per call: several make an array, which the script has to ask for.

    Args:
        folder: Absolute; the one that the script names. It exists.
        script: What sbatch is given.
        calls: By the folders of their runs, in the order of the array's elements.
        num_nodes: Of each job.

    Raises:
        WorldError: sbatch refused, and nothing of these jobs is left; or an earlier job's `job.json` cannot be read.
        StorageFailed: A file could not be written. If Slurm has the jobs by then, either error names them.
    """
    with _scratch(folder) as scratch:
        pickles = [scratch / f"{index}.pkl" for index in range(len(calls))]
        file = scratch / "script.sh"
        with storage_errors(folder):
            for call, pickle in zip(calls.values(), pickles, strict=True):
                DelayedSubmission(call).dump(pickle)
            file.write_text(script)
        number = _sbatch(file)
        job_ids = [number] if len(calls) == 1 else [f"{number}_{index}" for index in range(len(calls))]
        now, cluster = time.time(), named_cluster(os.environ)
        submissions = [
            Submission(job_id=job_id, folder=folder, num_nodes=num_nodes, submitted_at=now, cluster=cluster)
            for job_id in job_ids
        ]
        with _errors_after_submission(folder, number):
            file.rename(submissions[0].script)
            for run_dir, submission in zip(calls, submissions, strict=True):
                write_submission(run_dir, submission)
            for submission, pickle in zip(submissions, pickles, strict=True):
                pickle.rename(call_file(submission))
    return submissions


def call_file(submission: Submission) -> Path:
    """The pickled call of a job."""
    return Path(JobPaths(submission.folder, job_id=submission.job_id).submitted_pickle)


def submit_workers(folder: Path, script: str, beside: Submission, elastic_folder: Path) -> str:
    """Submit the rollout workers of a run whose job was submitted before, and let that job's script find them.

    Returns:
        The array's number.

    Raises:
        WorldError: sbatch refused; the run's job stays, and goes on without workers.
        StorageFailed: A file could not be written; where the array was submitted before, it names it.
    """
    with _scratch(folder) as scratch:
        file = scratch / "script.sh"
        with storage_errors(folder):
            file.write_text(script)
        number = _sbatch(file, "elastic.job")
        with _errors_after_submission(folder, number):
            file.rename(folder / f"{number}_submission.sh")
            write_atomically(folder / f"{beside.job_id}{ARRAY_SUFFIX}", f"{number}\n{elastic_folder}\n".encode())
    return number


def workers_array(submission: Submission) -> str | None:
    """The array of the rollout workers that were submitted beside a run's job; None where none were."""
    file = submission.folder / f"{submission.job_id}{ARRAY_SUFFIX}"
    return file.read_text().splitlines()[0] if file.exists() else None


def jobs_of(submission: Submission) -> list[str]:
    """The job of a run, and the array of its rollout workers where there is one."""
    array = workers_array(submission)
    return [submission.job_id, *([array] if array else [])]


def looks_for_workers(submission: Submission) -> bool:
    """Tell whether the script of a run's job waits for rollout workers that were never submitted."""
    has_array = workers_array(submission) is not None
    return not has_array and submission.script.exists() and ARRAY_SUFFIX in submission.script.read_text()


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Yield a folder for files that are renamed when their job has its number; it vanishes afterwards."""
    with storage_errors(folder):
        scratch = tempfile.TemporaryDirectory(dir=folder, prefix=".new-")
    with scratch as name:
        yield Path(name)


@contextlib.contextmanager
def _errors_after_submission(folder: Path, number: str) -> Iterator[None]:
    """Name the job that Slurm has by now in the error of a file that failed: the job lacks files that it needs."""
    try:
        with storage_errors(folder):
            yield
    except WorldError as error:
        remedy = error.remedy.removesuffix("; then resume with run.resume=auto").removesuffix(".")
        raise type(error)(
            error.problem,
            f"Job {number} was submitted before that, and has not all the files that it needs.",
            f"scancel {number}. {remedy}; then launch again",
        ) from error


def _sbatch(script: Path, section: str = "cluster") -> str:
    program = shutil.which("sbatch")
    assert program is not None, "validated before"
    outcome = run_program(
        [program, "--parsable", str(script)],
        deadline_s=DEADLINE_S,
        environment=submission_environment(os.environ, script.read_text()),
    )
    if outcome.exit_code is None:
        raise WorldError(
            f"sbatch did not answer within {DEADLINE_S:.0f} s.",
            "Slurm's controller (slurmctld) may be down or busy, and may still have taken the job.",
            "See `squeue --me` before you launch again.",
        )
    if not outcome.is_success:
        fewer = f", or {_FEWER[section]}" if _TOO_MANY.search(outcome.complaint) else ""
        raise WorldError(
            f"sbatch refused a job: {outcome.complaint}",
            "Nothing of this job or array was submitted; those before it were.",
            f"Change what `{section}` asks for{fewer}; launch again and what was submitted is left alone.",
        )
    numbers = re.findall(r"^(\d+)(?:;.*)?$", outcome.output, re.MULTILINE)
    if not numbers:
        raise WorldError(
            f"sbatch printed no job's number: {outcome.output.strip() or '(nothing)'}",
            "With --parsable it prints the number on a line of its own; a site's own sbatch may print something else.",
            "See `squeue --me`: a job that is there has no call: cancel it. Put Slurm's own sbatch first on the PATH.",
        )
    return str(numbers[-1])  # behind what a site's own sbatch says
