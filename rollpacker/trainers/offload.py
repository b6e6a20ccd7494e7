"""Moves what a trainer keeps on an accelerator to host memory and back, when others need the accelerator.

Invariant: parameters and optimizer state stay the objects that they were, so whoever refers to them still does, and no
bit of them changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn


def move(models: Sequence[nn.Module], optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Move models with their gradients, and the optimizer's state; free what the accelerator's allocator keeps."""
    for model in models:
        model.to(device)
    for of_parameter in optimizer.state.values():
        for key, value in of_parameter.items():
            of_parameter[key] = value.to(device)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
