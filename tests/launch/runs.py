"""Runs as their sources describe them, and as they lie on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollpacker.launch.job_states import JobState
from rollpacker.launch.run_status_view import Progress, RunStatusView
from rollpacker.launch.submissions import Submission
from rollpacker.runtime.run.status import RunStatus

NOW = 1795270000.0
SUBMITTED_AT = NOW - 9000
BEGAN_AT = NOW - 3200


def a_status(state: Any = "running", *, steps: int = 12, reason: str = "", updated_at: float = NOW - 5) -> RunStatus:
    return RunStatus(
        state=state,
        attempt=0,
        finished_steps=steps,
        num_steps=400,
        reason=reason,
        job_id="19",
        host="gpu07",
        updated_at=updated_at,
        processor_s=0.0,
        num_gpus=0,
    )


def a_job(state: str = "RUNNING", *, job_id: str = "19", **fields: Any) -> JobState:
    waits = state == "PENDING"
    known = {"num_nodes": 2, "start_time": None if waits else BEGAN_AT, "node_list": "" if waits else "gpu[01-02]"}
    return JobState(job_id=job_id, state=state, **{**known, **fields})


def a_submission(job_id: str = "19", *, folder: Path = Path("submitted"), num_nodes: int = 2) -> Submission:
    return Submission(job_id=job_id, folder=folder, num_nodes=num_nodes, submitted_at=SUBMITTED_AT)


def progress(num_steps: int, reward: float) -> Progress:
    return Progress(num_steps=num_steps, reward_mean=reward, elapsed_s=31.0 * num_steps)


def a_run(name: str = "0-verl", **fields: Any) -> RunStatusView:
    return RunStatusView(run_dir=Path("runs/e2e") / name, **fields)
