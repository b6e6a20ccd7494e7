"""The modelled backend: workers that take computed time, on the virtual-time loop that the pipeline runs on.

Invariant: it starts no process, no thread and no timer of its own, so a modelled run leaves nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from rollpacker.config.sections.losses import is_own
from rollpacker.core.ids import EngineId
from rollpacker.protocols.backend import BackendContext, Fleet, Workers
from rollpacker.protocols.engine import Engine
from rollpacker.protocols.reward import RewardService
from rollpacker.sim.engine import ModelledEngine
from rollpacker.sim.environment import modelled_environments
from rollpacker.sim.judge import pcie_rate
from rollpacker.sim.members import ModelledMembers
from rollpacker.sim.plan import ClusterPlan, plan_cluster
from rollpacker.sim.profile_calls import CalledEngine, CalledReward
from rollpacker.sim.reward import ModelledReward
from rollpacker.sim.trainer import ModelledTrainer
from rollpacker.sim.workload import Workload

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig


def typical_tokens(config: RunConfig) -> int:
    """Of a sequence whose beginning is computed: half of the longest."""
    return max(1, (config.data.max_prompt_tokens + config.rollout.max_response_tokens) // 2)


class ModelledRebuild:
    """Ends engines, and starts them in the time that a start takes; implements `protocols.backend.Rebuild`."""

    def __init__(self, engines: Mapping[EngineId, Engine], start_s: float) -> None:
        self._engines = engines
        self._start_s = start_s

    async def end(self, slot: EngineId) -> None:
        await self._engines[slot].sleep()

    async def rebuild(self, slot: EngineId) -> None:
        del slot
        await asyncio.sleep(self._start_s)


class ModelledBackend:
    """Implements `rollpacker.protocols.backend.Backend`."""

    is_modelled = True

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    @asynccontextmanager
    async def open(self, surroundings: BackendContext) -> AsyncIterator[Workers]:
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
            if workload.has_programs and plan.profile.programs:
                workload.take_program_times(plan.profile.programs)
            elif workload.has_programs:
                surroundings.note("It has no program in a sandbox: their times are the paper's (Fig 7a).")
        if workload.num_long_prompts:
            verb = "Dropped" if config.data.long_prompts == "drop" else "Shortened"
            limit = config.data.max_prompt_tokens
            surroundings.note(
                f"{verb} {workload.num_long_prompts} prompts of more than data.max_prompt_tokens={limit} tokens."
            )
        members = self._members(plan, workload) if config.elastic.is_on else None
        fleets = {degree: self._fleet(plan, degree, workload, members) for degree in plan.engines}
        engines = {name: engine for fleet in fleets.values() for name, engine in fleet.engines.items()}

        async def replace_engine(slot: EngineId, name: EngineId) -> Engine:
            await engines[slot].close()
            await asyncio.sleep(plan.hardware.engine_restart_s)
            degree = next(degree for degree, fleet in fleets.items() if slot in fleet.engines)
            engines[slot] = self._engine(plan, degree, workload, name, members)
            return engines[slot]

        fills = config.evaluation.path is not None and config.evaluation.when == "fill"
        take_turns = not plan.gpus.has_pools and (config.system.is_async or fills)
        is_rebuilt = config.engine.switch == "restart" and len(fleets) > 1
        reward: RewardService = ModelledReward(
            config.reward, num_cores=plan.num_reward_cores, judge=plan.judge, score_of=workload.score_of
        )
        if plan.profile:
            reward = CalledReward(reward, plan.profile.calls)
        yield Workers(
            num_modelled_gpus=plan.num_all_gpus,
            prompts=workload.prompts,
            held_out=workload.held_out,
            fleets=fleets,
            trainer=ModelledTrainer(
                plan.trainer,
                trains_all=(
                    config.trainer.advantage in {"reinforce_pp", "reinforce_pp_baseline"}
                    or is_own(config.trainer.advantage)
                    or config.trainer.entropy_coefficient > 0
                    or is_own(config.trainer.loss)
                ),
                mask_truncated=config.trainer.mask_truncated,
                on_export=members.policy_published if members else None,
            ),
            reward=reward,
            trainer_parts=plan.replicas,
            colocated_engines=frozenset(engines) if take_turns else frozenset(),
            replace_engine=replace_engine,
            rebuild=ModelledRebuild(engines, plan.hardware.engine_restart_s) if is_rebuilt else None,
            members=members,
            environments=modelled_environments(config, workload),
        )
        if members:
            await members.close()
        for engine in engines.values():
            await engine.close()
        await reward.close()

    def _members(self, plan: ClusterPlan, workload: Workload) -> ModelledMembers:
        """Rollout workers like the run's own nodes, behind a link of their own."""
        elastic, hardware = self._config.elastic, plan.hardware
        degree = elastic.tensor_parallel or self._config.engine.tensor_parallel

        def make(name: EngineId) -> ModelledEngine:
            return ModelledEngine(
                engine=name,
                costs=plan.member,
                max_num_seqs=self._config.engine.max_num_seqs,
                weight_transfer_s=plan.model.num_weight_bytes / degree / pcie_rate(hardware),
                switch_s=plan.engine_switch_s,
                draft_acceptance=workload.draft_acceptance,
                length_of=workload.length_of,
                keeps_prefixes=plan.keeps_prefixes,
            )

        return ModelledMembers(elastic, make)

    def _fleet(self, plan: ClusterPlan, degree: int, workload: Workload, members: ModelledMembers | None) -> Fleet:
        """The engines of one tensor-parallel degree."""
        gpus = plan.engine_gpus(degree)
        return Fleet(
            engines={name: self._engine(plan, degree, workload, name, members) for name in gpus},
            gpus=gpus,
            costs=plan.degree_costs(degree, self._config.engine.max_num_seqs, typical_tokens(self._config)),
        )

    def _engine(
        self, plan: ClusterPlan, degree: int, workload: Workload, name: EngineId, members: ModelledMembers | None
    ) -> Engine:
        engine = ModelledEngine(
            engine=name,
            costs=plan.engines[degree],
            max_num_seqs=self._config.engine.max_num_seqs,
            weight_transfer_s=plan.weight_transfer_s(degree),
            switch_s=plan.engine_switch_s,
            start_s=plan.rollout_start_s,
            own_wake_s=plan.own_wake_s,
            draft_acceptance=workload.draft_acceptance,
            length_of=workload.length_of,
            keeps_prefixes=plan.keeps_prefixes,
            keeps_requests=self._config.system.interrupt == "keep",
            on_sleep=members.engines_lent if members else None,
        )
        return CalledEngine(engine, plan.profile.calls) if plan.profile else engine
