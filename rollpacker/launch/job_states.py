"""What Slurm knows about jobs: from squeue while it keeps them, then from sacct where accounting is on.

A requeued job keeps its number and has a row of accounting per attempt: the last row counts, the others are its
restarts. Without accounting, Slurm forgets a job some minutes after its end (MinJobAge): its state is UNKNOWN then, and
only the run's own status tells how it ended. So it is while accounting does not answer: whether a job is over, squeue
decides alone, which lists it until then. One call of squeue and at most one of sacct, however many jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from rollpacker.core.errors import WorldError
from rollpacker.launch.slurm_commands import failure_of, run_slurm

UNKNOWN = "UNKNOWN"

NOT_OVER = frozenset(
    [
        *("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"),
        *("RESIZING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT", "UPDATE_DB"),
        "POWER_UP_NODE",
    ]
)
"""Slurm's states, and flags that it prints in their place, of a job that may still run. Every other state is over."""

_BEGINS_AGAIN = frozenset({"REQUEUED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"})
"""How an attempt ends in accounting when the same job has a further one."""

_SQUEUE_COLUMNS = (
    "JobArrayID:64|,JobID:24|,State:24|,Reason:128|,exit_code:16|,NumNodes:12|,NodeList:2048|,StartTime:24|,"
    "RestartCnt:12|"
)
_NUM_SQUEUE_COLUMNS = _SQUEUE_COLUMNS.count("|")
_SACCT_COLUMNS = "JobID,JobIDRaw,State,Reason,ExitCode,NNodes,NodeList,Start,End,Submit"
_NUM_SACCT_COLUMNS = _SACCT_COLUMNS.count(",") + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """One job, as Slurm sees it now."""

    job_id: str
    """As it was asked for."""
    state: str
    """Without Slurm's additions: RUNNING, PENDING, OUT_OF_MEMORY, ...; UNKNOWN when Slurm knows nothing of it."""
    exit_code: int | None = None
    """Of the batch script; None while the job is not over, or when unknown."""
    exit_signal: int | None = None
    """That killed the batch script; None when none did."""
    reason: str = ""
    """Slurm's reason why it waits or has ended; empty when Slurm gives none."""
    num_nodes: int = 0
    node_list: str = ""
    """Compressed as Slurm writes it: node[1-4]; empty before it runs."""
    start_time: float | None = None
    """Seconds since the epoch; of a waiting job when Slurm expects to start it; None when it does not say."""
    end_time: float | None = None
    """Seconds since the epoch; None while it is not over, or when unknown."""
    num_restarts: int = 0
    """How often it was requeued."""

    @property
    def is_over(self) -> bool:
        return self.state not in NOT_OVER


def job_states(job_ids: Collection[str], cluster: str | None = None) -> tuple[Mapping[str, JobState], str]:
    """Ask Slurm about jobs of one cluster; array elements as 12_3, the cluster as `run_slurm` takes it.

    Returns:
        Every one of `job_ids`, and why accounting did not answer: empty when it did, or was not asked.

    Raises:
        WorldError: Slurm is not here, or its controller does not answer.
    """
    if not job_ids:
        return {}, ""
    found, complaint = parse_squeue(_ask_squeue(job_ids, cluster)), ""
    if any(job_id not in found or found[job_id].is_over for job_id in job_ids):
        remembered: Mapping[str, JobState] = {}
        try:
            remembered = parse_sacct(ask_sacct(job_ids, _SACCT_COLUMNS, cluster))
        except WorldError as error:
            complaint = error.problem
        found = {**remembered, **{job_id: _joined(job, remembered.get(job_id)) for job_id, job in found.items()}}
    return {job_id: found.get(job_id, JobState(job_id=job_id, state=UNKNOWN)) for job_id in job_ids}, complaint


def parse_squeue(text: str) -> Mapping[str, JobState]:
    """Parse squeue's rows of our columns; every job is listed under each of its numbers."""
    jobs: dict[str, JobState] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) < _NUM_SQUEUE_COLUMNS:
            continue  # what a site's own squeue says
        name, number, state, reason, status, num_nodes, nodes, start, restarts = cells[:_NUM_SQUEUE_COLUMNS]
        is_over = state not in NOT_OVER
        code, killer = _wait_status(status) if is_over else (None, None)
        # The waiting elements of an array share the array's number.
        names = {name} if state == "PENDING" and "_" in name else {name, number}
        for job_id in names:
            jobs[job_id] = JobState(
                job_id=job_id,
                state=state,
                exit_code=code,
                exit_signal=killer,
                reason=_reason(reason, state),
                num_nodes=_number(num_nodes),
                node_list=nodes,
                start_time=seconds(start),
                num_restarts=_number(restarts),
            )
    return jobs


