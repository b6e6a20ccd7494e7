"""The facts of a run by its backend: the one place where the command line distinguishes real from modelled runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.protocols.backend import ModelledCluster, RunFacts
    from rollpacker.runtime.placing.actors import ClusterSize


def run_facts_of(config: RunConfig) -> RunFacts[ClusterSize | ModelledCluster]:
    """Choose by the backend, and load only its modules."""
    match config.backend.name:
        case "ray":
            from rollpacker.runtime.run.preflight import RealRunFacts

            return RealRunFacts(config)
        case "sim":
            from rollpacker.sim.run_facts import ModelledRunFacts

            return ModelledRunFacts(config)
