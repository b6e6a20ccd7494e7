"""Rows of the table `allocations`: what Slurm gave to a run's job and to its rollout workers, and what it costs.

Slurm's accounting is asked once, for the run's job and its workers' array: a row for each attempt of each job, also of
those that were preempted. Where there is no accounting, or no Slurm, the rows are made from what the run itself wrote
(`source` is `run`): how long its attempts and its workers' lives were.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from rollpacker.core.errors import WorldError
from rollpacker.launch.elastic_script import ARRAY_SUFFIX
from rollpacker.launch.slurm_commands import run_slurm
from rollpacker.launch.submissions import Submission
from rollpacker.paths import read_text

_COLUMNS = "JobID,State,Partition,NodeList,Submit,Start,End,ElapsedRaw,AllocTRES"
_SECONDS_PER_HOUR = 3600
_CLOCK_SKEW_S = 60.0
"""Between the machine that submitted and Slurm's; job numbers may come again after months."""


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


def array_of(submission: Submission) -> str | None:
    """The number of the array of a job's rollout workers; None where it has none."""
    try:
        return read_text(submission.folder / f"{submission.job_id}{ARRAY_SUFFIX}").split()[0]
    except (OSError, IndexError):
        return None


def accounted(submission: Submission) -> list[Allocation]:
    """Ask Slurm's accounting about a run's job and its workers; nothing where it knows nothing."""
    array = array_of(submission)
    jobs = submission.job_id if array is None else f"{submission.job_id},{array}"
    words = ("--noheader", "--duplicates", "--allocations", "--parsable2", f"--jobs={jobs}", f"--format={_COLUMNS}")
    try:
        outcome = run_slurm("sacct", *words)
    except WorldError:
        return []
    found = parse_accounting(outcome.output, array) if outcome.is_success else []
    return [each for each in found if (each.submitted_at_s or 0.0) >= submission.submitted_at - _CLOCK_SKEW_S]


def parse_accounting(text: str, array: str | None) -> list[Allocation]:
    """Parse sacct's rows of our columns (-D -X -P -n), times in seconds since the epoch; the trainer's first.

    What waits, or was cancelled before it began, was given nothing and has no row.
    """
    rows = [line.split("|") for line in text.splitlines()]
    found = [_allocation(row, array) for row in rows if len(row) == len(_COLUMNS.split(","))]
    found = [each for each in found if each.started_at_s is not None]
    return sorted(found, key=lambda each: (each.kind, each.started_at_s or float("inf"), each.job or ""))


def _allocation(row: list[str], array: str | None) -> Allocation:
    job, state, partition, nodes, submitted, started, ended, elapsed, resources = row
    elapsed_s = float(elapsed or 0)
    given = dict(part.partition("=")[::2] for part in resources.split(","))
    typed = [int(number) for name, number in given.items() if re.fullmatch(r"gres/gpu:[^=]+", name)]
    return Allocation(
        kind="worker" if array is not None and job.partition("_")[0] == array else "trainer",
        job=job,
        state=state.partition(" ")[0],
        partition=partition,
        nodes=None if nodes == "None assigned" else nodes,
        submitted_at_s=_time(submitted),
        started_at_s=_time(started),
        ended_at_s=_time(ended),
        elapsed_s=elapsed_s,
        num_gpus=int(given.get("gres/gpu") or sum(typed)),
        billing=float(given["billing"]) * elapsed_s / _SECONDS_PER_HOUR if "billing" in given else None,
        source="sacct",
    )


def _time(text: str) -> float | None:
    return float(text) if text.isdecimal() else None


def estimated(
    attempts: Iterable[tuple[float, float]],
    lives: Iterable[tuple[str | None, str | None, float, float | None, float]],
    *,
    num_gpus: int,
    gpus_per_worker: int,
    job: str | None,
    is_running: bool,
) -> list[Allocation]:
    """Make rows from what a run wrote itself.

    Args:
        attempts: Beginning and end of each, in seconds since the run began.
        lives: Of each worker its job, its node, when it joined and left (None: is there), until when it is known.
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
        for element, node, joined_s, left_s, until_s in lives
    ]
