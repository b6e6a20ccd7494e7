"""Which share of a modelled run's GPUs should train: theory's terms from the model's costs and the workload's lengths.

An engine is taken to decode as many samples at a time as it has slots and memory for, or as come to it: mu_g is what a
sample of mean length then takes of its GPUs, L how long the longest of a step decodes there. mu_t is what the trainer
takes for the same samples.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rollpacker.data.shapes import transformer_of
from rollpacker.sim.costs import GIGA
from rollpacker.sim.evaluation_cost import round_lengths
from rollpacker.sim.plan import plan_cluster
from rollpacker.sim.theory import StepTheory
from rollpacker.sim.workload import Workload

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.sim.plan import ClusterPlan

_BYTES_PER_PARAMETER = 16
"""Of a trainer with AdamW: weights, gradients and two moments in float32."""
_USABLE_SHARE = 0.8
"""Of a GPU's memory; the rest is for activations."""


def theory_of(config: RunConfig, longest_tokens: float | None = None) -> StepTheory:
    """Derive the terms of a modelled run's steps.

    Args:
        config: Of the run.
        longest_tokens: Of a step's longest response, where it is known; None is that of the workload's first step.

    Raises:
        UserError: As starting the run would.
    """
    workload = Workload(config)
    plan = plan_cluster(config, needs_judge=workload.needs_judge)
    lengths = round_lengths(config, workload)
    prompt_tokens = max(1, len(next(iter(workload.prompts.values())).token_ids))
    mean_tokens, num_samples = math.fsum(lengths) / len(lengths), len(lengths)
    degree, costs = config.engine.tensor_parallel, plan.engine
    cached_tokens = prompt_tokens + mean_tokens / 2
    batch = _batch(config, plan, num_samples, cached_tokens)
    pass_s = costs.pass_s(batch) + costs.kv_read_s * batch * cached_tokens
    prefill_s = costs.prefill_pass_s(0, [(0, prompt_tokens)])
    sequences = [prompt_tokens + length for length in lengths]
    num_ranks = plan.profile.num_trainer_gpus if plan.profile else len(plan.gpus.of_trainer)
    return StepTheory(
        num_samples=num_samples,
        num_gpus=plan.gpus.number,
        generation_s=degree * (prefill_s + mean_tokens * pass_s / batch),
        training_s=num_ranks * (plan.trainer.passes_s(sequences) + plan.trainer.update_s()) / num_samples,
        longest_s=prefill_s + (longest_tokens or max(lengths)) * pass_s,
    )


def _batch(config: RunConfig, plan: ClusterPlan, num_samples: int, cached_tokens: float) -> int:
    """Samples that an engine decodes at a time."""
    num_ahead = 1 + config.system.lookahead
    arriving = math.ceil(num_samples * num_ahead / config.engine.num_engines)
    fitting = math.floor(plan.engine.num_kv_tokens / cached_tokens)
    return max(1, min(config.engine.max_num_seqs, arriving, fitting))


def suggested_gpus(config: RunConfig, num_gpus: int, share: float) -> int | None:
    """Round a share of the GPUs up to whole replicas that hold the model beside whole engines; None where nothing does.

    Up, since one GPU is a larger part of the trainer's than of the engines'.
    """
    assert config.hardware is not None
    trainer, model = config.trainer, transformer_of(config.model)
    replica = trainer.tensor_parallel * trainer.pipeline_parallel * trainer.context_parallel
    usable = config.hardware.memory_gb * GIGA * _USABLE_SHARE
    least = math.ceil(model.num_parameters * _BYTES_PER_PARAMETER / usable)
    step = math.lcm(replica, config.engine.tensor_parallel)
    sizes = [size for size in range(step, num_gpus, step) if size >= least]
    return next((size for size in sizes if size >= share * num_gpus), sizes[-1] if sizes else None)
