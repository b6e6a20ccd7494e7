"""The GPUs of this node: whether a process sees those that Slurm gave, and nobody else computes on them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from rollpacker.launch.doctor.findings import Finding, fine, problem, warning
from rollpacker.launch.programs import run_program

_DEADLINE_S = 30.0
"""nvidia-smi of a node whose driver was idle takes several seconds for eight GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """What this process has been given, and what the driver says."""

    visible: tuple[str, ...] | None
    """As CUDA_VISIBLE_DEVICES names them; None: it is not set."""
    num_given: int | None
    """By Slurm on this node; None: it says nothing."""
    names: tuple[str, ...] | None
    """As nvidia-smi lists them; None: there is no nvidia-smi."""
    complaint: str
    """Why nvidia-smi failed; empty when it did not."""
    num_strangers: int
    """Processes that compute on them already."""


def gather_gpus(environment: Mapping[str, str]) -> Gpus:
    """Look at this node."""
    visible, given = environment.get("CUDA_VISIBLE_DEVICES"), environment.get("SLURM_GPUS_ON_NODE", "")
    names, complaint = _ask("--query-gpu=name")
    computing, _ = _ask("--query-compute-apps=pid") if names else ((), "")
    return Gpus(
        visible=None if visible is None else tuple(gpu for gpu in visible.split(",") if gpu),
        num_given=int(given) if given.isdecimal() else None,
        names=names,
        complaint=complaint,
        num_strangers=len(computing or ()),
    )


def check_gpus(gpus: Gpus, num_needed: int) -> Finding:
    """Judge them for a node that needs so many."""
    num_visible = len(gpus.names or ()) if gpus.visible is None else len(gpus.visible)
    if gpus.num_given and gpus.visible is None:
        return problem(
            "GPUs",
            f"Slurm gave {gpus.num_given} on this node, and CUDA_VISIBLE_DEVICES is not set",
            "Ask for device files in the cluster's gres.conf (File=/dev/nvidia[0-7], or AutoDetect=nvml).",
        )
    if gpus.num_given is not None and num_visible < gpus.num_given:
        return problem(
            "GPUs",
            f"Slurm gave {gpus.num_given} on this node, and CUDA_VISIBLE_DEVICES names {num_visible}",
            "Something changed CUDA_VISIBLE_DEVICES: look at cluster.environment, cluster.setup and ~/.bashrc.",
        )
    if num_visible < num_needed:
        return problem(
            "GPUs",
            f"{num_visible} on this node, and cluster.gpus_per_node={num_needed}",
            f"Ask Slurm for them: srun --gpus-per-node={num_needed}",
        )
    if not num_visible:
        return fine("GPUs", "none here, and none are asked for")
    return _check_driver(gpus, num_visible)


def _check_driver(gpus: Gpus, num_visible: int) -> Finding:
    if gpus.names is None:
        return warning(
            "GPUs",
            f"{num_visible} given, and there is no nvidia-smi to see them with",
            "In a container, run the image with --nv; on a node, ask for NVIDIA's driver.",
        )
    if gpus.complaint or len(gpus.names) < num_visible:
        said = gpus.complaint or f"nvidia-smi lists {len(gpus.names)}"
        return problem(
            "GPUs",
            f"{num_visible} given, and the driver says: {said}",
            "Leave this node out (cluster.sbatch={exclude: NODE}), and tell those who run the cluster.",
        )
    kinds = ", ".join(sorted(set(gpus.names)))
    if gpus.num_strangers:
        return warning(
            "GPUs",
            f"{num_visible} ({kinds}), and {gpus.num_strangers} processes compute on this node's already",
            "`nvidia-smi` says whose they are; an engine's KV cache takes what is free.",
        )
    return fine("GPUs", f"{num_visible} ({kinds})")


def _ask(query: str) -> tuple[tuple[str, ...] | None, str]:
    """Return the rows of nvidia-smi, and its complaint when it fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None, ""
    outcome = run_program([program, query, "--format=csv,noheader"], deadline_s=_DEADLINE_S)
    rows = tuple(line.strip() for line in outcome.output.splitlines() if line.strip())
    return (rows, "") if outcome.is_success else ((), " ".join(rows) or outcome.complaint)
