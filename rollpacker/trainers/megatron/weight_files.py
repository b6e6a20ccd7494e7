"""Reads Hugging Face weights into this rank's parameters, and streams them back whole.

Reading takes from the files only what the rank holds. Writing is a collective of all ranks: the tensor-parallel ranks
of the stage that has a tensor gather it on their first, which hands it to rank 0. Only the first replica and the first
context-parallel part take part; the others have the same values.

At any time rank 0 holds one full tensor beside its own, whatever the model's size.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from safetensors import safe_open

from rollpacker.core.errors import ModelError
from rollpacker.data.weight_files import not_finite, read_tensors
from rollpacker.trainers.megatron.weight_map import Piece, piece_of, weight_map

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from rollpacker.trainers.megatron.architecture import Architecture
    from rollpacker.trainers.megatron.weight_map import Mapped


def read_parameters(
    model: torch.nn.Module, architecture: Architecture, model_path: Path
) -> Iterator[tuple[str, Tensor]]:
    """Yield this rank's part of every parameter under its name, float32 in host memory, one at a time.

    Raises `ModelError` before the first when a tensor is not there.
    """
    num_parts, part = parallel_state.get_tensor_model_parallel_world_size(), _tensor_rank()
    stage = parallel_state.get_pipeline_model_parallel_rank()
    mapped = weight_map(architecture, parallel_state.get_pipeline_model_parallel_world_size())
    files = _files_of(model_path, mapped)
    of_parameter: dict[str, list[Mapped]] = {name: [] for name, _ in model.named_parameters()}
    for tensor in mapped:
        if tensor.stage == stage:
            of_parameter[tensor.parameter].append(tensor)
    with contextlib.ExitStack() as stack:
        opened = {path: stack.enter_context(safe_open(path, framework="pt")) for path in sorted(set(files.values()))}
        for name, parameter in model.named_parameters():
            # Zeros, because a filled vocabulary has rows that no file has.
            values = torch.zeros(parameter.shape)
            for tensor in of_parameter[name]:
                own = _read_part(opened[files[tensor.name]], tensor, num_parts, part)
                if num_wrong := int((~own.isfinite()).sum()):
                    raise not_finite(str(files[tensor.name]), tensor.name, num_wrong)
                home = piece_of(tensor, values, architecture)
                if tensor.piece is Piece.VOCABULARY:
                    home[: len(own)].copy_(own)
                else:
                    home.copy_(own.view(home.shape))
            yield name, values


def full_tensors(parameters: Mapping[str, Tensor], architecture: Architecture) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor under its Hugging Face name, ascending, tied ones once, in the parameters' dtype.

    `parameters` are this rank's under the model's names, or whatever has their shapes; only ranks of the first replica
    and the first context-parallel part need them. A collective. On ranks other than 0 the tensors are empty.
    """
    stage = parallel_state.get_pipeline_model_parallel_rank()
    takes_part = parallel_state.get_data_parallel_rank(with_context_parallel=True) == 0
    nothing = torch.empty(0)
    for tensor in weight_map(architecture, parallel_state.get_pipeline_model_parallel_world_size()):
        if tensor.is_copy:
            continue
        whole: Tensor | None = None
        if takes_part and tensor.stage == stage:
            own = piece_of(tensor, parameters[tensor.parameter], architecture)
            whole = _gather(tensor, own.reshape(-1, *tensor.shape[1:]) if own.dim() > len(tensor.shape) else own)
        if takes_part and _tensor_rank() == 0:
            whole = _to_first_stage(tensor, whole, next(iter(parameters.values())))
        yield tensor.name, nothing if whole is None or dist.get_rank() else whole


def check_weights(model_path: Path, architecture: Architecture) -> None:
    """Look whether a directory has every tensor in its shape; raises `ModelError`."""
    _files_of(model_path, weight_map(architecture, 1))


def _tensor_rank() -> int:
    return int(parallel_state.get_tensor_model_parallel_rank())


def _files_of(model_path: Path, mapped: list[Mapped]) -> dict[str, Path]:
    """The file of each tensor, with its name and shape checked."""
    stored = read_tensors(model_path)
    if stored is None:
        raise _unusable(model_path, "its weights are in torch's own format")
    for tensor in mapped:
        if tensor.name not in stored:
            raise _unusable(model_path, f"the tensor {tensor.name} is missing")
        if stored[tensor.name].shape != tensor.shape:
            found = stored[tensor.name].shape
            raise _unusable(model_path, f"{tensor.name} has shape {found}, and config.json says {tensor.shape}")
    return {tensor.name: stored[tensor.name].file for tensor in mapped}


def _read_part(opened: Any, tensor: Mapped, num_parts: int, part: int) -> Tensor:
    whole = opened.get_slice(tensor.name)
    if tensor.split is None:
        everything: Tensor = whole[:]
        return everything
    # Rounded up: a filled vocabulary leaves its last rank fewer rows.
    size = -(-tensor.shape[tensor.split] // num_parts)
    own = slice(part * size, (part + 1) * size)
    values: Tensor = whole[own] if tensor.split == 0 else whole[:, own]
    return values


def _gather(tensor: Mapped, own: Tensor) -> Tensor | None:
    """Put a stage's parts together on its first tensor-parallel rank."""
    group = parallel_state.get_tensor_model_parallel_group()
    if tensor.split is None or group.size() == 1:
        return own[: tensor.shape[0]]
    own = own.contiguous()
    parts = [torch.empty_like(own) for _ in range(group.size())] if _tensor_rank() == 0 else None
    dist.gather(own, parts, dst=dist.get_global_rank(group, 0), group=group)
    return None if parts is None else torch.cat(parts, dim=tensor.split)[: tensor.shape[0]]


def _to_first_stage(tensor: Mapped, whole: Tensor | None, like: Tensor) -> Tensor | None:
    """Hand a tensor of a later stage to rank 0, in the dtype and on the kind of device of another of its tensors."""
    if tensor.stage == 0:
        return whole
    group = parallel_state.get_pipeline_model_parallel_group()
    if whole is not None:
        dist.send(whole.contiguous(), dst=dist.get_global_rank(group, 0), group=group)
    elif dist.get_rank() == 0:
        whole = like.new_empty(tensor.shape)
        dist.recv(whole, src=dist.get_global_rank(group, tensor.stage), group=group)
    return whole


def _unusable(model_path: Path, reason: str) -> ModelError:
    return ModelError(
        f"{model_path} cannot be loaded into Megatron-core: {reason}",
        "Allowed: config.json and all weights as *.safetensors",
        "Check model.path, or write the model again with transformers' save_pretrained",
    )
