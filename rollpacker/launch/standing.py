"""How a run stands, from what three stack_sources say: its job (Slurm), its status file, and its process's lock.

    waiting, requeued   its job is in the queue, for the first time or again
    starting            its job runs, the run has not said anything yet
    running             it says so, and its job or its process is there
    ending              it has said how it ended, and its job is about to
    finished, failed, preempted, interrupted     as it said itself
    died                it says `running`, but its job is over or its process gone
    cancelled           somebody ended its job (scancel)
    unknown             nobody knows: it never began, or an older version wrote it

Slurm knows whether something runs, the run knows how it went: neither is believed beyond that. A status that is older
than the attempt at hand says nothing about it. Pure: `survey.py` asks the stack_sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rollpacker.launch.queue import UNKNOWN, JobState
from rollpacker.launch.submissions import Submission
from rollpacker.runtime.run.status import RunStatus

Word = Literal[
    "waiting",
    "requeued",
    "starting",
    "running",
    "ending",
    "finished",
    "failed",
    "preempted",
    "interrupted",
    "died",
    "cancelled",
    "unknown",
]

_QUEUED = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})

_WAITS_FOR = {
    "Resources": "no nodes are free",
    "Priority": "others come first",
    "Dependency": "another job has to end first",
    "DependencyNeverSatisfied": "the job that it waits for has failed, so it never starts: cancel it",
    "BeginTime": "it may not begin yet; a requeued job waits for a while",
    "JobArrayTaskLimit": "as many of its array run as may at once",
    "JobHeldUser": "held by its owner; `scontrol release` lets it go",
    "JobHeldAdmin": "held by those who run the cluster",
    "PartitionDown": "its partition starts no jobs now",
    "PartitionInactive": "its partition starts no jobs now",
    "PartitionTimeLimit": "its partition does not allow so long a job: cancel it, and ask for less",
    "PartitionNodeLimit": "its partition does not allow so many nodes: cancel it, and ask for fewer",
    "PartitionConfig": "its partition cannot give what it asks for: cancel it, and ask for less",
    "BadConstraints": "no nodes have what it asks for: cancel it",
    "Reservation": "it waits for its reservation",
    "Licenses": "it waits for a licence",
    "launch_failed_requeued_held": "its start failed and it is held; `scontrol release` lets it go",
    "job_requeued_in_held_state": "it was requeued and is held; `scontrol release` lets it go",
}
"""Slurm's words for why a job waits. Limits of accounts and QOS (Assoc..., QOS..., Max...) are told by
their prefix, as are nodes that are not available."""

_ENDED_BY = {
    "OUT_OF_MEMORY": "it used more memory than its job asked for; raise cluster.memory_gb_per_node",
    "NODE_FAIL": "a node failed",
    "TIMEOUT": "it reached its job's time limit; raise cluster.time_limit_min, or let it be requeued",
    "PREEMPTED": "another job took its nodes, and it was not requeued",
    "CANCELLED": "somebody ended its job",
    "DEADLINE": "its job could not end before its deadline",
    "BOOT_FAIL": "a node did not start",
    "LAUNCH_FAILED": "a node could not start the job",
    "REVOKED": "another cluster took the job",
}
"""Ends that Slurm itself decides on, of which the run often had no time to speak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run came, from its own metrics."""

    num_steps: int
    """Finished ones, of all attempts."""
    reward_mean: float
    """Of the last steps."""
    elapsed_s: float
    """Until the last step's end, of all attempts."""
    is_modelled: bool = False
    """Whether its times are of a modelled cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatusView:
    """One run, and what the stack_sources say of it."""

    run_dir: Path
    submission: Submission | None = None
    """None: it was not submitted by a multirun."""
    job: JobState | None = None
    """None: it has no job, or Slurm could not be asked."""
    status: RunStatus | None = None
    progress: Progress | None = None
    """None before its first step."""
    is_locked: bool | None = None
    """Whether a process holds the run's folder; None when that cannot be seen from here."""
    logged: str = ""
    """Why it ended, as its logs say, or why nobody knows how it stands; empty when they were not asked."""

    @property
    def word(self) -> Word:
        status = self.status_of_attempt
        if self.job is None:
            return "unknown" if status is None else self._word_without_job(status)
        if not self.job.is_over:
            return self._word_of_live_job(self.job, status)
        return self._word_of_ended_job(self.job, status)

    @property
    def status_of_attempt(self) -> RunStatus | None:
        """The status, unless it is of an earlier job or of an earlier attempt of this job."""
        began = max(
            self.submission.submitted_at if self.submission else 0.0,
            (self.job.start_time or 0.0) if self.job and self.job.state not in _QUEUED else 0.0,
        )
        return self.status if self.status is not None and self.status.updated_at >= began else None

    @property
    def reason(self) -> str:
        """Why it waits, or did not finish; empty when there is nothing to explain."""
        word, job, status = self.word, self.job, self.status_of_attempt
        if job is not None and word in {"waiting", "requeued"}:
            return _in_words(job.reason, _waits_for(job.reason))
        if word in {"finished", "running", "starting", "ending"}:
            return ""
        if word == "unknown":
            return self.logged
        if status is not None and status.reason and word != "cancelled":
            return status.reason
        if job is not None and job.state in _ENDED_BY:
            slurms = _in_words(job.state, _ENDED_BY[job.state])
            return f"{slurms}: {self.logged}" if self.logged and word == "failed" else slurms
        return self.logged or self._last_resort(word)

    @property
    def num_finished_steps(self) -> int | None:
        """None when it never began."""
        if self.progress is not None:
            return self.progress.num_steps
        return self.status.finished_steps if self.status is not None else None

    @property
    def how_to_go_on(self) -> str:
        """What to do about a run that was broken off and that nobody starts again; empty of others."""
        if self.word not in {"died", "interrupted", "preempted", "cancelled"}:
            return ""
        return "The same command with the same run.dir and run.resume=auto goes on from its last checkpoint."

    def started_and_ended(self, now: float) -> tuple[float, float] | None:
        """When the attempt began, and when it ended or now, in seconds since the epoch; None when nobody knows."""
        if self.job is None or self.job.start_time is None or self.job.state in _QUEUED:
            return None
        if not self.job.is_over:
            return self.job.start_time, now
        return None if self.job.end_time is None else (self.job.start_time, self.job.end_time)

    def _word_of_live_job(self, job: JobState, status: RunStatus | None) -> Word:
        if job.state in _QUEUED:
            return "requeued" if job.num_restarts else "waiting"
        if status is None:
            return "ending" if job.state == "COMPLETING" else "starting"
        return "running" if status.state == "running" and job.state != "COMPLETING" else "ending"

    def _word_of_ended_job(self, job: JobState, status: RunStatus | None) -> Word:
        if status is not None and status.state == "finished":
            return "finished"
        if job.state == "CANCELLED":
            return "cancelled"
        if status is not None:
            return "died" if status.state == "running" else status.state
        if job.state == "COMPLETED":  # a run that says nothing at all, and whose job says that all went well
            return "finished"
        return "unknown" if job.state == UNKNOWN else "failed"

    def _word_without_job(self, status: RunStatus) -> Word:
        if status.state == "running" and self.is_locked is False:
            return "died"
        return status.state

    def _last_resort(self, word: Word) -> str:
        if self.job is not None and self.job.exit_signal:
            return f"its job was killed by signal {self.job.exit_signal}"
        if self.job is not None and self.job.exit_code:
            return f"its job ended with exit code {self.job.exit_code}"
        if self.job is not None and self.job.reason:
            return f"Slurm says {self.job.reason}"
        return "its process is gone, and left no word" if word == "died" else ""


def _waits_for(reason: str) -> str:
    if reason.startswith(("Assoc", "QOS", "Max")):
        return "a limit of the account or QOS is reached"
    if reason.startswith(("ReqNodeNotAvail", "Nodes_required_for_job_are_DOWN")):
        return "nodes that it needs are down, drained or reserved"
    return _WAITS_FOR.get(reason.replace(" ", "_"), "")


def _in_words(slurms: str, ours: str) -> str:
    return f"{ours} ({slurms})" if ours and slurms else slurms or ours
