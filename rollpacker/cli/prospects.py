"""Who foresees a run, as its backend decides: here alone the command line tells a real run from a modelled one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.protocols.backend import ModelledCluster, Prospect
    from rollpacker.runtime.placing.actors import ClusterSize


def prospect_of(config: RunConfig) -> Prospect[ClusterSize | ModelledCluster]:
    """Choose the prospect of a run; loads the room of its backend only."""
    match config.backend.name:
        case "ray":
            from rollpacker.runtime.run.preflight import RealProspect

            return RealProspect(config)
        case "sim":
            from rollpacker.sim.prospect import ModelledProspect

            return ModelledProspect(config)
