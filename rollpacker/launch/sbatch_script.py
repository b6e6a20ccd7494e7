"""The batch script of a job or an array, as text. Pure; submitit renders it, and golden files pin it (tests/launch).

    #SBATCH lines      what the shape asks for
    setup              outside any container: the user's own lines, then what only Slurm's commands know
    srun               the same program once per node, perhaps in a container
    teardown           outside again: requeues the job when rank 0 has asked for it, else ends with the ranks' exit code

Nodes of environments are the second component of a heterogeneous job, whose ranks follow those of the first. Asked for
one job, squeue prints both components; Slurm has no arrays of such jobs.

An element of an array is asked for and requeued as 12_3, never by its SLURM_JOB_ID: that of the last element is the
array's own number, by which Slurm means all of them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.launch.shape import JobShape
from rollpacker.runtime.job.allocation import END_TIME_VARIABLE, GRACE_VARIABLE, REQUEUE_FILE_VARIABLE

ENVIRONMENTS_LOG_SUFFIX = "_environments.out"
"""Of the log of a rank that runs environments alone: `<job>_<node><suffix>`. Slurm numbers ranks of a second component
otherwise in names of files."""

_REQUEUE_WAIT_S = 60
"""The script waits for Slurm to end it, which takes a moment; were it to end first, the job would be over."""
_REQUEUE_FOR_S = 150
"""While slurmctld is away: its backup takes over after SlurmctldTimeout, 120 s by default."""
_REQUEUE_RETRY_S = 5
_LASTING_REFUSALS = ("disabled", "denied", "Invalid")
"""Words of Slurm's answers that stay the same, however often it is asked."""
_USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Of a node's own programs; where Slurm's are elsewhere, `cluster.setup` adds them (`module load slurm`)."""

_FIND_GRACE_TIME = r"sed -n 's/.*GraceTime=\([0-9]*\).*/\1/p'"

_ACCOUNTING_S = 10
"""Deadline of sacctmgr, which answers within a second; Slurm itself would wait longer for slurmdbd."""

_MEGABYTES_PER_GB = 1e9 / (1 << 20)
"""Slurm's M is 2^20 bytes."""


def in_log_name(folder: Path) -> str:
    """A folder in the name of a log, where Slurm would take %j for the job's number."""
    return str(folder).replace("%", "%%")


def memory_mb(cluster: ClusterSection) -> int | None:
    """As Slurm counts it; 0 asks for all of a node's, None leaves it to Slurm."""
    given = cluster.memory_gb_per_node
    if not given:
        return None if given is None else 0
    return max(1, int(given * _MEGABYTES_PER_GB))


def gpus_in_gres(gres: str) -> list[str]:
    """The parts of an option `gres` that ask for GPUs; they stand in place of --gpus-per-node, which they overrule."""
    return [part for part in gres.split(",") if re.match(r"\s*(gres[:/])?gpu(?![^:=])", part)]


def sbatch_text(
    shape: JobShape,
    *,
    name: str,
    folder: Path,
    python: Sequence[str],
    of_environments: Sequence[str] = (),
    num_jobs: int = 1,
    array_parallelism: int | None = None,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
) -> str:
    """Render the script of one job, or of an array.

    Args:
        shape: Of each job.
        name: As squeue shows it.
        folder: Absolute and shared; takes the logs, and has the pickled calls.
        python: The command that runs Python on a node, in a container where the shape has one.
        of_environments: The same for nodes of environments, where the shape has them.
        num_jobs: Above 1 it is an array; 1 where the shape has nodes of environments.
        array_parallelism: Jobs of the array that run at the same time; None does not limit them.
        before: Further lines ahead of the ranks; in them `job_word` names the job.
        after: Further lines behind them, unless the job is requeued.
    """
    from submitit.slurm.slurm import _make_sbatch_string

    is_array = num_jobs > 1
    job = job_word(is_array=is_array)
    command = f"-P -u -m submitit.core._submit {shlex.quote(str(folder))}"
    ranks, lines = f"{shlex.join(python)} {command}", []
    if (beside := shape.beside) is not None:
        log = f'{shlex.quote(in_log_name(folder))}/"{job}"_%N{ENVIRONMENTS_LOG_SUFFIX}'
        options = ["--het-group=1", f"--output={log}", *_srun_options(beside.cluster)]
        ranks = " ".join([ranks, ":", *options, shlex.join(of_environments), command])
        lines = ["#SBATCH hetjob", *request_lines(beside.cluster, job_name=name), ""]
    text = _make_sbatch_string(
        command=ranks,
        folder=in_log_name(folder),
        job_name=name,
        stderr_to_stdout=True,
        map_count=num_jobs if is_array else None,
        array_parallelism=array_parallelism or num_jobs,
        setup=[*lines, *_setup(shape.cluster, folder, job), *before],
        teardown=_teardown(shape.cluster, job, after),
        **_requests(shape.cluster),
        additional_parameters=_further_options(shape.cluster),
        srun_args=[*(["--het-group=0"] if beside else []), *_srun_options(shape.cluster)],
    )
    return f"{text}\n"


