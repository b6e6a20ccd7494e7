"""The status of a run in its folder: `status.json`.

Written atomically when an attempt begins, after every step, and when it ends. An attempt that was killed leaves
`running` behind; the reader checks with Slurm.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from rollpacker.core.errors import Interrupted, Preempted, RollpackerError, StorageFailed
from rollpacker.metrics.files import write_atomically
from rollpacker.paths import read_bytes

STATUS_FILE = "status.json"

State = Literal["running", "finished", "preempted", "failed", "interrupted"]
"""`preempted`: it left its machines with a checkpoint, and resumes when it is started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The content of `status.json`."""

    state: State
    attempt: int
    finished_steps: int
    """Of all attempts."""
    num_steps: int
    reason: str
    """Why it preempted, failed or was interrupted; empty otherwise."""
    job_id: str | None
    """Of Slurm."""
    host: str
    updated_at: float
    """Seconds since the epoch."""
    processor_s: float
    """Of the attempt so far, in the process that heads it: all that a modelled run takes."""
    num_gpus: int
    """That nobody else could have meanwhile; of a modelled run, modelled."""


_STATUS = TypeAdapter(RunStatus)


def write_status(run_dir: Path, status: RunStatus) -> None:
    """Replace the status of a run."""
    write_atomically(run_dir / STATUS_FILE, (json.dumps(asdict(status), indent=1) + "\n").encode())


def read_status(run_dir: Path) -> RunStatus | None:
    """Read the status of a run; None when it never began, when another version wrote it, and when it is damaged."""
    try:
        return _STATUS.validate_json(read_bytes(run_dir / STATUS_FILE), strict=True)
    except (OSError, ValueError):
        return None


@contextmanager
def shown_status(
    run_dir: Path, *, attempt: int, finished_steps: int, num_steps: int, job_id: str | None, num_gpus: int = 0
) -> Iterator[StatusBoard]:
    """Record that an attempt runs, and how it ended."""
    first = RunStatus(
        state="running",
        attempt=attempt,
        finished_steps=finished_steps,
        num_steps=num_steps,
        reason="",
        job_id=job_id,
        host=socket.gethostname(),
        updated_at=time.time(),
        processor_s=0.0,
        num_gpus=num_gpus,
    )
    board = StatusBoard(run_dir, first)
    try:
        yield board
    except BaseException as error:
        board.fail(error)
        raise
    board.finish()


class StatusBoard:
    """Keeps the status of one attempt, which is running."""

    def __init__(self, run_dir: Path, first: RunStatus) -> None:
        self._run_dir = run_dir
        self._status = first
        self._processor_zero_s = time.process_time()
        write_status(run_dir, first)

    def count_gpus(self, num_gpus: int) -> None:
        """Record the number of a modelled run's GPUs, which is known once the cluster is modelled."""
        self._status = replace(self._status, num_gpus=num_gpus)
        self._write("running")

    def step_finished(self, finished_steps: int) -> None:
        self._status = replace(self._status, finished_steps=finished_steps)
        self._write("running")

    def finish(self) -> None:
        self._write("finished")

    def fail(self, error: BaseException) -> None:
        """Record how the attempt ended early, as far as the disk lets: it is by this error that a job is requeued."""
        with suppress(StorageFailed):
            match error:
                case Preempted():
                    self._write("preempted", error.problem)
                case Interrupted():
                    self._write("interrupted", error.problem)
                case KeyboardInterrupt() | asyncio.CancelledError():
                    self._write("interrupted")
                case RollpackerError():
                    self._write("failed", str(error))
                case _:
                    self._write("failed", f"{type(error).__name__}: {error}")

    def _write(self, state: State, reason: str = "") -> None:
        processor_s = time.process_time() - self._processor_zero_s
        self._status = replace(
            self._status, state=state, reason=reason, updated_at=time.time(), processor_s=processor_s
        )
        write_status(self._run_dir, self._status)
