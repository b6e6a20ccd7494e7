"""AdamW over a model's float32 parameters, for policies of torch's own modules: one process or FSDP2.

Invariant: no bit of parameters and optimizer state changes through a sleep. Parameters stay the same objects, so that
references to them stay valid; on an accelerator the optimizer's tensors are others.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from rollpacker.config.sections.trainer import TrainerSection


def make_adamw(parameters: Iterable[nn.Parameter], section: TrainerSection) -> torch.optim.AdamW:
    """Make the optimizer that a trainer section describes."""
    return torch.optim.AdamW(
        parameters,
        lr=section.learning_rate,
        betas=section.adam_betas,
        weight_decay=section.weight_decay,
        fused=True,
    )


def clip_and_step(
    optimizer: torch.optim.Optimizer, max_grad_norm: float, learning_rate: float, gradient_scale: float
) -> float:
    """Scale and clip the gradients and update; returns their norm before clipping.

    A norm that is not finite is returned as it is, and no weight was changed.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        if parameter.grad is None:
            # AdamW skips a parameter without a gradient. A batch without any signal must still be an update.
            parameter.grad = torch.zeros_like(parameter)
        elif gradient_scale != 1:
            parameter.grad.mul_(gradient_scale)
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters])
    total = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    if not math.isfinite(total):
        return total
    torch.nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, norm)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    return total


def move(models: Sequence[nn.Module], optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Move models with their gradients, and the optimizer's state; free what the accelerator's allocator keeps."""
    for model in models:
        model.to(device)
    for of_parameter in optimizer.state.values():
        for key, value in of_parameter.items():
            of_parameter[key] = value.to(device)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