def request_lines(cluster: ClusterSection, **own: Any) -> list[str]:
    """Lines that ask for a job or a component of one; `own` under submitit's names, None is left to Slurm."""
    from submitit.slurm.slurm import _as_sbatch_flag

    options = {**_requests(cluster), **_further_options(cluster), **own}
    return [_as_sbatch_flag(key, options[key]) for key in sorted(options) if options[key] is not None]


def job_word(*, is_array: bool) -> str:
    """What a script calls its own job."""
    return "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if is_array else "$SLURM_JOB_ID"


def _requests(cluster: ClusterSection) -> dict[str, Any]:
    """What a job or a component of one asks for, under submitit's names; None is left to Slurm."""
    memory = memory_mb(cluster)
    return {
        "partition": cluster.partition,
        "time": cluster.time_limit_min,
        "nodes": cluster.num_nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": cluster.cpus_per_node,
        "gpus_per_node": _gpus_option(cluster),
        "qos": cluster.qos,
        "account": cluster.account,
        "constraint": cluster.constraint,
        "exclusive": cluster.exclusive or None,
        "mem": None if memory is None else f"{memory}M" if memory else "0",
        "wckey": None,
    }


def _srun_options(cluster: ClusterSection) -> list[str]:
    return [
        "--open-mode=append",
        f"--cpus-per-task={cluster.cpus_per_node}",  # srun takes it neither from sbatch nor from the script's lines
        "--kill-on-bad-exit=0",  # rank 0 may still write its checkpoint
        "--wait=0",  # the run may go on without the node of a rank that ended
    ]


def _gpus_option(cluster: ClusterSection) -> str | None:
    """What --gpus-per-node is given; None where a job has none, or asks for them by `gres`."""
    if not cluster.gpus_per_node or gpus_in_gres(cluster.sbatch.get("gres", "")):
        return None
    return f"{cluster.gpu_type}:{cluster.gpus_per_node}" if cluster.gpu_type else str(cluster.gpus_per_node)


def _further_options(cluster: ClusterSection) -> dict[str, str | bool]:
    options: dict[str, str | bool] = {name: value or True for name, value in cluster.sbatch.items()}
    options["requeue" if cluster.requeue else "no-requeue"] = True
    options["signal"] = f"{cluster.signal}@{cluster.signal_lead_s}"
    return options


