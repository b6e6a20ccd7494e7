"""A trainer's state on disk: `model/` in Hugging Face format, and one file with what is not the weights.

Invariant: reading back gives every number bit for bit. Weights are stored in float32, the precision that is trained,
whatever precision the engines use. Nothing here is executed on reading (`weights_only`), and nothing that the user
configures is stored: on resume the configuration counts.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from rollpacker.core.errors import CheckpointError, RollpackerError
from rollpacker.metrics.files import storage_errors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

MODEL_FOLDER = "model"

_OF_DAMAGE = (
    *(OSError, EOFError, RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError),
    pickle.UnpicklingError,
)
"""What torch raises of a torn or altered file; a field that is missing raises one of them, too."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State:
    """What every policy stores beside the weights; each adds what is its own."""

    policy_version: int
    generators: tuple[Tensor, ...]
    """As `generators` gives them."""
    reference_checksum: str | None
    """Of the frozen reference policy, which is loaded from the run's model directory; None without one."""


StateT = TypeVar("StateT", bound=State)


def write_state(state: State, file: Path) -> None:
    """Write the file into an existing folder; raises `StorageFailed`."""
    content = {field.name: getattr(state, field.name) for field in fields(state)}
    # Through an open file: given a path, torch turns a full disk into a RuntimeError without its reason.
    with storage_errors(file.parent), file.open("wb") as opened:
        try:
            torch.save(content, opened)
        except RuntimeError as error:  # of closing what a full disk has cut off, in the place of its reason
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def read_state(kind: type[StateT], file: Path) -> StateT:
    """Read what `write_state` wrote; raises `CheckpointError` when it is missing, torn or of another kind."""
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
        return kind(**{field.name: content[field.name] for field in fields(kind)})
    except _OF_DAMAGE as error:
        raise unreadable(file, error) from error


def require_same_model(folder: Path, found: Mapping[str, Any], own: Mapping[str, Any], model_path: Path) -> None:
    """Raise `CheckpointError` unless the policy in `folder` has the names and shapes of the run's own."""
    if found != own:
        raise CheckpointError(
            f"The policy in {folder} has other tensors than the one in {model_path}",
            "A checkpoint continues the model that the run began with",
            "Set model.path to the model that the run began with, or choose another run.dir",
        )


def require_same_reference(folder: Path, found: str | None, own: str | None, model_path: Path) -> None:
    """Raise `CheckpointError` when both the checkpoint and the run have a reference policy, and not the same."""
    if len({found, own} - {None}) > 1:
        raise CheckpointError(
            f"{folder} was trained against another reference policy than the one in {model_path}",
            "The KL penalty is measured against the policy that the run began with",
            "Set model.path to the model that the run began with",
        )


def unreadable(
    what: object, error: BaseException, allowed: str = "A checkpoint that this trainer wrote"
) -> CheckpointError:
    """Return the error of a checkpoint, or a part of it, that cannot be read."""
    reason = error.problem if isinstance(error, RollpackerError) else f"{type(error).__name__}: {error}"
    return CheckpointError(
        f"{what} cannot be read: {reason}",
        allowed,
        "Move the checkpoint's folder away: run.resume=auto then goes on from the one before it",
    )


def generators() -> tuple[Tensor, ...]:
    """States of torch's own: the CPU's, then each accelerator's."""
    return torch.get_rng_state(), *torch.cuda.get_rng_state_all()


def restore_generators(states: tuple[Tensor, ...]) -> None:
    """Set torch's own to `states`; the accelerators' only if their number is the same."""
    torch.set_rng_state(states[0])
    if len(states) - 1 == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(list(states[1:]))
