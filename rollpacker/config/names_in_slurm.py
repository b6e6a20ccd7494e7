"""The names in sbatch, and in submitit's launchers, of what `cluster` asks for."""

from __future__ import annotations

OWN_OPTIONS = {
    "account": "cluster.account",
    "constraint": "cluster.constraint",
    "cpus-per-gpu": "cluster.cpus_per_node",
    "cpus-per-task": "cluster.cpus_per_node",
    "exclusive": "cluster.exclusive",
    "gpus": "cluster.gpus_per_node",
    "gpus-per-node": "cluster.gpus_per_node",
    "gpus-per-socket": "cluster.gpus_per_node",
    "gpus-per-task": "cluster.gpus_per_node",
    "mem": "cluster.memory_gb_per_node",
    "mem-per-cpu": "cluster.memory_gb_per_node",
    "mem-per-gpu": "cluster.memory_gb_per_node",
    "no-requeue": "cluster.requeue",
    "nodes": "cluster.num_nodes",
    "partition": "cluster.partition",
    "qos": "cluster.qos",
    "requeue": "cluster.requeue",
    "signal": "cluster.signal",
    "time": "cluster.time_limit_min",
    "tres-per-task": "cluster.gpus_per_node",
    "array": "",
    "chdir": "",
    "error": "",
    "job-name": "",
    "ntasks": "",
    "ntasks-per-gpu": "",
    "ntasks-per-node": "",
    "open-mode": "",
    "output": "",
    "tasks-per-node": "",
    "test-only": "",
    "wait": "",
    "wrap": "",
}
"""Options of sbatch that are not for `cluster.sbatch`, and the key of each; empty for those that cannot be set.
`gres` is for it, also for GPUs: see `launch.sbatch_script.gpus_in_gres`."""

_OTHER_NAMES = {
    "additional-parameters": "cluster.sbatch",
    "cpus": "cluster.cpus_per_node",
    "gres": "cluster.gpus_per_node",
    "mem-gb": "cluster.memory_gb_per_node",
    "queue": "cluster.partition",
    "signal-delay-s": "cluster.signal_lead_s",
    "timeout-min": "cluster.time_limit_min",
    "walltime": "cluster.time_limit_min",
}
"""Names in submitit and elsewhere."""

_FURTHER_OPTIONS = ("comment", "exclude", "mail-type", "mail-user", "nodelist", "reservation")
"""Some options of sbatch that have no key of their own, and are for `cluster.sbatch`."""


def key_for_job(name: str) -> str | None:
    """Our key for a name in sbatch or submitit; empty for what RollPacker sets itself, None for other names."""
    option = name.replace("_", "-")
    if option in _FURTHER_OPTIONS:
        return key_of_option(name)
    return _OTHER_NAMES.get(option, OWN_OPTIONS.get(option))


def key_of_option(name: str) -> str:
    """The key of an option of sbatch in `cluster.sbatch`."""
    return f"cluster.sbatch.{name.replace('_', '-')}"
