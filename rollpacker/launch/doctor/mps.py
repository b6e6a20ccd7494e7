"""CUDA's Multi-Process Service, by which a judge works beside an engine on the same GPU instead of in turns with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.launch.doctor.findings import Finding, fine, warning
from rollpacker.runtime.machine import has_mps_daemon

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_mps(environment: Mapping[str, str]) -> Finding:
    """Ask whether its daemon answers on this node."""
    if has_mps_daemon(environment):
        return fine("MPS", "its daemon answers, so that judges and engines may share a GPU's processors")
    return warning(
        "MPS",
        "placement.judge is set, and no daemon answers: a judge and an engine on the same GPU take time slices in turn",
        "Start `nvidia-cuda-mps-control -d` on every node, such as in cluster.setup, or ask those who run the cluster.",
    )
