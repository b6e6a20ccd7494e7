"""What follows from a modelled run's configuration: its GPUs, and the costs of everyone who works on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollpacker.core.errors import ConfigError
from rollpacker.sim.costs import EngineCosts, TrainerCosts, weight_transfer_s
from rollpacker.sim.judge import JudgePlan, hardware_beside, plan_judge
from rollpacker.sim.shapes import Transformer, transformer_of

if TYPE_CHECKING:
    from rollpacker.config.schema import HardwareSection, RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """Engines and a trainer that take turns on the same GPUs."""

    model: Transformer
    hardware: HardwareSection
    num_gpus: int
    """Of engines and trainer."""
    judge: JudgePlan | None
    """None when no response is read by an LLM judge."""
    engine: EngineCosts
    trainer: TrainerCosts
    weight_transfer_s: float

    @property
    def num_all_gpus(self) -> int:
        """With those of a judge that has its own."""
        return self.num_gpus + (self.judge.num_own_gpus if self.judge else 0)


def plan_cluster(config: RunConfig, *, needs_judge: bool) -> ClusterPlan:
    """Plan a modelled run, with an LLM judge if the workload needs one.

    Raises:
        ModelError: The model's sizes cannot be read.
        ConfigError: It does not fit on the GPUs.
    """
    assert config.hardware is not None
    model, hardware, trainer = transformer_of(config.model), config.hardware, config.trainer
    tensor_parallel = config.engine.tensor_parallel
    num_gpus = config.engine.num_engines * tensor_parallel
    if hardware.gpus_per_node % tensor_parallel:
        raise ConfigError(
            f"engine.tensor_parallel={tensor_parallel} with hardware.gpus_per_node={hardware.gpus_per_node}.",
            "The GPUs of an engine lie in one node, and engines fill nodes.",
            "Choose a degree that divides the GPUs of a node.",
        )
    judge = plan_judge(config) if needs_judge else None
    beside_judge = hardware_beside(config.reward.judge, judge, hardware) if judge else hardware
    engine = EngineCosts(model=model, hardware=beside_judge, tensor_parallel=tensor_parallel)
    _check_memory(config, engine)
    return ClusterPlan(
        model=model,
        hardware=hardware,
        num_gpus=num_gpus,
        judge=judge,
        engine=engine,
        trainer=TrainerCosts(
            model=model,
            hardware=hardware,
            num_gpus=num_gpus,
            tensor_parallel=trainer.tensor_parallel,
            pipeline_parallel=trainer.pipeline_parallel,
            context_parallel=trainer.context_parallel,
            max_tokens_per_microbatch=trainer.max_tokens_per_microbatch,
        ),
        weight_transfer_s=weight_transfer_s(model, hardware, num_gpus=num_gpus, tensor_parallel=tensor_parallel),
    )


def _check_memory(config: RunConfig, engine: EngineCosts) -> None:
    """Refuse, as vLLM does, an engine that could not hold even one of the longest sequences."""
    assert config.workload is not None
    num_prompt_tokens = max(config.workload.prompt_tokens, config.data.max_prompt_tokens)
    needed = num_prompt_tokens + config.rollout.max_response_tokens
    capacity = engine.num_kv_tokens
    if capacity < needed:
        weights_gb = engine.model.num_weight_bytes / 1e9
        memory_gb = engine.hardware.memory_gb * engine.tensor_parallel
        raise ConfigError(
            f"An engine of engine.tensor_parallel={engine.tensor_parallel} with {weights_gb:.0f} GB of weights in "
            f"{memory_gb:g} GB has room for {capacity:,} tokens of KV cache.",
            f"One sequence needs up to {needed:,}: prompt and response.",
            "Raise engine.tensor_parallel, or lower rollout.max_response_tokens or data.max_prompt_tokens.",
        )
