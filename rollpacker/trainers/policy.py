"""The model that a trainer trains, behind one protocol: in one process, under FSDP2 or under Megatron-core.

A policy is one rank's part of the model. All ranks make the same calls in the same order with the same groups in view
(SPMD); what differs is the samples of their replica. A **replica** is a set of ranks that work on the same
micro-batches; replicas share the batch among them and sum their gradients once, in `update`. Its context-parallel ranks
are its **parts**: they share the sequences of a micro-batch, or have micro-batches of whole sequences of their own.

Invariant: `accumulate` may be called any number of times between two updates, and gradients add up over calls, ranks
and replicas as if one process had made all of them; nothing waits for another replica's gradient before `update`
(paper, section 4.4: what streams early must not wait for the others).

Shapes: N response tokens of the rows of a micro-batch, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import Tensor

    from rollpacker.trainers.microbatches import MicroBatch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """The result of a forward pass for a micro-batch's response tokens."""

    logprobs_N: Tensor
    """Of the tokens under the softmax of logits / temperature, float32."""
    entropies_N: Tensor
    """Of the positions' distributions, nats; with gradient where `trainer.entropy_coefficient` asks for it."""
    variances_N: Tensor
    """Of the log-probability of a token that is drawn from them, nats squared, without gradient."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Progress:
    """Where training stands, beside the model and its optimizer."""

    policy_version: int
    """Finished steps."""
    generators: tuple[Tensor, ...]
    """torch's own, as `checkpoints.generators` gives them. A checkpoint keeps those of rank 0."""


LossOf = Callable[["MicroBatch", Scores], "Tensor"]
"""The loss of a micro-batch, a scalar; called once per micro-batch on every rank that holds the output layer."""


class Policy(Protocol):
    """One rank's part of the model, its gradients and its optimizer."""

    device: torch.device
    """Where micro-batches are expected."""
    rank: int
    """Among all ranks, from 0."""
    replica: int
    """Which replica this rank belongs to, from 0."""
    num_replicas: int
    replicas_per_copy: int
    """How many neighbouring replicas hold one copy of the model among them, so that they pass only together. 1 where
    each has its own and can accumulate without the others."""
    num_parts: int
    """Of each replica; 1 without context parallelism."""
    part: int
    """Which one this rank belongs to, from 0."""
    pass_cost_tokens: int | None
    """What one more pass costs beside its positions, counted in positions; padding is weighed against it. None where
    rows are not padded. The same on all ranks."""
    is_reporter: bool
    """True on one rank of each part, which holds the output layer. It counts what was observed: of the micro-batches
    that all parts share, only on the first."""

    def score(self, microbatches: Sequence[MicroBatch]) -> list[Scores]:
        """Pass forward only. On ranks without the output layer the scores are zeros."""

    def score_reference(self, microbatches: Sequence[MicroBatch]) -> list[Tensor]:
        """The log-probabilities, [N] each, under the frozen policy that the run began with."""

    def accumulate(self, microbatches: Sequence[MicroBatch], loss_of: LossOf) -> None:
        """Forward and backward; gradients are added to those that are there. Empty on a replica without work.

        The replicas of one copy call it together, as they do `score` and `score_reference`.
        """

    def give_up(self) -> None:
        """From any thread: end the call that passes, and any later one, with `StepGivenUp` before its next pass.

        The ranks that pass together end it before the same one, although they are told one after the other; of a
        pipeline, whose stages alternate, it runs to its end. Weights and optimizer are as before the step.
        """

    def update(self, learning_rate: float, gradient_scale: float = 1.0) -> float:
        """Sum gradients over the replicas, scale, clip, step, clear; returns the gradient's norm before clipping.

        A norm that is not finite is returned as it is, and no weight was changed. The same on all ranks.
        """

    def is_finite(self) -> bool:
        """Whether all weights of this rank are finite numbers; the ranks may differ."""

    def clear_gradients(self) -> None: ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full tensors of the policy under their Hugging Face names, ascending, tied ones once, in the model's dtype.

        A collective: every rank exhausts it. Each tensor is good until the next one, and read only.
        """

    def all_reduce(self, values: Sequence[float], how: Literal["sum", "max"]) -> list[float]:
        """Sum or maximum of each number over all ranks, in double precision; NaN wins a maximum."""

    def save(self, folder: Path, progress: Progress) -> None:
        """Write model, optimizer and progress into an existing folder that all ranks see. A collective."""

    def load(self, folder: Path) -> Progress:
        """Restore exactly what `save` wrote, under any layout of ranks. A collective.

        Raises:
            CheckpointError: The folder does not hold such a checkpoint; nothing was changed.
        """

    def sleep(self) -> None:
        """Move everything that lives on the accelerator to host memory."""

    def wake(self) -> None:
        """Move it back."""

    def close(self) -> None:
        """Leave the other ranks."""