def job_environment(cluster: ClusterSection, job: str) -> list[str]:
    """Lines that a script of ours begins with: the user's own, and what only Slurm's commands know of a job."""
    end, grace = END_TIME_VARIABLE, GRACE_VARIABLE
    return [
        "export SLURM_EXPORT_ENV=ALL # a job that got no environment (SBATCH_EXPORT=NONE) would pass none to its ranks",
        'unset "${!SRUN_@}" # srun would prefer them, SRUN_EXPORT_ENV to the line above',
        f'export PATH="$PATH:{_USUAL_PATH}" # where it was submitted from, there may be no other command than sbatch',
        "unset SLURM_JWT # the login of sbatch, which would expire in the job; nodes have their own",
        *cluster.setup,
        "set +eu +o pipefail # whatever the setup has set: a failed srun does not end the script",
        *(f"export {name}={shlex.quote(value)}" for name, value in cluster.environment.items()),
        'unset "${!SQUEUE_@}" "${!SCANCEL_@}" # they would choose what squeue shows and scancel ends',
        f'{end}="$(SLURM_TIME_FORMAT=%s squeue --noheader --jobs="{job}" --format=%e | head -n 1)"',
        f'[[ "${end}" =~ ^[0-9]+$ ]] || {end}="" # no limit',
        *_grace_time(grace),
        f"export {end} {grace}",
    ]


def _grace_time(variable: str) -> list[str]:
    """Lines that ask for the partition's grace time, or for that of the QOS where the cluster preempts by QOS."""
    which = 'where name="${SLURM_JOB_QOS:-}" format=GraceTime'
    ask = f"timeout {_ACCOUNTING_S} sacctmgr --noheader --parsable2 show qos {which}"
    days, hours, minutes, seconds = (f"10#${{BASH_REMATCH[{part}]:-0}}" for part in (2, 3, 4, 5))
    return [
        'if [[ "$(scontrol show config)" == *preempt/qos* ]]; then # the partition then says nothing of it',
        f'    {variable}="" # not known, unless accounting answers',
        f'    if [[ "$({ask})" =~ ^(([0-9]+)-)?([0-9]+):([0-9]+):([0-9]+)$ ]]; then',
        f"        {variable}=$(((({days} * 24 + {hours}) * 60 + {minutes}) * 60 + {seconds}))",
        "    fi",
        "else",
        f'    {variable}="$(scontrol show partition "$SLURM_JOB_PARTITION" | {_FIND_GRACE_TIME})"',
        "fi",
    ]


def _setup(cluster: ClusterSection, folder: Path, job: str) -> list[str]:
    lines, file = job_environment(cluster, job), REQUEUE_FILE_VARIABLE
    if not cluster.requeue:
        return [*lines, f"unset {file}"]
    return [
        *lines,
        f'export {file}={shlex.quote(str(folder))}/"$SLURM_JOB_ID.requeue"',
        f'rm --force "${file}"',
    ]


def requeue(job: str, *, command: str = "requeue", checks: Sequence[str] = ()) -> list[str]:
    """Lines that send the script's own job back into the queue; they ask again while slurmctld is away.

    Args:
        job: As Slurm's commands take it.
        command: Of scontrol: requeue or requeuehold.
        checks: Lines ahead of each try, which may `break`.
    """
    is_lasting = " || ".join(f'"$answer" == *{word}*' for word in _LASTING_REFUSALS)
    return [
        f"deadline=$((SECONDS + {_REQUEUE_FOR_S}))",
        "while true; do",
        *(f"    {line}" for line in checks),
        f'    answer="$(scontrol {command} "{job}" 2>&1)" && sleep {_REQUEUE_WAIT_S} && break',
        f"    if [[ {is_lasting} ]] || ((SECONDS >= deadline)); then",
        f'        echo "Slurm has not requeued job {job}: $answer"',
        "        break",
        "    fi",
        f"    sleep {_REQUEUE_RETRY_S}",
        "done",
    ]


def _teardown(cluster: ClusterSection, job: str, after: Sequence[str]) -> list[str]:
    if not cluster.requeue:
        return ["exit_code=$?", *after, 'exit "$exit_code"'] if after else ["exit $?"]
    checks = [
        # a Slurm that does not answer has not cancelled the job
        f'state="$(squeue --noheader --jobs="{job}" --format=%T)" || state=RUNNING',
        f'[[ -e "${REQUEUE_FILE_VARIABLE}" && "${{state%%$\'\\n\'*}}" == RUNNING ]] || break',
    ]
    return ["exit_code=$?", *requeue(job, checks=checks), *after, 'exit "$exit_code"']
