"""What a run starts, in words: modelled workers, or actors and the job that has them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rollpacker.config.chosen_options import changed_hardware
from rollpacker.config.schema import RunConfig
from rollpacker.protocols.backend import ModelledCluster
from rollpacker.report.words import plural
from rollpacker.runtime.placing.actors import ClusterSize, planned_actors
from rollpacker.runtime.placing.host import usable_cpus, visible_gpus
from rollpacker.runtime.placing.planning import placed_actors
from rollpacker.trainers.replicas import whole_up_to

if TYPE_CHECKING:
    from rollpacker.launch.shape import JobShape


def actor_words(config: RunConfig, cluster: ClusterSize | ModelledCluster, *, is_job: bool) -> str:
    """Say it in one line or more; `is_job` of a run that Slurm gets its nodes from."""
    if isinstance(cluster, ModelledCluster):
        return _modelled_actors(config, cluster)
    return _real_actors(config, cluster, is_job=is_job)


def _modelled_actors(config: RunConfig, cluster: ModelledCluster) -> str:
    tensor_parallel, own = config.engine.tensor_parallel, cluster.num_trainer_gpus
    where = "takes turns on the same GPUs" if own is None else f"has {plural(own, 'GPU')} of its own"
    return (
        f"MODELLED on {cluster.num_gpus} GPUs ({cluster.hardware}), in virtual time: no tokens, no training\n"
        f"{_basis(config)}"
        f"{plural(cluster.num_engines, 'engine')} of {plural(tensor_parallel, 'GPU')}, "
        f"each with a KV cache of {cluster.kv_tokens_per_engine:,} tokens\n"
        f"the trainer {where}: {plural(cluster.num_replicas, 'replica')} of "
        f"{config.trainer.tensor_parallel} x {config.trainer.pipeline_parallel} x {config.trainer.context_parallel} "
        f"(tensor x pipeline x context parallel){_split_words(config)}\n"
        "whether training fits into the memory of a GPU is not checked"
    )


def _basis(config: RunConfig) -> str:
    """A line where times follow common figures, or figures of other GPUs."""
    hardware = config.hardware
    if hardware is None or hardware.profile:
        return ""
    if hardware.fitted_to:
        fitted, changed = changed_hardware(hardware)
        text = f"its overheads were fitted for hardware={fitted}, which has other values of {', '.join(changed)}\n"
        return text if changed else ""
    return "its overheads are not fitted: compare neither times nor speedups with those of fitted hardware (h800)\n"


def _split_words(config: RunConfig) -> str:
    """Which sequences context-parallel ranks split, where they do not split all."""
    if not (longest := whole_up_to(config)):
        return ""
    number = config.trainer.context_parallel
    return f"\na sequence of up to {longest:,} tokens stays whole on one of {number} context-parallel ranks"


def job_words(config: RunConfig) -> str:
    """What Slurm is asked for."""
    from rollpacker.launch.shape import job_shape

    shape = job_shape(config)
    cluster = shape.cluster
    lines = [
        _component_words(shape),
        f"in {cluster.partition or 'the default partition'}, for "
        + ("the partition's default time" if cluster.time_limit_min is None else f"{cluster.time_limit_min} minutes")
        + ("; requeued when it is preempted or reaches its limit" if cluster.requeue else "; not requeued"),
    ]
    if (beside := shape.beside) is not None:
        where = beside.cluster.partition or "the default partition"
        lines.append(f"beside them for environments {_component_words(beside)}, in {where}")
    if cluster.container.image is not None:
        lines.append(f"every rank in {cluster.container.image}, by {cluster.container.runtime}")
    return "\n".join(lines)


def _component_words(shape: JobShape) -> str:
    """Nodes of one kind, and what is taken of each."""
    cluster = shape.cluster
    memory = cluster.memory_gb_per_node
    of_memory = "Slurm's default of memory" if memory is None else f"{memory:g} GB" if memory else "all memory"
    node = _resources(cluster.cpus_per_node, cluster.gpus_per_node)
    return f"{plural(shape.num_nodes, 'node')} x {node} and {of_memory}{', exclusively' * cluster.exclusive}"


def _real_actors(config: RunConfig, cluster: ClusterSize, *, is_job: bool) -> str:
    actors = planned_actors(config)
    kinds = Counter((actor.role, actor.resources.num_cpus, actor.resources.num_gpus) for actor in actors)
    listed = ", ".join(
        f"{count} {role}{'s' if count > 1 else ''} x {_resources(cpus, gpus)}"
        for (role, cpus, gpus), count in kinds.items()
    )
    listed += _split_words(config)
    num_gpus = sum(actor.resources.num_gpus for actor in actors)
    if config.placement.maps is not None:  # several actors have the same ones
        num_gpus = len({(actor.node, gpu) for actor in placed_actors(config, cluster) for gpu in actor.gpus})
    reserved = _resources(sum(actor.resources.num_cpus for actor in actors), num_gpus)
    offered = _resources(cluster.num_cpus, cluster.num_gpus)
    if is_job:
        return f"{listed}\nreserving {reserved} of {plural(cluster.num_nodes, 'node')} x {offered} in Ray"
    here = _resources(usable_cpus(), visible_gpus())
    text = f"{listed}\nreserving {reserved} of {offered} in Ray; this machine has {here}"
    return f"{text}, which the actors share" if cluster.num_cpus > usable_cpus() else text


def _resources(num_cpus: float, num_gpus: float) -> str:
    cpus = f"{num_cpus:g} CPU" if num_cpus == 1 else f"{num_cpus:g} CPUs"
    return cpus if not num_gpus else f"{cpus} + {num_gpus:g} GPU" + ("" if num_gpus == 1 else "s")
