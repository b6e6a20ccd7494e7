"""Megatron-core's distributed optimizer, and its state in the shape of the parameters.

Each rank of a replica group keeps a stretch of the flattened parameters: their main weights and AdamW's two moments, in
float32. For a checkpoint, and for reading one, this module converts them to the parameters' own shapes and back.
Megatron-core 0.16.1 has a way of its own (`fully_reshardable`), which is not used, because without Transformer Engine
and Apex it raises KeyError 'step' on reading, has all parameters share one step counter afterwards, cannot write before
the first update, and moves what follows an embedding that two pipeline stages share (it forgets the fill between two
buckets, and says so in a warning). All of that holds on GPUs, too.

Transformer Engine's and Apex's optimizers are not known here: with them installed the constructor refuses.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32

from rollpacker.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from megatron.core.distributed import DistributedDataParallel
    from torch import Tensor

    from rollpacker.config.sections.trainer import TrainerSection
    from rollpacker.trainers.host_memory import HostCopies

MOMENTS = ("exp_avg", "exp_avg_sq")
"""As torch's AdamW names them."""


class ShardedAdamW:
    """This rank's share of main weights and moments."""

    def __init__(self, model: DistributedDataParallel, section: TrainerSection, dtype: torch.dtype) -> None:
        """Start with moments of zeros and with the model's weights as main weights."""
        self._max_grad_norm = section.max_grad_norm
        config = OptimizerConfig(
            optimizer="adam",
            lr=section.learning_rate,
            adam_beta1=section.adam_betas[0],
            adam_beta2=section.adam_betas[1],
            weight_decay=section.weight_decay,
            decoupled_weight_decay=True,
            use_distributed_optimizer=True,
            clip_grad=section.max_grad_norm,
            bf16=dtype is torch.bfloat16,
            params_dtype=dtype,
        )
        with warnings.catch_warnings():
            # That Transformer Engine and Apex are not installed is known here.
            warnings.simplefilter("ignore")
            # No overrides: every parameter has the same decay, as in the other trainers.
            chained = get_megatron_optimizer(config, [model], config_overrides={}, use_gloo_process_groups=False)
        (self._sharded,) = chained.chained_optimizers
        self._adamw = self._sharded.optimizer
        if not isinstance(self._adamw, torch.optim.AdamW):
            raise ConfigError(
                f"Megatron-core chose the optimizer {type(self._adamw).__module__}.{type(self._adamw).__name__}",
                "trainer=megatron works with torch's AdamW, which Megatron-core takes when neither Transformer Engine "
                "nor Apex is installed",
                "Uninstall transformer-engine and apex from the trainer's environment",
            )
        self._named = dict(model.module.named_parameters())
        for shard in self._shards():
            self._adamw.state[shard] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(shard),
                "exp_avg_sq": torch.zeros_like(shard),
            }

    @property
    def num_updates(self) -> int:
        return max((int(self._adamw.state[shard]["step"]) for shard in self._shards()), default=0)

    def update(self, learning_rate: float) -> float:
        """Clip and step with the reduced gradients; returns the norm before clipping over all ranks.

        A norm that is not finite is returned before anything is changed.
        """
        self._sharded.prepare_grads()
        norm = float(self._sharded.get_grad_norm())
        if not math.isfinite(norm):
            return norm
        clip_grad_by_total_norm_fp32(list(self._shards()), self._max_grad_norm, norm)
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._sharded.step_with_ready_grads()
        return norm

    def clear_gradients(self) -> None:
        self._sharded.zero_grad()

    def tensors(self) -> Iterator[Tensor]:
        """Everything that it keeps on the accelerator."""
        for shard in self._shards():
            yield shard
            yield from (self._adamw.state[shard][moment] for moment in MOMENTS)

    def gather(self, what: str, away: HostCopies) -> dict[str, Tensor]:
        """Return main weights (`param`) or a moment in the parameters' shapes, in host memory, under their names.

        A collective; empty but on the first rank of each replica group. What is `away` is read where it is, and
        nothing is copied back to the accelerator for it.
        """
        group = self._sharded.data_parallel_group
        first = dist.get_global_rank(group, 0)
        gathered: dict[str, Tensor] = {}
        for name, parameter in self._named.items():
            whole = torch.zeros(parameter.numel(), device="cpu" if away.is_away else parameter.device)
            if (own := self._own(parameter)) is not None:
                shard, stretch = own
                whole[stretch] = away.readable(shard if what == "param" else self._adamw.state[shard][what])
            dist.reduce(whole, first, group=group)
            if group.rank() == 0:
                gathered[name] = whole.view(parameter.shape).cpu()
        return gathered

    def take_main_weights(self, name: str, values: Tensor) -> None:
        """Set a parameter's main weights from values in its shape."""
        if (own := self._own(self._named[name])) is not None:
            shard, stretch = own
            shard.detach().copy_(values.reshape(-1)[stretch])

    def take_moment(self, moment: str, name: str, values: Tensor) -> None:
        """Set a parameter's moment from values in its shape."""
        if (own := self._own(self._named[name])) is not None:
            shard, stretch = own
            self._adamw.state[shard][moment].copy_(values.reshape(-1)[stretch])

    def take_num_updates(self, num_updates: int) -> None:
        """Set what AdamW corrects its moments' bias by."""
        for shard in self._shards():
            self._adamw.state[shard]["step"].fill_(num_updates)

    def _shards(self) -> Iterator[Tensor]:
        """This rank's stretches of the main weights."""
        for group in self._adamw.param_groups:
            yield from group["params"]

    def _own(self, parameter: Tensor) -> tuple[Tensor, slice] | None:
        """This rank's stretch of a parameter's main weights, and where it lies in the flattened parameter."""
        where = self._sharded.model_param_group_index_map.get(parameter)
        if where is None:
            return None
        group, order = where
        buffer, dtype, bucket = self._sharded.model_param_gbuf_map[parameter]
        stretch = self._sharded.gbuf_ranges[buffer][dtype][bucket]["param_map"][parameter]["param"]
        return self._adamw.param_groups[group]["params"][order], slice(stretch.start, stretch.end)
