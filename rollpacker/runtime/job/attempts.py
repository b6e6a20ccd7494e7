"""The attempts of one Slurm job at one run, and when to stop making more.

    <run.dir>/jobs/<job id>.json     one entry per start of the job: the first, and one after each requeue

Invariant: an entry is on the disk before its attempt starts anything, so an attempt that was killed (a node died,
the driver crashed) counts like one that left. An attempt has made progress when the next one begins with a newer
checkpoint. After `cluster.max_attempts_without_progress` in a row without progress the job ends with the reason instead
of being requeued; a newly submitted job starts a new count.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from rollpacker.core.errors import Preempted, RollpackerError, WorldError
from rollpacker.metrics.files import storage_errors, write_atomically
from rollpacker.paths import read_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from rollpacker.config.sections.cluster import ClusterSection
    from rollpacker.runtime.job.allocation import Allocation
    from rollpacker.runtime.job.deadline import PreemptionDeadline

JOBS_FOLDER = "jobs"
"""Below the run directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the job."""

    restart_count: int
    """How often Slurm had requeued the job."""
    number: int
    """Of the run's attempts, which name its logs."""
    first_step: int
    """What the newest checkpoint held when it began."""
    began_at: float
    """Seconds since the epoch."""
    longest_step_s: float = 0.0
    """Of the last ones that it finished."""
    checkpoint_s: float | None = None
    """The longest that it took."""
    interrupted_step_s: float = 0.0
    """How long its interrupted step had run."""


def request_requeue(allocation: Allocation | None) -> None:
    """Ask the batch script, where one of ours waits for that, to send the job back into the queue when its ranks end.

    Raises:
        StorageFailed: Its file cannot be written.
    """
    if allocation is not None and allocation.requeue_file is not None:
        with storage_errors(allocation.requeue_file):
            allocation.requeue_file.touch()


class JobAttempts:
    """The attempts of the job that this process is in."""

    def __init__(self, run_dir: Path, allocation: Allocation, cluster: ClusterSection) -> None:
        self._run_dir = run_dir
        self._file = run_dir / JOBS_FOLDER / f"{allocation.job_id}.json"
        self._allocation = allocation
        self._cluster = cluster
        self._earlier = [attempt for attempt in _read(self._file) if attempt.restart_count < allocation.restart_count]
        self._current: Attempt | None = None

    def begin(self, number: int, first_step: int, deadline: PreemptionDeadline, now: float) -> None:
        """Record this attempt; raises `WorldError` after too many without progress."""
        num_futile = self._num_futile(first_step)
        if num_futile >= self._cluster.max_attempts_without_progress:
            raise WorldError(
                f"Job {self._allocation.job_id} was started {num_futile} times in a row without a new checkpoint "
                f"after step {first_step}: its processes or nodes died.",
                f"cluster.max_attempts_without_progress={self._cluster.max_attempts_without_progress} bounds that.",
                f"The reasons are in {self._run_dir / 'logs'} and in the job's own log; when they are gone, submit the "
                "run again: it goes on from there.",
            )
        if self._earlier:
            checkpoints_s = [each.checkpoint_s for each in self._earlier if each.checkpoint_s is not None]
            deadline.expect(self._earlier[-1].longest_step_s, checkpoints_s)
        self._write(
            Attempt(restart_count=self._allocation.restart_count, number=number, first_step=first_step, began_at=now)
        )

    def leave(self, finished_steps: int, num_steps: int, deadline: PreemptionDeadline, now: float) -> RollpackerError:
        """Request a requeue if that may help, and give the error that ends this attempt."""
        assert self._current is not None
        self._write(
            replace(
                self._current,
                longest_step_s=deadline.longest_step_s,
                checkpoint_s=deadline.checkpoint_s,
                interrupted_step_s=deadline.interrupted_step_s,
            )
        )
        where = f"The run left after step {finished_steps} of {num_steps}: {deadline.reason}."
        if not self._cluster.requeue or self._allocation.requeue_file is None:
            why = "cluster.requeue=false" if not self._cluster.requeue else "no batch script of RollPacker waits for it"
            return Preempted(
                where, f"The job is not requeued: {why}.", "Submit the run again: it goes on from its checkpoint."
            )
        if self._is_last(finished_steps):
            return self._no_progress(where, deadline.reserve_s, now)
        request_requeue(self._allocation)
        return Preempted(
            where,
            "The batch script sends the job back into the queue, unless it was cancelled.",
            "The run resumes by itself; there is nothing to do.",
        )

    def end(self, saved_steps: int) -> str:
        """Withdraw a request for a requeue, such as after a lost node, if the next start would be refused.

        Gives the reason for a person, or nothing.
        """
        if self._allocation.requeue_file is None or self._current is None or not self._is_last(saved_steps):
            return ""
        try:
            self._allocation.requeue_file.unlink()
        except OSError:  # nobody has asked; or the next start gives the reason
            return ""
        most = self._cluster.max_attempts_without_progress
        return f"The job is not requeued: no new checkpoint in cluster.max_attempts_without_progress={most} attempts."

    def _is_last(self, saved_steps: int) -> bool:
        """Whether this attempt, which ends with a checkpoint of so many steps, was one too many without progress."""
        assert self._current is not None
        num_futile = self._num_futile(saved_steps) + 1
        is_futile = saved_steps == self._current.first_step
        return is_futile and num_futile >= self._cluster.max_attempts_without_progress

    def _num_futile(self, first_step: int) -> int:
        """How many attempts before this one, in a row, began where it begins."""
        count = 0
        for attempt in reversed(self._earlier):
            if attempt.first_step != first_step:
                break
            count += 1
        return count

    def _no_progress(self, where: str, reserve_s: float, now: float) -> WorldError:
        """Explain which time was too short."""
        assert self._current is not None
        num_futile = self._num_futile(self._current.first_step) + 1
        attempts = [*self._earlier, self._current]
        step_s = max(max(attempt.longest_step_s, attempt.interrupted_step_s) for attempt in attempts)
        times = f"the longest step seen took or had run {step_s:.0f} s"
        end_time = self._allocation.end_time
        remedies = ["make steps shorter (rollout.num_prompts, rollout.max_response_tokens)"]
        if end_time is not None:
            began_at = self._current.began_at
            starting_s = max(0.0, now - began_at - self._current.interrupted_step_s)
            needed_min = math.ceil((starting_s + 2 * step_s + reserve_s) / 60) + 1
            times = (
                f"the time limit left {end_time - began_at:.0f} s to an attempt, {reserve_s:.0f} s of them for its "
                f"checkpoint and its end; {times}"
            )
            remedies.insert(0, f"give it more time (cluster.time_limit_min={needed_min})")
        return WorldError(
            f"{where}\nThis was attempt {num_futile} in a row without a new checkpoint: {times}.",
            "An attempt has to start, finish a step and write a checkpoint, or the job would be requeued without end "
            f"(cluster.max_attempts_without_progress={self._cluster.max_attempts_without_progress}).",
            f"Submit the run again, and {' or '.join(remedies)}; it goes on from its last checkpoint.",
        )

    def _write(self, attempt: Attempt) -> None:
        self._current = attempt
        entries = [asdict(entry) for entry in (*self._earlier, attempt)]
        write_atomically(self._file, (json.dumps(entries, indent=1) + "\n").encode(), durable=True)


def _read(file: Path) -> list[Attempt]:
    try:
        return [Attempt(**entry) for entry in json.loads(read_bytes(file))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise WorldError(
            f"{file} cannot be read: {error}.",
            "The attempts of a job are written by the job and by nothing else.",
            "Remove it: the job then starts a new count.",
        ) from error
