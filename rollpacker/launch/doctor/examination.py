"""Which checks are made where, and in which order: what holds everywhere first, what only a node shows last.

    on a login node            Slurm, Python, image, files, environment variables
    inside an allocation       the same, and its nodes: files, clocks, limits, GPUs, code sandbox, network
    without Slurm or cluster   this machine as the one node: limits, GPUs, code sandbox, network

The limits and GPUs of a login node are not checked: those of a compute node differ.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.core.errors import ConfigError, WorldError
from rollpacker.launch.doctor.files import check_files, try_files
from rollpacker.launch.doctor.findings import Finding, fine, problem_of
from rollpacker.launch.doctor.job_environment import (
    RAY_TOKEN,
    check_image,
    check_inheritance,
    check_software,
    gather_software,
)
from rollpacker.launch.doctor.node import (
    check_code_sandbox,
    check_gpus,
    check_limits,
    check_mps,
    check_network,
    gather_gpus,
    gather_limits,
)
from rollpacker.launch.doctor.nodes import ask_nodes, check_nodes
from rollpacker.launch.doctor.preemption import read_qos
from rollpacker.launch.doctor.slurm import check_slurm
from rollpacker.launch.doctor.worker_partition import check_workers
from rollpacker.launch.shape import JobShape, own_cluster, workers_shape
from rollpacker.launch.site import read_site
from rollpacker.launch.slurm_commands import has_slurm
from rollpacker.launch.submission_environment import as_submitted
from rollpacker.runtime.run.folder_checks import check_run_dir


def examine(config: RunConfig, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Make all checks that apply here. No check depends on the result of an earlier one."""
    cluster, job_id = config.cluster, environment.get("SLURM_JOB_ID")
    must_be_shared = cluster is not None and not cluster.has_shared_files
    has_image = cluster is not None and cluster.container.image is not None
    yield check_place(environment, has_cluster=cluster is not None)
    if cluster is not None or has_slurm(environment):
        yield from _check_slurm(config, environment)
    is_seen_by_nodes = has_image or job_id is not None  # in a job, every node is checked
    yield from check_software(gather_software(), must_be_shared=must_be_shared and not is_seen_by_nodes)
    if cluster is not None:
        yield from check_image(cluster)
    yield from _check_run_dir(config, must_be_shared=must_be_shared)
    yield from check_inheritance(environment, has_ray_token=(Path.home() / RAY_TOKEN).is_file())
    if job_id is not None or cluster is None:
        yield from _check_here(config, environment)


def check_place(environment: Mapping[str, str], *, has_cluster: bool) -> Finding:
    """Report where this runs, which decides what is checked."""
    host = socket.gethostname()
    if "SLURM_JOB_ID" in environment:
        nodes = environment.get("SLURM_JOB_NODELIST", "unknown nodes")
        return fine("where", f"job {environment['SLURM_JOB_ID']} on {nodes}, checked from {host}")
    if has_cluster:
        return fine("where", f"{host}, outside any job; `srun rollpacker doctor ...` also checks a node")
    return fine("where", f"{host}, outside any cluster; with cluster=..., what a job would find is checked too")


def _check_slurm(config: RunConfig, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check the cluster, and the partition of the workers that the run submits."""
    shape = None
    if (cluster := own_cluster(config)) is not None:
        shape = _submitted_from_here(JobShape(num_nodes=cluster.num_nodes or 1, cluster=cluster), environment)
    try:
        site = read_site()
    except WorldError as error:
        found = problem_of("Slurm", error)
        yield found if shape is not None else replace(found, level="warning")  # a run outside Slurm does without
    else:
        qos = read_qos(site)
        yield from check_slurm(site, shape, qos, environment.get("SLURM_JOB_QOS"))
        if (workers := workers_shape(config)) is not None:
            yield from check_workers(site, _submitted_from_here(workers, environment), config.elastic, qos)


def _submitted_from_here(shape: JobShape, environment: Mapping[str, str]) -> JobShape:
    """What sbatch would submit from here; inside a job, SBATCH_* do not count, and the partition is that of the job."""
    if "SLURM_JOB_ID" not in environment:
        return as_submitted(shape, environment)
    partition = shape.cluster.partition or environment.get("SLURM_JOB_PARTITION")
    return replace(shape, cluster=shape.cluster.model_copy(update={"partition": partition}))


def _check_run_dir(config: RunConfig, *, must_be_shared: bool) -> Iterator[Finding]:
    try:
        check_run_dir(config)
    except ConfigError as error:
        yield problem_of("run.dir", error)
    else:
        yield from check_files(try_files(config.run.dir), must_be_shared=must_be_shared)


def _check_here(config: RunConfig, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check this node, or every node of the allocation."""
    num_nodes = int(environment.get("SLURM_JOB_NUM_NODES", "1"))
    cluster = config.cluster or ClusterSection(name="this machine")
    store_mb, num_gpus = config.backend.object_store_mb, cluster.gpus_per_node
    if "SLURM_JOB_ID" in environment:
        seen = ask_nodes(config.run.dir, num_nodes)
        yield from check_nodes(seen, object_store_mb=store_mb, gpus_per_node=num_gpus)
    else:
        yield from check_limits(gather_limits(environment), store_mb)
        yield check_gpus(gather_gpus(environment), num_gpus)
    yield check_code_sandbox(config.reward)
    if config.placement.judge is not None:
        yield check_mps(environment)
    node = environment.get("SLURMD_NODENAME") or socket.gethostname()
    yield from check_network(node, cluster, environment, is_alone=num_nodes == 1)
