"""What one Slurm job asks for, derived from its run's configuration. Pure: looks at no cluster and no file.

Jobs of equal shapes go into one array, so a shape holds nothing that only one run has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.base import LARGEST
from rollpacker.config.sections.cluster import ClusterSection, EnvironmentNodesSection
from rollpacker.config.sections.elastic_job import ElasticJobSection
from rollpacker.core.errors import ConfigError
from rollpacker.runtime.placing.actors import ClusterSize, have_engines_gpus, planned_actors
from rollpacker.runtime.placing.capacity import Capacity, check_capacity
from rollpacker.runtime.placing.planning import placed_actors

_NO_NODES = EnvironmentNodesSection()

_WORKERS: Final = "elastic.job"
_OF_WORKERS: Final = ("partition", "qos", "account", "constraint", "gpu_type", "time_limit_min")
"""Keys of the section that `cluster` has, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShape:
    """A job's nodes, what it takes of each, and the rules that it lives by."""

    num_nodes: int
    cluster: ClusterSection
    """Everything else; `num_nodes` in it is what the user gave, and counts no more."""
    section: str = "cluster"
    """Of the configuration, where a job that asks for something else is configured."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """The configuration's key for each of the cluster's that is not `cluster`'s own."""

    def __post_init__(self) -> None:
        """Forget how the number of nodes was found, so that shapes compare by what Slurm is asked for."""
        object.__setattr__(self, "cluster", self.cluster.model_copy(update={"num_nodes": self.num_nodes}))

    def key(self, name: str) -> str:
        """Where the configuration says what the job asks for: the key of `cluster.<name>`, or what stands for it."""
        return self.keys.get(name, f"cluster.{name}")

    @property
    def beside(self) -> JobShape | None:
        """The job's second component: nodes of environments; None where it has none."""
        nodes = self.cluster.environment_nodes
        if not nodes.num_nodes:
            return None
        own = {key: value for key in ("partition", "account", "qos") if (value := getattr(nodes, key)) is not None}
        sizes = {key: getattr(nodes, key) for key in ("cpus_per_node", "memory_gb_per_node", "constraint", "sbatch")}
        nothing = {"gpus_per_node": 0, "gpu_type": None, "exclusive": False, "environment_nodes": _NO_NODES}
        cluster, section = self.cluster.model_copy(update=own | sizes | nothing), "cluster.environment_nodes"
        keys = {**self.keys, **{key: f"{section}.{key}" for key in own | sizes}}
        return JobShape(num_nodes=nodes.num_nodes, cluster=cluster, section=section, keys=keys)


def job_shape(config: RunConfig) -> JobShape:
    """Derive the shape of a run that has a `cluster`.

    Raises:
        ConfigError: The actors find no room on such nodes.
    """
    cluster = own_cluster(config)
    assert cluster is not None
    if config.backend.name == "sim":  # one process, which needs no GPU and no other node
        return JobShape(num_nodes=cluster.num_nodes or 1, cluster=cluster)
    return JobShape(num_nodes=cluster.num_nodes or _fewest_nodes(config, cluster), cluster=cluster)


def own_cluster(config: RunConfig) -> ClusterSection | None:
    """The cluster with nodes of environments only for a run that has environments."""
    if config.cluster is None or config.num_environment_nodes:
        return config.cluster
    return config.cluster.model_copy(update={"environment_nodes": _NO_NODES})


def workers_shape(config: RunConfig) -> JobShape | None:
    """Derive the shape of the job of each rollout worker; None where a run takes none of Slurm's."""
    cluster, job, elastic = config.cluster, config.elastic.job, config.elastic
    if cluster is None or job is None or not elastic.is_on or config.backend.name != "ray":
        return None
    own = {key: value for key in _OF_WORKERS if (value := getattr(job, key)) is not None}
    num_gpus = elastic.engines_per_worker * (elastic.tensor_parallel or config.engine.tensor_parallel)
    sizes = {
        "gpus_per_node": num_gpus if have_engines_gpus(config) else 0,
        "cpus_per_node": job.cpus_per_worker,
        "memory_gb_per_node": job.memory_gb_per_worker,
        "sbatch": job.sbatch,
    }
    keys = {key: f"{_WORKERS}.{key}" for key in own} | {
        "gpus_per_node": "elastic.engines_per_worker x elastic.tensor_parallel",
        "cpus_per_node": f"{_WORKERS}.cpus_per_worker",
        "memory_gb_per_node": f"{_WORKERS}.memory_gb_per_worker",
    }
    of_every_worker = {"exclusive": False, "requeue": True, "environment_nodes": _NO_NODES}
    cluster = cluster.model_copy(update=own | sizes | of_every_worker)
    return JobShape(num_nodes=1, cluster=cluster, section=_WORKERS, keys=keys)


def num_elements(job: ElasticJobSection, max_workers: int) -> int:
    """How many elements the array of a run's rollout workers has."""
    return job.num_elements or 4 * max_workers


def ray_size(config: RunConfig) -> ClusterSize:
    """The size of the Ray cluster in the job; raises as `job_shape` does."""
    cluster = config.cluster
    assert cluster is not None
    check_capacity(config, _capacity(cluster))
    shape = job_shape(config)
    size = ClusterSize(
        num_nodes=shape.num_nodes,
        num_cpus=_cpus(config, shape.cluster),
        num_gpus=_gpus(config, shape.cluster),
    )
    placed_actors(config, size)
    return size


def _capacity(cluster: ClusterSection) -> Capacity:
    """Of the job's nodes; where their number follows from the run, there are as many as it fills."""
    memory_gb = cluster.memory_gb_per_node
    return Capacity(
        where="the job",
        num_nodes=cluster.num_nodes or LARGEST,
        num_cores=cluster.cpus_per_node,
        memory_bytes=int(memory_gb * 1e9) if memory_gb else None,
    )


def _fewest_nodes(config: RunConfig, cluster: ClusterSection) -> int:
    """As many nodes as the GPUs fill; more only where whole actors, or those of the placement, do not fill them."""
    actors = planned_actors(config)
    num_gpus = {
        role: sum(actor.resources.num_gpus for actor in actors if actor.role == role) for role in ("engine", "trainer")
    }
    is_shared = config.placement.maps is not None
    num_needed = max(num_gpus.values()) if is_shared else sum(num_gpus.values())
    num_cpus, per_node = _cpus(config, cluster), _gpus(config, cluster)
    if not num_needed or not per_node:
        return 1
    fewest = math.ceil(num_needed / per_node)
    for num_nodes in range(fewest, max(fewest, len(actors)) + 1):
        try:
            placed_actors(config, ClusterSize(num_nodes=num_nodes, num_cpus=num_cpus, num_gpus=per_node))
        except ConfigError:
            continue
        return num_nodes
    return fewest  # placing the actors then raises the reason


def _cpus(config: RunConfig, cluster: ClusterSection) -> int:
    return cluster.cpus_per_node if config.backend.num_cpus is None else config.backend.num_cpus


def _gpus(config: RunConfig, cluster: ClusterSection) -> int:
    return cluster.gpus_per_node if config.backend.num_gpus is None else config.backend.num_gpus
