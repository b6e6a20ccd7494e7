"""Facts of a modelled run, checked before it starts; implements `protocols.backend.RunFacts`."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from rollpacker.data.held_out import load_held_out
from rollpacker.data.shapes import transformer_of
from rollpacker.protocols.backend import ModelFacts, ModelledCluster
from rollpacker.sim.evaluation_cost import evaluation_cost
from rollpacker.sim.plan import ClusterPlan, plan_cluster
from rollpacker.sim.profile import A_PROFILE_LENDS_NOTHING
from rollpacker.sim.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollpacker.config.schema import RunConfig
    from rollpacker.core.ids import Domain


class ModelledRunFacts:
    """Reads what the configuration names and computes what fits."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    def model(self) -> ModelFacts:
        model = transformer_of(self._config.model)
        return ModelFacts(
            architecture=f"{model.shape.num_layers} layers of width {model.shape.hidden_size:,}",
            num_parameters=model.num_parameters,
            num_weight_bytes=model.num_weight_bytes,
            max_positions=None,
        )

    def num_prompts_by_domain(self) -> Mapping[Domain, int]:
        return self._workload.num_prompts_by_domain

    def num_held_out(self) -> Mapping[str, int]:
        return {name: len(prompts) for name, prompts in load_held_out(self._config.evaluation).items()}

    def check_order(self, order: Mapping[str, object]) -> None:
        """Nothing: a modelled run compares them as soon."""

    def cluster(self) -> ModelledCluster:
        workload, plan = self._workload, self._plan
        has_cost = workload.held_out and self._config.modelled_environment is None
        return ModelledCluster(
            hardware=plan.hardware.name,
            num_gpus=plan.num_all_gpus,
            num_engines=self._config.engine.num_engines,
            kv_tokens_per_engine=plan.engine.num_kv_tokens,
            num_replicas=plan.trainer.num_replicas,
            num_trainer_gpus=len(plan.gpus.of_trainer) if plan.gpus.has_pools else None,
            trainer_parts=plan.replicas,
            engine_gpus={degree: plan.engine_gpus(degree) for degree in plan.engines},
            evaluation=evaluation_cost(self._config, workload, plan) if has_cost else None,
        )

    def notes(self) -> tuple[str, ...]:
        gpus, profile = self._plan.gpus, self._plan.profile
        if profile is None:
            return self._workload.notes()
        scale = profile.note_on_scale(len(gpus.of_engines), len(gpus.of_trainer))
        lending = A_PROFILE_LENDS_NOTHING if self._config.system.stream and not gpus.has_pools else ""
        return (*self._workload.notes(), *filter(None, (scale, lending)))

    @cached_property
    def _workload(self) -> Workload:
        return Workload(self._config)

    @cached_property
    def _plan(self) -> ClusterPlan:
        return plan_cluster(self._config, needs_judge=self._workload.needs_judge)
