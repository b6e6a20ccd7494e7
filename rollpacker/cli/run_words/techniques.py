"""What a system does beside batching, in words, and which of it has an effect in a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rollpacker.engines.vllm.installed import ARCTIC, drafter_of
from rollpacker.protocols.backend import ModelledCluster
from rollpacker.runtime.placing.fleets import degrees_of
from rollpacker.runtime.placing.planning import placed_actors
from rollpacker.runtime.placing.topology import engine_gpus, trainer_parts
from rollpacker.runtime.rollout.scheduling import NOTHING_TO_LEND, can_stream

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.runtime.placing.actors import ClusterSize


_OWN_GPUS = "groups train as they are accepted: the trainer shares no GPU"
"""What streaming does there."""


def technique_words(config: RunConfig, cluster: ClusterSize | ModelledCluster) -> str:
    """What the system does beside batching, and which of it has an effect in this run."""
    system, is_modelled = config.system, config.backend.name == "sim"
    lines = []
    if system.reward == "scheduled":
        has_programs = is_modelled or "sandbox" in config.reward.names
        lines.append(
            "programs that take much longer than correct ones are stopped"
            if has_programs
            else "no limits to adapt: no reward runs programs (reward=sandbox does)"
        )
    if system.planner:
        lines.append(_planner(config, cluster))
    if system.speculative_decoding:
        lines.append(draft_words(config))
    if system.stream:
        lines.append(_stream(config, cluster))
    return "\n".join(lines) or "none"


def program_words(config: RunConfig) -> str:
    """How responses that are programs are run."""
    sandbox = config.reward.sandbox
    isolation = "isolated by bubblewrap" if sandbox.isolation == "bubblewrap" else "NOT isolated (isolation=rlimits)"
    number = (
        "as many at a time as there are cores" if sandbox.num_workers is None else f"{sandbox.num_workers} at a time"
    )
    return f"{isolation}, {number}, each with {sandbox.memory_mb:,} MB and {sandbox.processes} processes"


def draft_words(config: RunConfig) -> str:
    """How draft tokens come, as one line."""
    vllm = config.engine.vllm
    if config.backend.name == "ray" and config.engine.name == "vllm":
        largest = f"batches of up to {vllm.draft_max_sequences}" if vllm.draft_max_sequences else "all batches"
        method = drafter_of(vllm)
        better = "" if vllm.drafter or method == "suffix" else f" (with {ARCTIC} installed, by suffix)"
        return f"vLLM verifies up to {vllm.draft_length} draft tokens by {method}{better} per sequence, in {largest}"
    acceptance = f", accepted with {config.workload.draft_acceptance:g}" if config.workload else ""
    return f"decode passes verify draft tokens{acceptance}: as many as pay at each batch size, or none"


def _planner(config: RunConfig, cluster: ClusterSize | ModelledCluster) -> str:
    """The degrees among which the planner chooses, and what a change does to the engines."""
    configured = config.engine.tensor_parallel
    degrees = cluster.engine_gpus if isinstance(cluster, ModelledCluster) else degrees_of(config)
    others = sorted(set(degrees) - {configured})
    if not others:
        is_named = bool(config.engine.degrees) or not isinstance(cluster, ModelledCluster)
        why = "engine.degrees names no other" if is_named else "no other degree fits"
        return f"no planning: engines keep tensor parallelism {configured}, since {why}"
    how = {"sleep": "asleep until then", "restart": "restarted at every change"}[config.engine.switch]
    named = " and ".join(map(str, others))
    text = f"rounds that preempt move to engines of more GPUs: from tensor parallelism {configured} to {named}, {how}"
    if isinstance(cluster, ModelledCluster):
        return f"{text}; the model's costs are the first estimate"
    profile = config.engine.profile
    return f"{text}; " + (f"{profile} is the first estimate" if profile else "no first estimate (engine.profile)")


def _stream(config: RunConfig, cluster: ClusterSize | ModelledCluster) -> str:
    """What streaming does in this run."""
    share = config.system.stream_at
    when = "before the rollout ends" if share is None else f"when {share:.0%} of the requests are finished"
    needed = 1 / math.prod(config.system.largest_factors)
    if share is not None and share > needed:
        when += f", if the round lasts so long (a short one needs {needed:.0%})"
    lending = f"up to half of the engines are lent to the trainer {when}: groups train on their GPUs"
    if isinstance(cluster, ModelledCluster):
        parts, sets = cluster.trainer_parts, list(cluster.engine_gpus.values())
    else:
        placed = placed_actors(config, cluster)
        parts = trainer_parts(config, placed, cluster.num_gpus)
        sets = [engine_gpus(placed, cluster.num_gpus, degree) for degree in degrees_of(config)]
    if not any(can_stream(config, parts, engines) for engines in sets):
        return f"nothing streams to the trainer: {NOTHING_TO_LEND}"
    return lending if parts else _OWN_GPUS
