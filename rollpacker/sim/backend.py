"""The modelled backend: workers that take computed time, on the virtual-time loop that the pipeline runs on.

Invariant: it starts no process, no thread and no timer of its own, so a modelled run leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from rollpacker.core.ids import EngineId
from rollpacker.protocols.backend import Surroundings, Workers
from rollpacker.sim.engine import ModelledEngine
from rollpacker.sim.plan import plan_cluster
from rollpacker.sim.reward import ModelledReward
from rollpacker.sim.trainer import ModelledTrainer
from rollpacker.sim.workload import Workload

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig


class ModelledBackend:
    """Implements `rollpacker.protocols.backend.Backend`."""

    is_modelled = True

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    @asynccontextmanager
    async def open(self, surroundings: Surroundings) -> AsyncIterator[Workers]:
        """Read the workload and make the workers."""
        config = self._config
        surroundings.stage("modelling the cluster")
        workload = Workload(config)
        plan = plan_cluster(config, needs_judge=workload.needs_judge)
        surroundings.note(
            f"MODELLED on {plan.num_all_gpus} GPUs ({plan.hardware.name}): times are computed, not measured."
        )
        if workload.num_dropped_prompts:
            limit = config.data.max_prompt_tokens
            surroundings.note(
                f"Dropped {workload.num_dropped_prompts} prompts of more than data.max_prompt_tokens={limit} tokens."
            )
        names = [EngineId(f"engine-{index}") for index in range(config.engine.num_engines)]
        engines = {
            name: ModelledEngine(
                engine=name,
                costs=plan.engine,
                max_num_seqs=config.engine.max_num_seqs,
                weight_transfer_s=plan.weight_transfer_s,
                length_of=workload.length_of,
            )
            for name in names
        }
        reward = ModelledReward(config.reward, judge=plan.judge, judgement_of=workload.judgement_of)
        yield Workers(prompts=workload.prompts, engines=engines, trainer=ModelledTrainer(plan.trainer), reward=reward)
        for engine in engines.values():
            await engine.close()
        await reward.close()
