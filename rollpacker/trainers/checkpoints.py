"""A trainer's state on disk: `model/` in Hugging Face format and `trainer.pt` with everything else.

Invariant: reading back gives every number bit for bit. Weights are stored in float32, the precision that is trained,
whatever precision the engines use. Nothing here is executed on reading (`weights_only`), and nothing that the user
configures is stored: on resume the configuration counts.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch

from rollpacker.core.errors import CheckpointError
from rollpacker.metrics.files import storage_errors

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

MODEL_FOLDER = "model"
STATE_FILE = "trainer.pt"
FORMAT = 1
"""Raised whenever older files can no longer be read."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainerState:
    """Everything beside the weights."""

    policy_version: int
    optimizer: dict[str, dict[str, Tensor]]
    """By parameter name; empty before the first update."""
    generators: tuple[Tensor, ...]
    """torch's own: the CPU's, then each accelerator's."""
    reference_checksum: str | None
    """Of the frozen reference policy, which is loaded from the run's model directory; None without one."""


def write_state(state: TrainerState, folder: Path) -> None:
    """Write `STATE_FILE` into an existing folder; raises `StorageFailed`."""
    content = {"format": FORMAT, **{field.name: getattr(state, field.name) for field in fields(TrainerState)}}
    # Through an open file: given a path, torch turns a full disk into a RuntimeError without its reason.
    with storage_errors(folder), (folder / STATE_FILE).open("wb") as file:
        torch.save(content, file)


def read_state(folder: Path) -> TrainerState:
    """Read `STATE_FILE`; raises `CheckpointError` when it is missing, torn or of another format."""
    path = folder / STATE_FILE
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, KeyError, ValueError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {type(error).__name__}: {error}",
            "A file that this trainer wrote",
            "Remove the checkpoint to resume from an older one",
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(
            f"{path} has format {found}",
            f"This version reads format {FORMAT}",
            "Resume with the version that wrote it, or start a new run from its model folder",
        )
    return TrainerState(**{field.name: content[field.name] for field in fields(TrainerState)})
