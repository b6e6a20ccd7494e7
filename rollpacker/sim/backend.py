"""The modelled backend: workers that take computed time, on the virtual-time loop that the pipeline runs on.

Invariant: it starts no process, no thread and no timer of its own, so a modelled run leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from rollpacker.core.ids import EngineId
from rollpacker.protocols.backend import Fleet, Surroundings, Workers
from rollpacker.protocols.engine import Engine
from rollpacker.protocols.reward import RewardService
from rollpacker.sim.engine import ModelledEngine
from rollpacker.sim.plan import ClusterPlan, plan_cluster
from rollpacker.sim.profile_calls import CalledEngine, CalledReward
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
        if plan.profile:
            surroundings.note(f"They follow a profile of {plan.profile.hardware}. {plan.profile.describe_fit()}")
        if workload.num_dropped_prompts:
            limit = config.data.max_prompt_tokens
            surroundings.note(
                f"Dropped {workload.num_dropped_prompts} prompts of more than data.max_prompt_tokens={limit} tokens."
            )
        fleets = {degree: self._fleet(plan, degree, workload) for degree in plan.engines}
        reward: RewardService = ModelledReward(
            config.reward, num_cores=plan.num_reward_cores, judge=plan.judge, judgement_of=workload.judgement_of
        )
        if plan.profile:
            reward = CalledReward(reward, plan.profile.calls)
        yield Workers(
            prompts=workload.prompts,
            fleets=fleets,
            trainer=ModelledTrainer(plan.trainer),
            reward=reward,
            replicas=plan.replicas,
        )
        for fleet in fleets.values():
            for engine in fleet.engines.values():
                await engine.close()
        await reward.close()

    def _fleet(self, plan: ClusterPlan, degree: int, workload: Workload) -> Fleet:
        """The engines of one tensor-parallel degree, side by side on all GPUs."""
        is_configured = degree == self._config.engine.tensor_parallel
        names = [
            EngineId(f"engine-{index}" if is_configured else f"engine-tp{degree}-{index}")
            for index in range(plan.num_gpus // degree)
        ]
        engines: dict[EngineId, Engine] = {
            name: ModelledEngine(
                engine=name,
                costs=plan.engines[degree],
                max_num_seqs=self._config.engine.max_num_seqs,
                weight_transfer_s=plan.weight_transfer_s(degree),
                switch_s=plan.hardware.engine_switch_s,
                start_s=plan.hardware.rollout_start_s,
                length_of=workload.length_of,
            )
            for name in names
        }
        if plan.profile:
            calls = plan.profile.calls
            engines = {name: CalledEngine(engine, calls) for name, engine in engines.items()}
        return Fleet(
            engines=engines,
            gpus={name: tuple(range(index * degree, (index + 1) * degree)) for index, name in enumerate(names)},
        )