def parse_sacct(text: str) -> Mapping[str, JobState]:
    """Parse sacct's rows of our columns (-D -X -P -n); of a requeued job's rows the last one counts."""
    attempts: dict[str, list[list[str]]] = {}
    for row in (line.split("|") for line in text.splitlines()):
        if len(row) == _NUM_SACCT_COLUMNS:  # else what a site's own sacct says
            attempts.setdefault(row[0], []).append(row)
    jobs: dict[str, JobState] = {}
    for name, rows in attempts.items():
        rows.sort(key=lambda row: seconds(row[9]) or 0.0)
        for job_id in {name, rows[-1][1]}:
            jobs[job_id] = _remembered(job_id, rows)
    return jobs


def ask_sacct(job_ids: Iterable[str], columns: str, cluster: str | None) -> str:
    """Ask accounting for a row of each attempt of each job (-D -X -P -n); nothing where it is disabled.

    Raises:
        WorldError: It does not answer, or there is no `sacct` here.
    """
    jobs = f"--jobs={','.join(job_ids)}"
    words = ("sacct", "--noheader", "--duplicates", "--allocations", "--parsable2", jobs, f"--format={columns}")
    outcome = run_slurm(*words, cluster=cluster)
    if not outcome.is_success and "accounting storage is disabled" not in outcome.complaint:
        raise failure_of(words[:1], outcome)
    return outcome.output


def seconds(time: str) -> float | None:
    """Parse a time of Slurm's, in seconds since the epoch; None for Unknown, N/A and the like."""
    return float(time) if time.isdecimal() else None


def _remembered(job_id: str, rows: list[list[str]]) -> JobState:
    _, _, state, reason, exit_code, num_nodes, nodes, start, end = rows[-1][:9]
    word = _word(state)
    is_over = word not in NOT_OVER
    code, _, killer = exit_code.partition(":")
    return JobState(
        job_id=job_id,
        state=word,
        exit_code=_number(code) if is_over else None,
        exit_signal=(_number(killer) or None) if is_over else None,
        reason=_reason(reason, word),
        num_nodes=_number(num_nodes),
        node_list="" if nodes == "None assigned" else nodes,
        start_time=seconds(start),
        end_time=seconds(end) if is_over else None,
        num_restarts=_num_restarts([_word(row[2]) for row in rows]),
    )


def _num_restarts(states: list[str]) -> int:
    """Count the attempts before the last; rows of an older job that had the same number end the count."""
    count = 0
    for state in reversed(states[:-1]):
        if state not in _BEGINS_AGAIN:
            break
        count += 1
    return count


def _joined(now: JobState, remembered: JobState | None) -> JobState:
    """What squeue says, with the end's time and reason from accounting."""
    if remembered is None or not (now.is_over and remembered.is_over):
        return now
    return replace(
        now,
        exit_code=remembered.exit_code,
        exit_signal=remembered.exit_signal,
        reason=now.reason or remembered.reason,
        node_list=now.node_list or remembered.node_list,
        end_time=remembered.end_time,
    )


def _ask_squeue(job_ids: Iterable[str], cluster: str | None) -> str:
    words = ("squeue", "--noheader", "--array", "--states=all", f"--jobs={','.join(job_ids)}", f"-O{_SQUEUE_COLUMNS}")
    outcome = run_slurm(*words, cluster=cluster)
    if not outcome.is_success and "Invalid job id specified" not in outcome.complaint:  # all of them are forgotten
        raise failure_of(words[:1], outcome)
    return outcome.output


def _word(state: str) -> str:
    """Strip additions: CANCELLED by 1000, CANCELLED+, OUT_OF_ME+ (a cut that --parsable2 does not make)."""
    return state.partition(" ")[0].rstrip("+")


def _wait_status(text: str) -> tuple[int | None, int | None]:
    """Split an exit status as wait(2) has it; some versions of squeue print CODE:SIGNAL."""
    if ":" in text:
        code, _, killer = text.partition(":")
        return _number(code), _number(killer) or None
    status = _number(text)
    return status >> 8, (status & 0x7F) or None


def _reason(text: str, state: str) -> str:
    """Drop empty reasons, and those of a job that no longer waits, which Slurm keeps."""
    has_none = state in {"RUNNING", "COMPLETED"} or text in {"None", "(null)", "N/A"}
    return "" if has_none else text


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
