"""Rollout workers in Slurm, as text: the script of their job array, and what a run's own script does for them. Pure.

    the run's script    porter: how many workers the run wishes for ──> the array's throttle; the queue ──> slurm.txt
                        teardown: the array ends with the run, unless its job is requeued
    a worker's script   the program of a worker, as long as the run's job is alive; requeues its element if told so, and
                        held if the run waits in the queue for long, or its Ray cannot join: the porter of the next
                        attempt releases it

Both run outside any container, where Slurm's commands are. The array is submitted after the job whose number it depends
on, so the run's script finds it by a file beside the script, once that exists: the array's number, the run's folder.

Slurm takes a throttle of 0 as none: no worker at all is a held array.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from rollpacker.config.schema import RunConfig
from rollpacker.launch.job_states import NOT_OVER
from rollpacker.launch.sbatch_script import in_log_name, job_environment, request_lines, requeue
from rollpacker.launch.shape import num_elements, workers_shape
from rollpacker.launch.worker import ELEMENT_VARIABLE
from rollpacker.runtime.job.elastic_folder import LEASE_WAIT_S

ARRAY_SUFFIX = ".elastic"
"""Of the file beside a run's script: `<job><suffix>`."""

OWN_OPTIONS_OF_WORKERS = ("dependency", "kill-on-invalid-dep", "time-min")
"""Options of sbatch that are not for `elastic.job.sbatch`, beside those that are not for `cluster.sbatch`."""

_BEGIN_AGAIN_S = 5
"""Before a worker's program is started again: it has waited for a run by then, or has not joined."""

_MAX_FAILED_JOINS = 3
"""On one node: a failure that passes costs no element, and one that lasts gives the node back."""


def array_file(folder: Path, job: str) -> str:
    """Name the file of a job, which may be a word that the shell expands."""
    return f'{shlex.quote(str(folder))}/"{job}{ARRAY_SUFFIX}"'


def porter(folder: Path, job: str, poll_interval_s: int) -> list[str]:
    """Lines for the setup of the run's script."""
    return [
        f"elastic={array_file(folder, job)}",
        "porter() { # the only one of this run that asks Slurm about its workers",
        "    local array place wish last=",
        '    [[ ! -e "$elastic" ]] || rm -f "$(tail -n 1 "$elastic")/wish.json" # the last attempt wished for them',
        f"    while sleep {poll_interval_s}; do",
        '        [[ -e "$elastic" ]] || continue',
        '        { read -r array; read -r place; } < "$elastic"',
        '        [[ -n "$last" ]] || scontrol release "$array" # those that lost patience while this job was queued',
        '        wish="$(tr -cd 0-9 < "$place/wish.json")"',
        '        if [[ "$wish" == 0 && "$last" != 0 ]]; then',
        '            scontrol hold "$array" && last=0 # a throttle of 0 would be none',
        '        elif [[ -n "$wish" && "$wish" != "$last" ]]; then',
        '            [[ "$last" != 0 ]] || scontrol release "$array"',
        '            scontrol update JobId="$array" ArrayTaskThrottle="$wish" && last="$wish"',
        "        fi",
        '        { echo "$array" &&',
        """            squeue --noheader --array --jobs="$array" --format='%i|%T|%r|%S'; } > "$place/.slurm" &&""",
        '            mv "$place/.slurm" "$place/slurm.txt"',
        "    done",
        "}",
        "porter 2> /dev/null &",
        "porter=$!",
    ]


def end_of_array() -> list[str]:
    """Lines for the teardown of the run's script, where its job is not requeued."""
    return ['kill "$porter"', '[[ ! -e "$elastic" ]] || scancel "$(head -n 1 "$elastic")"']


def elastic_script(config: RunConfig, *, job_id: str, name: str, folder: Path, python: Sequence[str]) -> str:
    """Render the script of the workers' array.

    Args:
        config: Of the run.
        job_id: Of the run's job, as Slurm's commands take it.
        name: As squeue shows it.
        folder: Absolute and shared; takes the logs.
        python: The command that runs Python on a node, in a container where the run has one.
    """
    shape, job, elastic = workers_shape(config), config.elastic.job, config.elastic
    assert shape is not None
    assert job is not None
    cluster = shape.cluster
    num_waits = math.ceil(60 * job.patience_min / LEASE_WAIT_S)
    command = shlex.join([*python, "-P", "-u", "-m", "rollpacker.launch.worker", str(config.run.dir.absolute())])
    lines = [
        "#!/bin/bash",
        *request_lines(
            cluster,
            job_name=name,
            array=f"0-{num_elements(job, elastic.max_workers) - 1}%{max(1, elastic.min_workers)}",
            dependency=f"after:{job_id}",
            kill_on_invalid_dep="yes",
            open_mode="append",
            output=f"{in_log_name(folder)}/%A_%a_worker.out",
            time_min=job.least_time_min,
        ),
        "",
        'job="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"',
        *job_environment(cluster, "$job"),
        f'export {ELEMENT_VARIABLE}="$job"',
        "num_waits=0 num_failed_joins=0",
        "while :; do",
        f"    srun --open-mode=append --cpus-per-task={cluster.cpus_per_node} --kill-on-bad-exit=0 {command}",
        "    exit_code=$?",
        '    [[ "$exit_code" =~ ^(10|75|76|77)$ ]] || exit "$exit_code"',
        f'    state="$(squeue --noheader --jobs="{job_id}" --format=%T 2>&1)" && is_told=true || is_told=false',
        '    [[ "$state" == *"Invalid job id"* ]] && is_told=true # Slurm has forgotten it',
        f'    if $is_told && [[ ! "$state" =~ {"|".join(sorted(NOT_OVER))} ]]; then',
        '        scancel "$SLURM_ARRAY_JOB_ID"',
        "        exit 0",
        "    fi",
        '    if [[ "$exit_code" == 10 ]]; then # it may return',
        *(f"        {line}" for line in requeue("$job")),
        "        exit 0",
        "    fi",
        '    case "$exit_code" in',
        "        75) ((++num_waits)) ;; # no run takes it",
        "        76) num_waits=0 num_failed_joins=0 ;; # one had until a moment ago",
        "        77) ((++num_failed_joins)) ;; # its Ray ended before it had joined",
        "    esac",
        f"    if ((num_waits >= {num_waits} || num_failed_joins >= {_MAX_FAILED_JOINS})); then # it frees the node",
        *(f"        {line}" for line in requeue("$job", command="requeuehold")),
        "        exit 0",
        "    fi",
        f"    sleep {_BEGIN_AGAIN_S}",
        "done",
    ]
    return "\n".join([*lines, ""])
