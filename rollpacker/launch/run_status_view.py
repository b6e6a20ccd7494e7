"""The state of a run, from three sources: its job (Slurm), its status file, and the lock of its process.

    waiting, requeued   its job is in the queue, for the first time or again
    starting            its job runs; the run has written no status yet
    running             its status says so, and its job or its process is there, also one that goes on after its job
    ending              its status says how it ended; its job has not ended yet
    finished, failed, preempted, interrupted     as its status says
    died                its status says `running`, but its job is over or its process gone
    cancelled           its job was cancelled (scancel)
    unknown             it never began, whatever its job says, or another version wrote its status

Slurm decides whether a run is alive, the run itself how it went. A status that is older than the current attempt is
ignored. Pure: `collect_status.py` reads the sources.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rollpacker.launch.job_states import UNKNOWN, JobState
from rollpacker.launch.submissions import Submission
from rollpacker.runtime.run.status import RunStatus

RunState = Literal[
    "waiting", "requeued", "starting", "running", "ending", "finished", "failed", "preempted", "interrupted", "died",
    "cancelled", "unknown",
]  # fmt: skip

_QUEUED = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})

_WAITS_FOR = {
    "Resources": "no nodes are free",
    "Priority": "jobs of higher priority come first",
    "Dependency": "another job has to end first",
    "DependencyNeverSatisfied": "the job that it waits for has failed, so it never starts: cancel it",
    "BeginTime": "it may not begin yet; a requeued job waits for a while",
    "JobArrayTaskLimit": "its array has reached its limit of running jobs",
    "JobHeldUser": "held by its owner; `scontrol release` releases it",
    "JobHeldAdmin": "held by an administrator",
    "PartitionDown": "its partition starts no jobs now",
    "PartitionInactive": "its partition starts no jobs now",
    "PartitionTimeLimit": "its partition does not allow so long a job: cancel it, and ask for less",
    "PartitionNodeLimit": "its partition does not allow so many nodes: cancel it, and ask for fewer",
    "MaxMemPerLimit": "its partition does not allow so much memory: cancel it, and ask for less",
    "PartitionConfig": "its partition cannot give what it asks for: cancel it, and ask for less",
    "BadConstraints": "no nodes have what it asks for: cancel it",
    "Reservation": "it waits for its reservation",
    "Licenses": "it waits for a licence",
    "launch_failed_requeued_held": "its start failed and it is held; `scontrol release` releases it",
    "job_requeued_in_held_state": "it was requeued and is held; `scontrol release` releases it",
}
"""Slurm's reasons for a waiting job, where it has one name for each."""

_WAITS_FOR_PATTERNS = (
    (
        r"PerJob|PerNode|^QOSMin|NotAllowed$|^Invalid(Account|QOS)$",
        "its account or QOS allows no such job, so it never starts: cancel it, and change its size, account or QOS",
    ),
    (r"^(Assoc|QOS)|Per(Account|User)$", "a limit of the account or QOS is reached"),
    (r"^(ReqNodeNotAvail|Nodes_required_for_job_are_DOWN)", "nodes that it needs are down, drained or reserved"),
)
"""Slurm's reasons with a name for each resource: the first pattern that is found counts. Source: Slurm's
job_state_reason.c. A limit of minutes (QOSGrpCPUMinutesLimit), or of all jobs of a user, lifts with time."""

_ENDED_BY = {
    "OUT_OF_MEMORY": "it used more memory than its job asked for; raise cluster.memory_gb_per_node",
    "NODE_FAIL": "a node failed",
    "TIMEOUT": "it reached its job's time limit; raise cluster.time_limit_min, or let it be requeued",
    "PREEMPTED": "another job took its nodes, and it was not requeued",
    "CANCELLED": "its job was cancelled",
    "DEADLINE": "its job could not end before its deadline",
    "BOOT_FAIL": "a node did not start",
    "LAUNCH_FAILED": "a node could not start the job",
    "REVOKED": "another cluster took the job",
}
"""Ends that Slurm decides on; the run often has no time to record them."""

_NO_LOG_SIGNAL = 53
"""By which Slurm says that it could not open the output of a job's script; no signal of the kernel's."""

