"""Who foresees a run, as its backend decides: here alone the command line tells a real run from a modelled one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.protocols.backend import ModelledCluster, RunFacts
    from rollpacker.runtime.placing.actors import ClusterSize


def run_facts_of(config: RunConfig) -> RunFacts[ClusterSize | ModelledCluster]:
    """Choose the run_facts of a run; loads the room of its backend only."""
    match config.backend.name:
        case "ray":
            from rollpacker.runtime.run.preflight import RealRunFacts

            return RealRunFacts(config)
        case "sim":
            from rollpacker.sim.run_facts import ModelledRunFacts

            return ModelledRunFacts(config)
