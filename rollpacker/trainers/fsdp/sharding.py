"""Shards a Hugging Face model over the ranks, fills the shards from whole tensors, and gathers whole tensors again.

Invariant: only rank 0 reads the model's files and ever holds the whole model, in host memory while it is read or
written. It sends one whole tensor after the other, and every rank keeps its part. Names and shapes come from rank 0 as
well, so all ranks walk the tensors in one order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from rollpacker.protocols.tensors import checksum_of_tensors, named_tensors
from rollpacker.trainers.models import decoder_layers, load_model, make_skeleton, recompute_activations
from rollpacker.trainers.process_group import on_rank_0

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WholeModel:
    """A model directory as rank 0 read it."""

    shapes: dict[str, tuple[int, ...]]
    """Of the tensors under their Hugging Face names, ascending, tied ones once; known on all ranks."""
    checksum: str | None
    """Over the tensors; None unless it was asked for."""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Float32; empty on the other ranks."""
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """What no file holds, such as rotary frequencies; empty on the other ranks."""


def read_whole_model(model_path: Path, *, with_checksum: bool = False) -> WholeModel:
    """Read the directory on rank 0; raises `ModelError` on all ranks."""
    model: torch.nn.Module | None = None

    def read() -> tuple[dict[str, tuple[int, ...]], str | None]:
        nonlocal model
        model = load_model(model_path)
        tensors = named_tensors(model)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        return shapes, checksum_of_tensors(tensors) if with_checksum else None

    shapes, checksum = on_rank_0(read)
    if model is None:
        return WholeModel(shapes=shapes, checksum=checksum)
    return WholeModel(
        shapes=shapes, checksum=checksum, tensors=named_tensors(model), buffers=dict(model.named_buffers())
    )


def make_sharded_model(
    model_path: Path, mesh: DeviceMesh, device: torch.device, *, is_bfloat16: bool, recomputes_activations: bool
) -> nn.Module:
    """Return the model of a directory with this rank's part of the parameters, not yet filled.

    Each layer is a unit, gathered before its pass and dropped after it; embedding, last norm and output layer are
    another. Gradients are summed over the ranks, not averaged.
    """
    model = make_skeleton(model_path)
    # Gradients are kept and summed in float32: many small ones vanish in bfloat16.
    precision = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if is_bfloat16
        else MixedPrecisionPolicy()
    )
    if recomputes_activations:
        recompute_activations(model)
    for layer in decoder_layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # Without it the factor becomes an operation that only NCCL knows.
            module.set_force_sum_reduction_for_comms(enable=True)
    return model.to_empty(device=device)


@torch.no_grad()
def fill(models: Sequence[nn.Module], whole: WholeModel, device: torch.device) -> None:
    """Give every rank its part of each tensor, in all of the models, and each buffer whole."""
    states = [model.state_dict(keep_vars=True) for model in models]
    for name, shape in whole.shapes.items():
        tensor = _from_rank_0(whole.tensors.get(name), shape, states[0][name].dtype, device)
        for state in states:
            target = state[name]
            if isinstance(target, DTensor):
                part = distribute_tensor(tensor, target.device_mesh, target.placements, src_data_rank=None)
                target.to_local().copy_(part.to_local())
            else:
                target.copy_(tensor)
    buffers = [dict(model.named_buffers()) for model in models]
    for name, buffer in buffers[0].items():
        tensor = _from_rank_0(whole.buffers.get(name), tuple(buffer.shape), buffer.dtype, device)
        for own in buffers:
            own[name].copy_(tensor)


def whole_tensors(model: nn.Module, names: Sequence[str], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Gather one tensor after the other; floating-point ones in `dtype`. All ranks exhaust it."""
    state = model.state_dict(keep_vars=True)
    for name in names:
        tensor = state[name].detach()
        if tensor.is_floating_point():
            tensor = tensor.to(dtype)  # before it travels
        yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sum_gradients_in_backward(model: nn.Module, *, is_wanted: bool) -> None:
    """Let backward passes sum what was accumulated over the ranks, or keep it where it is."""
    assert isinstance(model, FSDPModule), "the model is not sharded"
    model.set_requires_gradient_sync(is_wanted)


def unreduced_gradients(model: nn.Module) -> Iterator[Tensor]:
    """The whole gradients that passes without a sum left on this rank: no parameter of the model shows them."""
    for module in model.modules():
        if isinstance(module, FSDPModule) and (group := module._get_fsdp_state()._fsdp_param_group):  # noqa: SLF001
            for each in group.fsdp_params:  # torch has no public name for any of these
                unsharded = getattr(each, "_unsharded_param", None)  # none before the first pass
                for gradient in (each.unsharded_accumulated_grad, None if unsharded is None else unsharded.grad):
                    if gradient is not None:
                        yield gradient


def drop_gathered(model: nn.Module) -> None:
    """Free what a forward pass left gathered for a backward pass that does not come: the outermost unit."""
    assert isinstance(model, FSDPModule), "the model is not sharded"
    model.reshard()


def _from_rank_0(tensor: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    received = (
        torch.empty(shape, dtype=dtype, device=device) if tensor is None else tensor.to(device, dtype).contiguous()
    )
    dist.broadcast(received, src=0)
    return received
