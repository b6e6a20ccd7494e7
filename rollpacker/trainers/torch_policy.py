"""The policy in one process and on one device, with nothing beyond torch and transformers.

Invariant: parameters, gradients and AdamW's moments are float32. With `model_dtype=bfloat16` the forward pass runs
under autocast and `weights` rounds: small updates then add up in the master weights instead of being rounded away.

A checkpoint is `model/`, a complete Hugging Face directory in float32, and `trainer.pt` with everything else.

FSDP2 with one rank gives the same weights bit for bit (float32, on a CPU), so this could have been its one-rank case.
It is not, because that costs: a step takes 1.4 times the processor time with 2 layers of width 64 and 1.3 times with
4 layers of width 128 (128 responses, one CPU thread), spent in hooks and distributed tensors; and the run that a new
user starts first would need a process group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from rollpacker.core.errors import ModelError
from rollpacker.protocols.tensors import are_finite, checksum_of_tensors, named_tensors
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
from rollpacker.trainers.giving_up import GivingUp
from rollpacker.trainers.microbatches import pass_cost
from rollpacker.trainers.models import load_model, recompute_activations, save_model
from rollpacker.trainers.policy import Progress
from rollpacker.trainers.scoring import score_microbatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from rollpacker.config.sections.trainer import TrainerSection
    from rollpacker.trainers.microbatches import MicroBatch
    from rollpacker.trainers.policy import LossOf, Scores

STATE_FILE = "trainer.pt"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TorchState(State):
    """What `STATE_FILE` holds."""

    optimizer: dict[str, dict[str, Tensor]]
    """By parameter name; empty before the first update."""


class TorchPolicy:
    """Implements `rollpacker.trainers.policy.Policy` as the only rank of the only replica."""

    rank = 0
    replica = 0
    num_replicas = 1
    replicas_per_copy = 1
    num_parts = 1
    part = 0
    is_reporter = True

    def __init__(
        self, model_path: Path, section: TrainerSection, *, model_dtype: str, temperature: float, seed: int
    ) -> None:
        """Load the policy from a Hugging Face directory; raises `ModelError`.

        `temperature` is that of the rollout. `seed` sets torch's global generator, which nothing draws from but a
        model whose own forward pass does.
        """
        torch.manual_seed(seed)
        self._model_path = model_path
        self._section = section
        self._dtype: torch.dtype = getattr(torch, model_dtype)
        self._temperature = temperature
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.pass_cost_tokens: int | None = pass_cost(self.device)
        self._model = load_model(model_path).to(self.device)
        if section.recompute_activations:
            recompute_activations(self._model)
        self._reference: torch.nn.Module | None = None
        self._reference_checksum: str | None = None
        if section.kl_coefficient > 0:
            self._reference = load_model(model_path).to(self.device).requires_grad_(False)
            self._reference_checksum = checksum_of_tensors(named_tensors(self._reference))
        self._parameters = dict(self._model.named_parameters())
        self._optimizer = make_adamw(self._parameters.values(), section)
        self._giving_up = GivingUp(self.device)

    @torch.no_grad()
    def score(self, microbatches: Sequence[MicroBatch]) -> list[Scores]:
        return [self._score(self._model, microbatch) for microbatch in microbatches]

    @torch.no_grad()
    def score_reference(self, microbatches: Sequence[MicroBatch]) -> list[Tensor]:
        return [self._score(self._reference, microbatch).logprobs_N for microbatch in microbatches]

    def accumulate(self, microbatches: Sequence[MicroBatch], loss_of: LossOf) -> None:
        for microbatch in microbatches:
            loss = loss_of(microbatch, self._score(self._model, microbatch))
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward unannotated

    def give_up(self) -> None:
        self._giving_up.tell()

    def update(self, learning_rate: float, gradient_scale: float = 1.0) -> float:
        norm = clip_and_step(self._optimizer, self._section.max_grad_norm, learning_rate, gradient_scale)
        if math.isfinite(norm):
            self.clear_gradients()
        return norm

    def is_finite(self) -> bool:
        return are_finite(parameter.detach() for parameter in self._parameters.values())

    def clear_gradients(self) -> None:
        self._optimizer.zero_grad()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in named_tensors(self._model).items():
            yield name, tensor.detach().to(self._dtype if tensor.is_floating_point() else tensor.dtype)

    def all_reduce(self, values: Sequence[float], how: Literal["sum", "max"]) -> list[float]:  # noqa: ARG002 one rank
        return list(values)

    def save(self, folder: Path, progress: Progress) -> None:
        """Raises `StorageFailed`."""
        save_model(self._model, self._model_path, folder / MODEL_FOLDER)
        state = TorchState(
            policy_version=progress.policy_version,
            generators=progress.generators,
            reference_checksum=self._reference_checksum,
            optimizer={
                name: dict(self._optimizer.state[parameter])
                for name, parameter in self._parameters.items()
                if parameter in self._optimizer.state
            },
        )
        write_state(state, folder / STATE_FILE)

    def load(self, folder: Path) -> Progress:
        state = read_state(TorchState, folder / STATE_FILE)
        tensors = self._read_policy(folder / MODEL_FOLDER)
        require_same_reference(folder, state.reference_checksum, self._reference_checksum, self._model_path)
        for name, tensor in named_tensors(self._model).items():
            tensor.copy_(tensors[name])
        self._optimizer.load_state_dict(
            {
                "state": {
                    index: state.optimizer[name]
                    for index, name in enumerate(self._parameters)
                    if name in state.optimizer
                },
                "param_groups": self._optimizer.state_dict()["param_groups"],
            }
        )
        return Progress(policy_version=state.policy_version, generators=state.generators)

    def sleep(self) -> None:
        move(self._models(), self._optimizer, torch.device("cpu"))

    def wake(self) -> None:
        move(self._models(), self._optimizer, self.device)

    def close(self) -> None:
        """There are no other ranks."""

    def _models(self) -> list[torch.nn.Module]:
        return [model for model in (self._model, self._reference) if model is not None]

    def _score(self, model: torch.nn.Module | None, microbatch: MicroBatch) -> Scores:
        self._giving_up.check()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._dtype is torch.bfloat16):
            return score_microbatch(
                model,
                microbatch,
                self._temperature,
                self._section.logits_chunk_tokens,
                has_entropy_gradient=self._section.entropy_coefficient > 0,
            )

    def _read_policy(self, folder: Path) -> dict[str, Tensor]:
        try:
            tensors = named_tensors(load_model(folder))
        except ModelError as error:
            raise unreadable(f"The policy in {folder}", error) from error
        own = {name: tensor.shape for name, tensor in named_tensors(self._model).items()}
        require_same_model(folder, {name: tensor.shape for name, tensor in tensors.items()}, own, self._model_path)
        return tensors
