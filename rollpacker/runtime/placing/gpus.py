"""The GPUs that a run will have: those of its job, of Slurm's allocation, or of this machine."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rollpacker.config.gpu_map import GpuMap
from rollpacker.config.sections.base import LARGEST
from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.engines.vllm.installed import is_vllm_for_gpus_installed
from rollpacker.runtime.job.allocation import current_allocation
from rollpacker.runtime.placing.host import gpu_memory, visible_gpus

USABLE_SHARE = 0.9
"""Of a GPU's memory by the estimate; the rest is for CUDA, NCCL and a sleeping engine."""
_USUAL_BYTES = 80e9
"""Assumed where the memory of a GPU is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The GPUs of a run, and what can use them."""

    num_nodes: int = 1
    per_node: int
    num_bytes: float | None
    """Memory of each; None where it is unknown."""
    has_vllm: bool
    """Whether vLLM is installed where the run will be."""

    @property
    def number(self) -> int:
        return self.num_nodes * self.per_node

    @property
    def usual_bytes(self) -> float:
        """Memory of each, or what most have where it is unknown."""
        return self.num_bytes or _USUAL_BYTES

    def places(self, named: GpuMap) -> set[tuple[int, int]]:
        """Those that a map names, each with its node."""
        return named.places(self.num_nodes, self.per_node)

    def counts(self, named: GpuMap) -> list[int]:
        """How many of each node a map names, of nodes with any; 0 for a map that names none."""
        counts = Counter(node for node, _ in self.places(named))
        return list(counts.values()) or [0]

    def __str__(self) -> str:
        kind = "GPU" if self.num_bytes is None else f"GPU of {self.num_bytes / 1e9:.0f} GB"
        number = f"1 {kind}" if self.per_node == 1 else f"{self.per_node} {kind.replace('GPU', 'GPUs', 1)}"
        return number if self.num_nodes == 1 else f"{self.num_nodes} nodes of {number}"


def gpus_of_run(tree: Mapping[str, Any], *, is_job: bool) -> Gpus:
    """Those that its job will ask for, that Slurm gave, or this machine has; of each node at most backend.num_gpus."""
    given = (tree.get("backend") or {}).get("num_gpus")
    most = given if type(given) is int else LARGEST
    if is_job and tree.get("cluster") is not None:
        try:
            cluster = ClusterSection.model_validate(tree["cluster"])
        except ValidationError:
            return Gpus(per_node=0, num_bytes=None, has_vllm=False)  # the schema reports it
        return Gpus(
            num_nodes=cluster.num_nodes or 1,
            per_node=min(cluster.gpus_per_node, most),
            num_bytes=None if cluster.gpu_memory_gb is None else cluster.gpu_memory_gb * 1e9,
            has_vllm=cluster.container.image is not None or is_vllm_for_gpus_installed(),
        )
    allocation = current_allocation(os.environ)
    num_gpus = visible_gpus() if allocation is None else len(allocation.gpus)
    return Gpus(
        num_nodes=1 if allocation is None else allocation.num_nodes,
        per_node=min(num_gpus, most),
        num_bytes=gpu_memory() if num_gpus else None,
        has_vllm=is_vllm_for_gpus_installed(),
    )
