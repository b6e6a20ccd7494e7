"""A checkpoint of a model that many ranks share, which any other number of ranks can read.

* `model/`: a complete Hugging Face directory with the main weights, float32, as every trainer writes it.
* `moments/`: AdamW's, written by many ranks at once as one of Megatron-core's sharded checkpoints. Each tensor has its
  name and full shape there, so the layout of the ranks that read is free.
* `megatron.pt`: everything else, written by rank 0.

Nothing is stored twice.

Invariant: a rank that fails to write reports it to the others; all raise, and none waits for one that is gone.

torch itself writes the files: Megatron-core's own writer starts processes that outlive a killed rank.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    TorchDistSaveShardedStrategy,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from safetensors.torch import save_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from rollpacker.core.errors import StorageFailed
from rollpacker.metrics.files import storage_errors
from rollpacker.trainers.checkpoints import State, unreadable
from rollpacker.trainers.megatron.optimizer import MOMENTS
from rollpacker.trainers.megatron.weight_files import full_tensors
from rollpacker.trainers.models import copy_companions, safetensors_errors_are_os_errors
from rollpacker.trainers.process_group import on_rank_0

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from rollpacker.trainers.host_memory import HostCopies
    from rollpacker.trainers.megatron.architecture import Architecture
    from rollpacker.trainers.megatron.optimizer import ShardedAdamW

MOMENTS_FOLDER = "moments"
STATE_FILE = "megatron.pt"
MAX_FILE_BYTES = 5 * 10**9
"""Of one weight file, as transformers cuts them; rank 0 holds one in host memory."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MegatronState(State):
    """What `STATE_FILE` holds."""

    num_updates: int
    """Of the optimizer."""


def write_model(weights: Mapping[str, Tensor], architecture: Architecture, model_path: Path, folder: Path) -> None:
    """Write a new Hugging Face directory, weight by weight, with the tokenizer of `model_path`. A collective.

    `weights` are those of `full_tensors`. Raises `StorageFailed`, on all ranks.
    """
    tensors = full_tensors(weights, architecture)

    def write() -> None:
        try:
            _write_directory(tensors, model_path, folder)
        finally:
            _exhaust(tensors)

    if dist.get_rank() > 0:
        _exhaust(tensors)
    on_rank_0(write)


def write_moments(optimizer: ShardedAdamW, model: torch.nn.Module, away: HostCopies, folder: Path) -> None:
    """A collective; raises `StorageFailed`, on all ranks. What is `away` stays there."""
    target = folder / MOMENTS_FOLDER
    on_rank_0(lambda: _make_folder(target))
    state = {moment: _sharded(moment, model, optimizer.gather(moment, away)) for moment in MOMENTS}
    try:
        dist_checkpointing.save(state, str(target), sharded_strategy=_InThisProcess("torch_dist", 1))
    except CheckpointException as error:
        # torch gathers what each rank raised.
        raise StorageFailed(
            f"{target} could not be written: {error}", "Allowed: a folder with space that all ranks see", "Make room"
        ) from error


def read_moments(model: torch.nn.Module, folder: Path) -> dict[str, dict[str, Tensor]]:
    """Return each moment under the names of this rank's parameters and in their shapes, in host memory.

    A collective; raises `CheckpointError`.
    """
    source = folder / MOMENTS_FOLDER
    state = {
        moment: _sharded(
            moment, model, {name: torch.empty(parameter.shape) for name, parameter in model.named_parameters()}
        )
        for moment in MOMENTS
    }
    try:
        filled: dict[str, dict[str, Tensor]] = dist_checkpointing.load(state, str(source))
    except (CheckpointingException, CheckpointException, OSError, KeyError, pickle.UnpicklingError) as error:
        raise unreadable(
            f"The optimizer in {source}", error, "A checkpoint that trainer=megatron wrote of the same model"
        ) from error
    return {moment: filled[moment] for moment in MOMENTS}


class _InThisProcess(TorchDistSaveShardedStrategy):  # type: ignore[misc]  # megatron is untyped
    """Megatron-core's layout of the files with torch's own writer, which starts threads and no process."""

    def save(self, sharded_state_dict: dict[str, Any], checkpoint_dir: Any) -> None:
        state, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, self.keep_only_main_replica)
        save(
            mcore_to_pyt_state_dict(state, False),
            storage_writer=FileSystemWriter(checkpoint_dir),
            planner=MCoreSavePlanner(
                dedup_replicated_tensors=not self.keep_only_main_replica, flatten_state_dict=False
            ),
        )


def _sharded(moment: str, model: Any, values: Mapping[str, Tensor]) -> dict[str, Any]:
    """Say which part of which tensor each value is: the part of the parameter that this rank has."""
    layout = model.sharded_state_dict()
    sharded: dict[str, Any] = {}
    for name, tensor in values.items():
        of_parameter = layout[name]
        changes: dict[str, Any] = {"key": f"{moment}.{of_parameter.key}", "data": tensor}
        if isinstance(of_parameter, dist_checkpointing.ShardedTensor):
            changes["dtype"] = tensor.dtype
        sharded[name] = dataclasses.replace(of_parameter, **changes)
    return sharded


def _make_folder(folder: Path) -> None:
    with storage_errors(folder):
        folder.mkdir(exist_ok=True)


def _exhaust(tensors: Iterable[Any]) -> None:
    for _ in tensors:
        pass


def _write_directory(tensors: Iterator[tuple[str, Tensor]], model_path: Path, folder: Path) -> None:
    with storage_errors(folder), safetensors_errors_are_os_errors():
        folder.mkdir(exist_ok=True)
        _write_files(tensors, folder)
        config = json.loads((model_path / "config.json").read_text())
        config.pop("torch_dtype", None)
        config["dtype"] = "float32"
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        copy_companions(model_path, folder)


def _write_files(tensors: Iterator[tuple[str, Tensor]], folder: Path) -> None:
    """Write one file after the other, and name them once their number is known."""
    held: dict[str, Tensor] = {}
    num_bytes = total_bytes = 0
    names: list[list[str]] = []

    def write() -> None:
        save_file(held, folder / f"part-{len(names)}.safetensors", metadata={"format": "pt"})
        names.append(list(held))
        held.clear()

    for name, tensor in tensors:
        if held and num_bytes + tensor.nbytes > MAX_FILE_BYTES:
            write()
            num_bytes = 0
        held[name] = tensor.to("cpu", copy=True).contiguous()
        num_bytes += tensor.nbytes
        total_bytes += tensor.nbytes
    write()
    if len(names) == 1:
        (folder / "part-0.safetensors").rename(folder / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for part, own in enumerate(names):
        file = f"model-{part + 1:05d}-of-{len(names):05d}.safetensors"
        (folder / f"part-{part}.safetensors").rename(folder / file)
        weight_map.update(dict.fromkeys(own, file))
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
