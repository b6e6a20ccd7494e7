"""AdamW's moments on disk, sharded over the ranks as in memory, and read under any number of ranks.

Invariant: reading back gives every number bit for bit, into new tensors; what goes wrong on one rank is raised on all.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from rollpacker.metrics.files import storage_errors
from rollpacker.trainers.checkpoints import unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

Moments = dict[str, dict[str, "Tensor"]]
"""Of AdamW (`step`, `exp_avg`, `exp_avg_sq`) by parameter name."""


def write_moments(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], folder: Path) -> None:
    """Write them after an update; a collective. Raises `StorageFailed`."""
    moments: Moments = {name: dict(optimizer.state[parameter]) for name, parameter in parameters.items()}
    with storage_errors(folder), _failures_as_they_were():
        save(moments, checkpoint_id=folder)


def read_moments(parameters: Mapping[str, Tensor], folder: Path) -> Moments:
    """Read this rank's part; a collective. Raises `CheckpointError` when the folder is missing, torn or another's."""
    moments: Moments = {
        name: {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }
        for name, parameter in parameters.items()
    }
    try:
        with _failures_as_they_were():
            load(moments, checkpoint_id=folder)
    except Exception as error:  # anything that a torn file makes torch or pickle raise, on any rank
        raise unreadable(folder, error) from error
    return moments


@contextlib.contextmanager
def _failures_as_they_were() -> Iterator[None]:
    """Raise what the first failing rank raised, which torch wraps into an error of its own beside `Exception`."""
    try:
        yield
    except CheckpointException as error:
        cause, _ = next(iter(error.failures.values()))
        raise cause from error
