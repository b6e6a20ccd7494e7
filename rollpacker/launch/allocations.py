"""Rows of the table `allocations`: what Slurm gave to a run's jobs and to its rollout workers, and what it costs.

Slurm's accounting is asked once, for all jobs that the run ever had and the arrays of their workers: a row for each
attempt of each job, also of those that were preempted. Jobs that it has forgotten are kept. Where there is no
accounting, or no Slurm, the rows are made from what the run itself wrote (`source` is `run`): how long its attempts,
from their first step, and its workers' stays in them were.

    <run.dir>/job.json                 the last job, and the folders of the submissions before it
    <run.dir>/jobs/<number>.json       one for each job in which the run has begun, by the number that no other job has
    <submissions>/<job>.elastic        the workers' array of a job, beside its script
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rollpacker.core.errors import WorldError
from rollpacker.launch.elastic_script import ARRAY_SUFFIX
from rollpacker.launch.job_states import ask_sacct, seconds
from rollpacker.launch.submissions import Submission, read_submission
from rollpacker.paths import read_bytes, read_text
from rollpacker.runtime.job.attempts import JOBS_FOLDER, Attempt
from rollpacker.runtime.job.elastic_folder import ElasticFolder

_COLUMNS = "JobID,JobIDRaw,State,Partition,NodeList,Submit,Start,End,ElapsedRaw,AllocTRES"
_SECONDS_PER_HOUR = 3600
_STARTING_S = 3600.0
"""From a job's start until the run has begun in it, and between two clocks; job numbers come again after months."""

_ATTEMPTS = TypeAdapter(list[Attempt])


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Of a GPU for an hour; None where it is not given."""

    trainer: float | None
    worker: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One attempt of a job; the fields are columns of the table."""

    kind: str
    job: str | None
    state: str
    partition: str | None = None
    nodes: str | None = None
    submitted_at_s: float | None = None
    started_at_s: float | None = None
    ended_at_s: float | None = None
    elapsed_s: float
    num_gpus: int
    billing: float | None = None
    source: str

    def row(self, prices: Prices) -> dict[str, Any]:
        """Its row of the table."""
        price = prices.worker if self.kind == "worker" else prices.trainer
        gpu_seconds = self.num_gpus * self.elapsed_s
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "gpu_seconds": gpu_seconds,
            "price_per_gpu_hour": price,
            "cost": None if price is None else price * gpu_seconds / _SECONDS_PER_HOUR,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJobs:
    """The jobs that a run ever had, as far as its folder and that of its submissions know them."""

    own: frozenset[str]
    """As Slurm's commands take them: 12_3, or by the number that no other job has."""
    arrays: frozenset[str]
    """Of its rollout workers."""
    since: float
    """None began before, in seconds since the epoch."""
    cluster: str | None = None
    """Of the last one, as `run_slurm` takes it."""


def jobs_of(run_dir: Path) -> RunJobs | None:
    """Find the jobs of a run; None where it was never submitted, or its `job.json` cannot be read."""
    try:
        submission = read_submission(run_dir)
    except WorldError:
        return None
    if submission is None:
        return None
    began_at = {file.stem: _began_at(file) for file in (run_dir / JOBS_FOLDER).glob("*.json")}
    arrays = _arrays(submission, ElasticFolder(run_dir).path.resolve())
    return RunJobs(
        own=frozenset({submission.job_id, *began_at, *arrays}),
        arrays=frozenset(arrays.values()),
        since=min([submission.submitted_at, *began_at.values()]) - _STARTING_S,
        cluster=submission.cluster,
    )


def _began_at(file: Path) -> float:
    """When the run began in a job; the end of time where the file does not say."""
    try:
        return min((attempt.began_at for attempt in _ATTEMPTS.validate_json(read_bytes(file))), default=math.inf)
    except (OSError, ValueError):
        return math.inf


def _arrays(submission: Submission, elastic_folder: Path) -> dict[str, str]:
    """The workers' array of each job that has one, for the run whose workers meet in this folder."""
    found = {}
    folders = (*submission.earlier_folders, submission.folder)
    for file in (file for folder in folders for file in folder.glob(f"*{ARRAY_SUFFIX}")):
        job = file.name.removesuffix(ARRAY_SUFFIX)
        try:
            array, place = read_text(file).splitlines()
        except (OSError, ValueError):
            continue
        if job == submission.job_id or Path(place).resolve() == elastic_folder:
            found[job] = array
    return found


