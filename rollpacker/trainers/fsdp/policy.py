"""The policy under FSDP2: parameters and optimizer are sharded over the ranks, layer by layer.

Invariant: all ranks that share a copy of the parameters make equally many passes, for each of them gathers every layer
from all. A rank with fewer micro-batches than another passes one token whose loss is 0. So a part of these ranks cannot
work alone. With `trainer.shard_ranks` there are several copies (hybrid sharding), each of which can: that is what
stream training needs on some GPUs while engines still generate on the others.

Parameters and AdamW's moments are float32, each rank's part of them. With `model_dtype=bfloat16` the passes compute in
bfloat16, on parameters that are rounded as they are gathered; gradients add up and are summed in float32.

**Gradients** are not summed over the ranks in `accumulate`: each rank keeps its own, whole and in float32, and `update`
sums them once, by a last pass of one token with a loss of 0, which is what makes FSDP2 reduce what it has accumulated.
That takes 4 bytes per parameter of the whole model on every rank: 28 GiB with 7.6 billion; as much host memory takes
`sleep` in the midst of a step, which sums nothing: other ranks may sleep already. With `trainer.shard_gradients` every
backward pass sums at once and keeps this rank's part: as many times less memory as there are ranks, and as many
reductions as there are passes.

Micro-batches are padded on the right, as with one process, for every architecture that transformers has. Packing
several responses into one row would need an attention that keeps them apart; the plain ones here do not.

A checkpoint is `model/`, a complete Hugging Face directory in float32 that rank 0 writes; `moments/`, AdamW's, a
torch.distributed.checkpoint to which every rank writes its part; and `fsdp.pt` with the rest. Nothing is stored twice,
and any number of ranks loads it.

One rank is a legal number, yet not the embedded trainer's implementation: see `rollpacker.trainers.torch_policy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from rollpacker.core.errors import ModelError
from rollpacker.protocols.tensors import are_finite
from rollpacker.trainers.adamw import clip_and_step, make_adamw, move
from rollpacker.trainers.checkpoints import (
    MODEL_FOLDER,
    State,
    read_state,
    require_same_model,
    require_same_reference,
    unreadable,
    write_state,
)
from rollpacker.trainers.fsdp.moments import read_moments, write_moments
from rollpacker.trainers.fsdp.sharding import (
    drop_gathered,
    fill,
    make_sharded_model,
    read_whole_model,
    sum_gradients_in_backward,
    unreduced_gradients,
    whole_tensors,
)
from rollpacker.trainers.giving_up import GivingUp
from rollpacker.trainers.host_memory import HostCopies
from rollpacker.trainers.microbatches import Sample, pack, pass_cost
from rollpacker.trainers.models import make_skeleton, save_model
from rollpacker.trainers.policy import Progress
from rollpacker.trainers.process_group import all_reduce, leave, on_rank_0, own_device
from rollpacker.trainers.scoring import score_microbatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from rollpacker.config.sections.trainer import TrainerSection
    from rollpacker.trainers.fsdp.sharding import WholeModel
    from rollpacker.trainers.microbatches import MicroBatch
    from rollpacker.trainers.policy import LossOf, Scores

STATE_FILE = "fsdp.pt"
MOMENTS_FOLDER = "moments"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FsdpState(State):
    """What `STATE_FILE` holds."""

    has_moments: bool
    """False before the first update."""


class FsdpPolicy:
    """Implements `rollpacker.trainers.policy.Policy`; each rank is a replica."""

    num_parts = 1
    part = 0
    is_reporter = True

    def __init__(
        self,
        model_path: Path,
        section: TrainerSection,
        *,
        model_dtype: str,
        temperature: float,
        seed: int,
        timeout_s: float,
    ) -> None:
        """Take this rank's part of the policy in a Hugging Face directory, whose weights only rank 0 reads.

        The process has joined the others' group; `timeout_s` is the deadline of every collective, as in `join`.
        `temperature` is that of the rollout. `seed` sets torch's global generator, which nothing draws from but a model
        whose own forward pass does.

        Raises:
            ModelError: The directory holds no such model; on all ranks.
        """
        torch.manual_seed(seed)
        self.device = own_device()
        self.rank = self.replica = dist.get_rank()
        self.num_replicas = dist.get_world_size()
        self.replicas_per_copy = section.shard_ranks or self.num_replicas
        self.pass_cost_tokens: int | None = pass_cost(self.device)
        self._mesh = _mesh(own_device(), self.num_replicas, self.replicas_per_copy, timeout_s)
        self._model_path = model_path
        self._section = section
        self._dtype: torch.dtype = getattr(torch, model_dtype)
        self._temperature = temperature
        whole = read_whole_model(model_path, with_checksum=section.kl_coefficient > 0)
        self._shapes = whole.shapes
        self._reference_checksum = whole.checksum
        self._model = self._make_model()
        self._reference: nn.Module | None = None
        if section.kl_coefficient > 0:
            self._reference = self._make_model().requires_grad_(False)
        fill(self._models(), whole, self.device)
        self._parameters = dict(self._model.named_parameters())
        self._optimizer = make_adamw(self._parameters.values(), section)
        self._has_unreduced = False
        self._giving_up = GivingUp(self.device)
        self._away = HostCopies()
        (self._idle,) = pack([_IDLE], 1, self.device)

    @torch.no_grad()
    def score(self, microbatches: Sequence[MicroBatch]) -> list[Scores]:
        return self._score_all(self._model, microbatches)

    @torch.no_grad()
    def score_reference(self, microbatches: Sequence[MicroBatch]) -> list[Tensor]:
        assert self._reference is not None, "a reference was asked for without kl_coefficient"
        return [scores.logprobs_N for scores in self._score_all(self._reference, microbatches)]

    def accumulate(self, microbatches: Sequence[MicroBatch], loss_of: LossOf) -> None:
        num_idle = self._num_passes(microbatches) - len(microbatches)
        sum_gradients_in_backward(self._model, is_wanted=self._section.shard_gradients)
        for microbatch in [*microbatches, *num_idle * [None]]:
            self._giving_up.check(self._copy)
            self._has_unreduced |= not self._section.shard_gradients
            if microbatch is None:
                self._pass_idly()
            else:
                self._backward(loss_of(microbatch, self._score(self._model, microbatch)))

    def give_up(self) -> None:
        self._giving_up.tell()

    def update(self, learning_rate: float, gradient_scale: float = 1.0) -> float:
        self._reduce_everywhere()
        norm = clip_and_step(self._optimizer, self._section.max_grad_norm, learning_rate, gradient_scale)
        if np.isfinite(norm):
            self.clear_gradients()
        return norm

    def is_finite(self) -> bool:
        own = (parameter.detach() for parameter in self._parameters.values())
        return are_finite(part.to_local() if isinstance(part, DTensor) else part for part in own)

    def clear_gradients(self) -> None:
        # What FSDP2 accumulated without reducing it is beyond zero_grad's reach.
        self._reduce()
        self._optimizer.zero_grad()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return whole_tensors(self._model, list(self._shapes), self._dtype)

    def all_reduce(self, values: Sequence[float], how: Literal["sum", "max"]) -> list[float]:
        return all_reduce(values, how, self.device)

    def save(self, folder: Path, progress: Progress) -> None:
        """Raises `StorageFailed`. Rank 0 holds the whole policy in host memory while it writes."""
        tensors: dict[str, Tensor] = {}
        for name, tensor in whole_tensors(self._model, list(self._shapes), torch.float32):
            if self.rank == 0:
                tensors[name] = tensor.to("cpu", copy=True)
        state = FsdpState(
            policy_version=progress.policy_version,
            generators=progress.generators,
            reference_checksum=self._reference_checksum,
            has_moments=bool(self._optimizer.state),
        )

        def write() -> None:
            save_model(make_skeleton(self._model_path), self._model_path, folder / MODEL_FOLDER, tensors)
            write_state(state, folder / STATE_FILE)

        on_rank_0(write)
        if state.has_moments:
            write_moments(self._optimizer, self._parameters, folder / MOMENTS_FOLDER)

    def load(self, folder: Path) -> Progress:
        self._reduce_everywhere()  # of a step that is dropped, even on one copy only
        state = on_rank_0(lambda: read_state(FsdpState, folder / STATE_FILE))
        whole = self._read_policy(folder / MODEL_FOLDER)
        require_same_reference(folder, state.reference_checksum, self._reference_checksum, self._model_path)
        moments = read_moments(self._parameters, folder / MOMENTS_FOLDER) if state.has_moments else {}
        fill([self._model], whole, self.device)
        self._optimizer.state.clear()
        for name, of_parameter in moments.items():
            self._optimizer.state[self._parameters[name]] = of_parameter
        return Progress(policy_version=state.policy_version, generators=state.generators)

    def sleep(self) -> None:
        self._away.take(unreduced_gradients(self._model))
        move(self._models(), self._optimizer, torch.device("cpu"))

    def wake(self) -> None:
        move(self._models(), self._optimizer, self.device)
        self._away.put_back()

    def close(self) -> None:
        leave()

    def _make_model(self) -> nn.Module:
        return make_sharded_model(
            self._model_path,
            self._mesh,
            self.device,
            is_bfloat16=self._dtype is torch.bfloat16,
            recomputes_activations=self._section.recompute_activations,
        )

    def _score(self, model: nn.Module, microbatch: MicroBatch) -> Scores:
        return score_microbatch(
            model,
            microbatch,
            self._temperature,
            self._section.logits_chunk_tokens,
            has_entropy_gradient=self._section.entropy_coefficient > 0,
        )

    def _score_all(self, model: nn.Module, microbatches: Sequence[MicroBatch]) -> list[Scores]:
        num_idle = self._num_passes(microbatches) - len(microbatches)
        scores: list[Scores] = []
        try:
            for microbatch in [*microbatches, *num_idle * [self._idle]]:
                self._giving_up.check(self._copy)
                scores.append(self._score(model, microbatch))
        finally:
            drop_gathered(model)
        return scores[: len(microbatches)]

    def _num_passes(self, microbatches: Sequence[MicroBatch]) -> int:
        """How many passes the ranks of this copy make: as many as the one with the most micro-batches."""
        return round(all_reduce([len(microbatches)], "max", self.device, self._copy)[0])

    @property
    def _copy(self) -> dist.ProcessGroup:
        """The ranks that pass together."""
        return self._mesh.get_group(self._mesh.ndim - 1)

    def _pass_idly(self) -> None:
        self._backward(self._score(self._model, self._idle).logprobs_N.sum() * 0)

    @staticmethod
    def _backward(loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward unannotated

    def _reduce_everywhere(self) -> None:
        """Sum over the ranks what each has accumulated, although some copies may have nothing."""
        if self.replicas_per_copy < self.num_replicas:
            self._has_unreduced = self.all_reduce([self._has_unreduced], "max") == [1.0]
        self._reduce()

    def _reduce(self) -> None:
        """Sum over the ranks what each has accumulated; all of them have, or none."""
        if self._has_unreduced:
            sum_gradients_in_backward(self._model, is_wanted=True)
            self._pass_idly()
            self._has_unreduced = False

    def _read_policy(self, folder: Path) -> WholeModel:
        try:
            whole = read_whole_model(folder)
        except ModelError as error:
            raise unreadable(f"The policy in {folder}", error) from error
        require_same_model(folder, whole.shapes, self._shapes, self._model_path)
        return whole

    def _models(self) -> list[nn.Module]:
        return [model for model in (self._model, self._reference) if model is not None]


def _mesh(device: torch.device, num_ranks: int, ranks_per_copy: int, timeout_s: float) -> DeviceMesh:
    """One dimension over the ranks that share parameters; before it, where there are several, one over the copies."""
    if ranks_per_copy == num_ranks:
        return init_device_mesh(device.type, (num_ranks,))
    mesh = torch.arange(num_ranks).view(-1, ranks_per_copy)
    timeout = timedelta(seconds=timeout_s)  # init_device_mesh gives torch's own, which may be shorter
    copies, _ = dist.new_subgroups_by_enumeration(mesh.T.tolist(), timeout=timeout)  # type: ignore[no-untyped-call]
    ranks, _ = dist.new_subgroups_by_enumeration(mesh.tolist(), timeout=timeout)  # type: ignore[no-untyped-call]
    return DeviceMesh.from_group([copies, ranks], device.type, mesh=mesh, mesh_dim_names=("copies", "ranks"))


_IDLE = Sample(
    prompt_token_ids=np.zeros(1, dtype=np.int32),
    response_token_ids=np.zeros(1, dtype=np.int32),
    behaviour_logprobs=np.zeros(1, dtype=np.float32),
    advantages_R=np.zeros(1, dtype=np.float32),
)
"""One token, for a pass that a rank makes only because the others do."""
