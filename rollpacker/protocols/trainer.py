"""The trainer: it updates the policy from accepted groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    import torch

    from rollpacker.protocols.rollout import RolloutGroup
    from rollpacker.protocols.weights import Weights

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRank:
    """One process of a trainer of several. All of them are made at once and get the same calls (SPMD)."""

    rank: int
    """From 0."""
    num_ranks: int
    rendezvous: str
    """The address and port on which rank 0 opens a store for all of them, such as `10.0.0.1:29500`."""
    replica_gpus: tuple[tuple[int, ...], ...] = ()
    """The run's GPUs of each data-parallel replica, as `accumulate` names them; empty where it never does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """What a trainer must know of a batch before its first group, so that groups may stream in.

    The loss is a sum over samples divided by a constant from here; nothing else of the batch may enter it
    (paper, section 4.4: that is what makes a streamed step equal the unstreamed one). A batch that turns out smaller
    has another constant: the sum is scaled once, at the end.
    """

    step: int
    """The pipeline step; learning-rate schedules advance with it."""
    policy_version: int
    """That of the trainer. Every token of the batch carries it, or one back to `oldest_policy_version`."""
    oldest_policy_version: int
    """The same as `policy_version` unless stale tokens are trained (`system.max_staleness`)."""
    num_groups: int
    num_responses: int
    """Of the whole batch; `complete_batch` may say that it has fewer."""
    max_response_tokens: int
    keeps_cache: bool = False
    """Whether what an earlier step began was continued over the cache of its version: then no policy alone gives the
    log-probabilities of its tokens, and only those of responses that this step began are held against the trainer's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetrics:
    """What one training step did."""

    policy_version: int
    """The version after the update."""
    loss: float | None
    """None when modelled, as every number below that only real tensors give."""
    grad_norm: float | None
    """Before clipping."""
    learning_rate: float | None
    clip_fraction: float | None
    """Share of the tokens that had a gradient whose ratio was clipped; None where no token had one."""
    kl_to_reference: float | None
    """Mean over the same tokens, estimator k3, nats; None without a reference, too."""
    entropy: float | None
    """Of the policy's distribution, nats: mean per sampled token of the batch, left out of the loss or not."""
    surprisal: float | None
    """Mean of minus the engine's log-probability of the tokens that the trainer's own version sampled, nats; as large
    as their entropy if the policy drew them. None where all tokens are stale, as the next three."""
    surprisal_z: float | None
    """Their difference in standard deviations of chance; exact where nothing selected the responses
    (`rollpacker.trainers.surprisal`)."""
    logprob_mismatch_max: float | None
    """Largest absolute difference per token between the engine's log-probability and the trainer's forward pass, of the
    same tokens: a wrong weight synchronisation cannot hide behind the age of others."""
    logprob_mismatch_mean: float | None
    mismatch_kl: float | None
    """Mean per token, stale ones too, of KL(what sampled it || trainer), estimator k3, nats."""
    mismatch_weight_mean: float | None
    """Of what multiplies the policy loss of a token; None without `trainer.mismatch`, as the next two."""
    mismatch_weight_max: float | None
    mismatch_bounded_share: float | None
    """Share of tokens whose weight was cut to the bound, or to 0."""
    num_tokens: int
    """Tokens of the batch that a policy sampled."""
    gpu_memory_peak_gb: float | None = None
    """Most that a rank held of its GPU since the step before, 1e9 bytes; None without a GPU."""
    effective_sample_share: float | None = None
    """(SUM w)^2 / (n SUM w^2) over the n tokens of `entropy`, w being the ratio of a token's probabilities, trainer to
    engine, at most e^20 and at least e^-20: what is left of the batch as a sample of the policy. 1 where they agree."""
    current_entropy: float | None = None
    """Mean over the tokens of `surprisal`, nats: what it is held against. `entropy` counts stale tokens, too."""


class Trainer(Protocol):
    """Holds the policy, its optimizer and its schedule.

    A step is: `begin_step`, any number of `accumulate`, `complete_batch`, `finish_step`. The first of `accumulate` may
    come while the step's rollout still runs (paper, section 4.4).
    """

    async def begin_step(self, shape: BatchShape) -> None: ...

    async def accumulate(self, groups: Sequence[RolloutGroup], gpus: Collection[int] | None = None) -> None:
        """Forward and backward for some groups of the batch, gradients not yet summed over the replicas.

        Args:
            groups: Not accumulated in this step before.
            gpus: Only the replicas on these work, because the others still generate; None: all replicas.

        Raises:
            ForeignVersion: A token is of another policy version than the step trains.
        """

    async def complete_batch(self, num_responses: int | None = None) -> None:
        """Say that all groups are there: what waited for the last one passes now, as far as the step's first update.

        Raises `ImpossibleEvent` unless the whole batch was accumulated.

        Args:
            num_responses: Of the whole batch, at least one and no more than announced; None: as announced. Loss and
                gradient become those of a batch that was announced with so many.
        """

    async def give_up_step(self) -> None:
        """End the `accumulate` or `complete_batch` that runs, soon, and train no more: `save` shall not wait for it.

        Only `sleep`, `wake`, `save` and `close` may follow: the run leaves.
        """

    async def finish_step(self) -> UpdateMetrics:
        """Clip, update, advance the schedule. A batch that was not completed is, as it was announced."""

    async def export_weights(self) -> Weights: ...

    async def sleep(self) -> None:
        """Free the accelerator for the engines that share it: parameters, gradients and optimizer move to host memory.

        A step may be open; what was accumulated is kept.
        """

    async def wake(self, gpus: Collection[int] | None = None) -> None:
        """Take the accelerator back; before the next `accumulate`, `finish_step`, `export_weights` or `save`.

        One that is awake stays so. With `gpus` only the replicas on these wake, which are lent by engines; then only
        `begin_step` and `accumulate` on the same GPUs may follow, until all are awake.
        """

    async def save(self, folder: Path) -> None:
        """Write model, optimizer, schedule and generator states into an existing folder.

        While a step is open, as they were when it began: the run leaves, and a later attempt repeats the step.
        """

    async def load(self, folder: Path) -> None:
        """Restore exactly what `save` wrote."""

    async def close(self) -> None: ...


class TensorTrainer(Trainer, Protocol):
    """A trainer in this process, whose policy is tensors; of several ranks, one of them."""

    @property
    def policy_version(self) -> int: ...

    async def with_weights(self, use: Callable[[Iterator[tuple[str, torch.Tensor]]], Result]) -> Result:
        """Run `use` on the trainer's thread and return what it returns; all ranks take part.

        The tensors are whole, in the model's dtype, under their Hugging Face names, ascending, tied ones once; every
        rank gets them. Each is valid until the next one, and read-only. Those that `use` leaves are skipped.
        """