_LEFT_NOTHING = "its job ended without an error, and the run left no status in this folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a run, from its metrics."""

    num_steps: int
    """Finished steps, of all attempts."""
    reward_mean: float
    """Of the last steps."""
    elapsed_s: float
    """Until the last step's end, of all attempts."""
    is_modelled: bool = False
    """Whether its times are of a modelled cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatusView:
    """One run and what its sources say."""

    run_dir: Path
    submission: Submission | None = None
    """None: no multirun submitted it."""
    job: JobState | None = None
    """None: it has no job, or Slurm could not be asked."""
    status: RunStatus | None = None
    progress: Progress | None = None
    """None before its first step."""
    held_out: str = ""
    """Set and score of the last evaluation, of several sets the first; empty before any."""
    workers: str = ""
    """Of its rollout workers, how many are where; empty of a run that takes none now."""
    is_locked: bool | None = None
    """Whether a process holds the lock of the run's folder; None when that cannot be seen from this machine."""
    logged: str = ""
    """Why it ended according to its logs, or why its state is unknown; empty when the logs were not read."""

    @property
    def state(self) -> RunState:
        status = self.status_of_attempt
        if self.job is not None and not self.job.is_over:
            return _state_in_job(self.job, status)
        if self.job is not None and not self.is_locked:
            return _state_after_job(self.job, status)
        if status is None:
            return "unknown"
        return "died" if status.state == "running" and self.is_locked is False else status.state

    @property
    def status_of_attempt(self) -> RunStatus | None:
        """The status, unless it is of an earlier job or of an earlier attempt of this job."""
        began = max(
            self._submitted_at,
            (self.job.start_time or 0.0) if self.job and self.job.state not in _QUEUED else 0.0,
        )
        return self.status if self.status is not None and self.status.updated_at >= began else None

    @property
    def later_job_id(self) -> str | None:
        """The job in which the run was continued by hand after the submitted one had ended; None where it was not.

        Of an array's element without accounting it may be its own job, under its other number.
        """
        status, job = self.status, self.job
        if status is None or job is None or not job.is_over or status.job_id in {None, job.job_id}:
            return None
        ended = job.end_time or self._submitted_at
        return status.job_id if int(status.updated_at) > ended else None  # Slurm counts whole seconds

    @property
    def _submitted_at(self) -> float:
        return self.submission.submitted_at if self.submission else 0.0

    @property
    def reason(self) -> str:
        """Why it waits, or did not finish; empty for other states."""
        state, job, status = self.state, self.job, self.status_of_attempt
        if job is not None and state in {"waiting", "requeued"}:
            return _explained(job.reason, _waits_for(job.reason))
        if state in {"finished", "running", "starting", "ending"}:
            return ""
        if state == "unknown":
            return self.logged or (_LEFT_NOTHING if job is not None and job.state == "COMPLETED" else "")
        if status is not None and status.reason and state != "cancelled":
            return status.reason
        if job is not None and job.state in _ENDED_BY:
            ended = _explained(job.state, _ENDED_BY[job.state])
            return f"{ended}: {self.logged}" if self.logged and state == "failed" else ended
        return self.logged or self._reason_of_job(state)

    @property
    def num_finished_steps(self) -> int | None:
        """None when it never began."""
        if self.progress is not None:
            return self.progress.num_steps
        return self.status.finished_steps if self.status is not None else None

    @property
    def how_to_go_on(self) -> str:
        """How to continue an interrupted run that is not requeued; empty for other runs."""
        if self.state not in {"died", "interrupted", "preempted", "cancelled"}:
            return ""
        return (
            "The same command with the same run.dir and run.resume=auto goes on from its last checkpoint,"
            " or begins anew where it has none."
        )

    def started_and_ended(self, now: float) -> tuple[float, float] | None:
        """When the attempt began, and when it ended or now, in seconds since the epoch; None when unknown."""
        if self.job is None or self.job.start_time is None or self.job.state in _QUEUED:
            return None
        if self.job.is_over and self.is_locked:
            return None  # the attempt is another one
        if not self.job.is_over:
            return self.job.start_time, now
        return None if self.job.end_time is None else (self.job.start_time, self.job.end_time)

    def _reason_of_job(self, state: RunState) -> str:
        """What Slurm says of a run that left no reason itself."""
        if self.job is not None and self.job.exit_signal == _NO_LOG_SIGNAL:
            folder = self.submission.folder if self.submission is not None else self.run_dir
            return f"its node could not write its log in {folder}: not seen there, not writable, or full"
        if self.job is not None and self.job.exit_signal:
            return f"its job was killed by signal {self.job.exit_signal}"
        if self.job is not None and self.job.exit_code:
            return f"its job ended with exit code {self.job.exit_code}"
        if self.job is not None and self.job.reason:
            return f"Slurm says {self.job.reason}"
        return "its process is gone and left no reason" if state == "died" else ""


def _state_in_job(job: JobState, status: RunStatus | None) -> RunState:
    if job.state in _QUEUED:
        return "requeued" if job.num_restarts else "waiting"
    if status is None:
        return "ending" if job.state == "COMPLETING" else "starting"
    return "running" if status.state == "running" and job.state != "COMPLETING" else "ending"


def _state_after_job(job: JobState, status: RunStatus | None) -> RunState:
    if status is not None and status.state == "finished":
        return "finished"
    if job.state == "CANCELLED":
        return "cancelled"
    if status is not None:
        return "died" if status.state == "running" else status.state
    return "unknown" if job.state in {"COMPLETED", UNKNOWN} else "failed"


def _waits_for(reason: str) -> str:
    name = reason.replace(" ", "_")
    words = (words for pattern, words in _WAITS_FOR_PATTERNS if re.search(pattern, name))
    return _WAITS_FOR.get(name) or next(words, "")


def _explained(slurms: str, ours: str) -> str:
    return f"{ours} ({slurms})" if ours and slurms else slurms or ours