def accounted(jobs: RunJobs) -> list[Allocation]:
    """Ask Slurm's accounting about the jobs of a run; nothing where it knows nothing."""
    try:
        text = ask_sacct(sorted(jobs.own | jobs.arrays), _COLUMNS, jobs.cluster)
    except WorldError:
        return []
    return parse_accounting(text, jobs)


def parse_accounting(text: str, jobs: RunJobs) -> list[Allocation]:
    """Parse sacct's rows of our columns (-D -X -P -n), times in seconds since the epoch; the trainer's first.

    What waits, or was cancelled before it began, was given nothing and has no row; nor has another run's element of an
    array, which Slurm means by the number of the last one, too.
    """
    rows = [line.split("|") for line in text.splitlines()]
    kinds = [(_kind(row, jobs), row) for row in rows if len(row) == len(_COLUMNS.split(","))]
    found = [_allocation(row, kind) for kind, row in kinds if kind is not None]
    return _in_order(each for each in found if (each.started_at_s or -math.inf) >= jobs.since)


def merged(now: Sequence[Allocation], before: Iterable[Allocation]) -> list[Allocation]:
    """Add the jobs that Slurm's accounting has forgotten, as it knew them before."""
    known = {each.job for each in now}
    return _in_order([*now, *(each for each in before if each.job not in known)])


def _in_order(allocations: Iterable[Allocation]) -> list[Allocation]:
    return sorted(allocations, key=lambda each: (each.kind, each.started_at_s or math.inf, each.job or ""))


def _kind(row: Sequence[str], jobs: RunJobs) -> str | None:
    """Whose row it is; None if of another run. 19+1 is the second component of job 19."""
    name, number = row[:2]
    if not jobs.own.isdisjoint((name.partition("+")[0], number)):
        return "trainer"
    return "worker" if name.partition("_")[0] in jobs.arrays else None


def _allocation(row: Sequence[str], kind: str) -> Allocation:
    job, _, state, partition, nodes, submitted, started, ended, elapsed, resources = row
    elapsed_s = float(elapsed or 0)
    given = dict(part.partition("=")[::2] for part in resources.split(","))
    typed = [int(number) for name, number in given.items() if re.fullmatch(r"gres/gpu:[^=]+", name)]
    return Allocation(
        kind=kind,
        job=job,
        state=state.partition(" ")[0],
        partition=partition,
        nodes=None if nodes == "None assigned" else nodes,
        submitted_at_s=seconds(submitted),
        started_at_s=seconds(started),
        ended_at_s=seconds(ended),
        elapsed_s=elapsed_s,
        num_gpus=int(given.get("gres/gpu") or sum(typed)),
        billing=float(given["billing"]) * elapsed_s / _SECONDS_PER_HOUR if "billing" in given else None,
        source="sacct",
    )


def estimated(
    attempts: Iterable[tuple[float, float]],
    stays: Iterable[tuple[str | None, str | None, float, float | None, float]],
    *,
    num_gpus: int,
    gpus_per_worker: int,
    job: str | None,
    is_running: bool,
) -> list[Allocation]:
    """Make rows from what a run wrote itself.

    Args:
        attempts: Beginning of the first step and end of each, in seconds since the run's; what was done again counts
            again, and starting does not.
        stays: Of each worker in each attempt its job, its node, when it came and left (None: is there), until when it
            is known.
        num_gpus: Of the run's own job.
        gpus_per_worker: Of a worker.
        job: The run's.
        is_running: Whether the last attempt goes on.
    """
    of_run = [
        Allocation(
            kind="trainer",
            job=job,
            state="over",
            started_at_s=began_s,
            ended_at_s=ended_s,
            elapsed_s=ended_s - began_s,
            num_gpus=num_gpus,
            source="run",
        )
        for began_s, ended_s in attempts
    ]
    if of_run and is_running:
        of_run[-1] = replace(of_run[-1], state="running", ended_at_s=None)
    return of_run + [
        Allocation(
            kind="worker",
            job=element,
            state="running" if left_s is None else "over",
            nodes=node,
            started_at_s=joined_s,
            ended_at_s=left_s,
            elapsed_s=(until_s if left_s is None else left_s) - joined_s,
            num_gpus=gpus_per_worker,
            source="run",
        )
        for element, node, joined_s, left_s, until_s in stays
    ]
