"""The objective and its step: GRPO over any policy, be it in one process, FSDP2's or Megatron-core's.

Invariant: the weights after a step are a function of the weights before it, the groups and their order. Each group is
trained once, on tokens of the policy version that the step announced; anything else raises before it changes anything.

How `accumulate` treats its groups follows from the objective:

* It **streams** with one optimizer update per step and a weight per token that is known in advance: forward and
  backward at once, nothing is kept. The gradient of a batch is the same in whatever split its groups come, to fp32
  rounding.
* `loss_normalisation=token_mean` waits: the weight is known only when the last response is there, so groups are held
  and `finish_step` trains them. The split then changes nothing at all.
* `num_minibatches > 1` waits as well, because every proximal log-probability must come from the policy before the first
  update: `accumulate` computes them at once (forward only), `finish_step` cuts the batch into minibatches of whole
  groups in the order in which they came and makes one update for each, normalised over its own minibatch.

A group whose rewards are all equal has advantage 0 and hence no policy gradient. It passes forward only, which saves
two thirds of its work and keeps the metrics over the whole batch; the constants of the normalisation count it. With a
KL penalty it has a gradient and is trained like any other. With `mask_truncated` a response that was cut passes forward
only, too, whatever its group's rewards are: over-long filtering. The reference's log-probabilities come from a pass of
their own, before the one with gradients: the stages of a pipeline cannot run two models in turns.

**Several ranks** are several trainers, each with its rank's policy, that get the same calls with the same groups. What
they decide (admission, minibatches, whose sample is whose) is a function of those, so they agree without a word and
raise alike, before any of them waits for another. Each passes its replica's samples; what was observed is summed over
the ranks once, in `finish_step`, so all of them report the same metrics.

All work of a trainer runs on one thread of its own, in the order of the calls, so that the event loop stays free to
answer. Bit-equality holds on a CPU with an equal number of torch threads and ranks; accelerators add in any order they
like.

Source: GRPO (arXiv 2402.03300), clip bounds and over-long filtering of DAPO (arXiv 2503.14476), streaming as in the
paper, section 4.4.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import torch

from rollpacker.core.errors import ForeignVersion, ImpossibleEvent, PolicyDiverged
from rollpacker.protocols.rollout import FinishReason
from rollpacker.protocols.tensors import checksum_of_tensors, num_bytes_of_tensors
from rollpacker.protocols.trainer import UpdateMetrics
from rollpacker.protocols.weights import Weights
from rollpacker.trainers.admission import Admission
from rollpacker.trainers.advantages import group_advantages
from rollpacker.trainers.checkpoints import generators, restore_generators
from rollpacker.trainers.losses import clipped_policy_loss, kl_k3, token_weight
from rollpacker.trainers.microbatches import Sample, pack
from rollpacker.trainers.policy import Progress
from rollpacker.trainers.replicas import Balance
from rollpacker.trainers.schedules import learning_rate

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from torch import Tensor

    from rollpacker.config.sections.trainer import TrainerSection
    from rollpacker.protocols.rollout import RolloutGroup
    from rollpacker.protocols.trainer import BatchShape
    from rollpacker.trainers.microbatches import MicroBatch
    from rollpacker.trainers.policy import Policy, Scores

Result = TypeVar("Result")


@dataclass(slots=True, kw_only=True)
class _Sums:
    """Sums over the response tokens that passed on this rank so far; each token is observed once per step."""

    num_tokens: int = 0
    entropy: float = 0.0
    mismatch: float = 0.0
    mismatch_max: float = 0.0
    kl: float = 0.0
    num_clipped: int = 0
    loss: float = 0.0
    """Of the updates that are done."""


@dataclass(slots=True, kw_only=True)
class _Step:
    """A step between `begin_step` and `finish_step`."""

    admission: Admission
    generators: tuple[Tensor, ...]
    """torch's, as the step found them."""
    trained: list[Balance]
    """Of each minibatch: whose samples are trained."""
    observed: Balance
    """Whose samples pass forward only."""
    sums: _Sums = field(default_factory=_Sums)
    loss: float = 0.0
    """Of the update that is being accumulated."""
    held: list[list[Sample]] = field(default_factory=list)
    """Groups that wait for `finish_step`, in the order in which they came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Divisors:
    """What the loss of an update is divided by."""

    num_responses: int
    max_response_tokens: int
    num_tokens: int | None
    """Response tokens of the update that are not masked; None while it streams."""


class GrpoTrainer:
    """Implements `rollpacker.protocols.trainer.TensorTrainer`."""

    def __init__(
        self,
        policy: Policy,
        section: TrainerSection,
        *,
        num_steps: int,
        replica_gpus: Sequence[Collection[int]] = (),
    ) -> None:
        """Train a policy over `num_steps`, which span the learning-rate schedule.

        `replica_gpus` are the GPUs of each replica of several, for `accumulate` on some of them.
        """
        self._policy = policy
        self._section = section
        self._num_steps = num_steps
        self._replica_gpus = replica_gpus
        self._policy_version = 0
        self._step: _Step | None = None
        self._is_asleep = False
        self._has_stale_gradients = False
        """What a step left, which began while this rank slept: they are cleared when it wakes."""
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer")

    @property
    def policy_version(self) -> int:
        """The number of finished steps."""
        return self._policy_version

    @property
    def _streams(self) -> bool:
        return self._section.num_minibatches == 1 and self._section.loss_normalisation != "token_mean"

    @property
    def _has_reference(self) -> bool:
        return self._section.kl_coefficient > 0

    async def begin_step(self, shape: BatchShape) -> None:
        """Open a step; raises `ForeignVersion` unless the batch is announced with the version that is held."""
        await self._run(lambda: self._begin_step(shape))

    async def accumulate(self, groups: Sequence[RolloutGroup], gpus: Collection[int] | None = None) -> None:
        """Forward and backward for some groups of the batch; all of them are checked before the first is trained.

        Raises `ImpossibleEvent` when no replica, or none that can work without the others, lies on `gpus` alone.
        """
        await self._run(lambda: self._accumulate(groups, gpus))

    async def finish_step(self) -> UpdateMetrics:
        """Update and close the step. Loss and gradient norm of several updates are their means.

        Raises `PolicyDiverged`, on all ranks alike, where loss, gradient or a new weight is not finite: such weights
        reach neither an engine nor a checkpoint.
        """
        return await self._run(self._finish_step)

    async def export_weights(self) -> Weights:
        """Copy the policy to CPU tensors in the model's dtype; later updates do not change them.

        Of several ranks only rank 0 has them; the payload of the others is empty.
        """
        return await self._run(self._export_weights)

    async def with_weights(self, use: Callable[[Iterator[tuple[str, Tensor]]], Result]) -> Result:
        """Let `use` take the policy tensor by tensor, on the trainer's thread, while all ranks take part."""
        return await self._run(lambda: self._with_weights(use))

    async def sleep(self) -> None:
        await self._run(self._sleep)

    async def wake(self, gpus: Collection[int] | None = None) -> None:
        """Wake, if this rank's replica lies on `gpus`; raises `ImpossibleEvent` as `accumulate` does."""
        await self._run(lambda: self._wake(gpus))

    async def save(self, folder: Path) -> None:
        """Write what `load` restores, with a complete Hugging Face directory in `model/`, into an existing folder.

        An open step is left out: nothing but gradients and the generators has changed before its update.
        """
        await self._run(lambda: self._save(folder))

    async def load(self, folder: Path) -> None:
        """Restore what `save` wrote, dropping an open step. Raises `CheckpointError` and changes nothing."""
        await self._run(lambda: self._load(folder))

    async def close(self) -> None:
        """Finish the call that runs, and take no other."""
        await asyncio.to_thread(self._close)

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _close(self) -> None:
        self._executor.shutdown()
        self._policy.close()

    def _begin_step(self, shape: BatchShape) -> None:
        if self._step is not None:
            raise ImpossibleEvent(
                f"Step {shape.step} began while step {self._step.admission.shape.step} was open",
                "One step at a time",
                "Call finish_step first",
            )
        if shape.policy_version != self._policy_version:
            raise ForeignVersion(
                f"Step {shape.step} announced tokens of policy version {shape.policy_version}",
                f"The trainer holds version {self._policy_version}",
                "Send its weights to the engines before the rollout",
            )
        admission = Admission(shape)
        if self._is_asleep:
            self._has_stale_gradients = True
        else:
            self._policy.clear_gradients()
        num_replicas = self._policy.num_replicas
        self._step = _Step(
            admission=admission,
            generators=generators(),
            trained=[Balance(num_replicas) for _ in range(self._num_minibatches(shape))],
            observed=Balance(num_replicas),
        )

    def _sleep(self) -> None:
        self._policy.sleep()
        self._is_asleep = True

    def _wake(self, gpus: Collection[int] | None) -> None:
        if self._policy.replica not in self._replicas_on(gpus):
            return
        self._policy.wake()
        self._is_asleep = False
        if self._has_stale_gradients:
            self._policy.clear_gradients()
            self._has_stale_gradients = False

    def _accumulate(self, groups: Sequence[RolloutGroup], gpus: Collection[int] | None) -> None:
        step = self._open_step()
        replicas = self._replicas_on(gpus)
        step.admission.admit(groups)
        samples = [self._samples_of(group) for group in groups]
        if self._streams:
            self._train(step, [sample for group in samples for sample in group], replicas)
            return
        if self._section.num_minibatches > 1:
            samples = self._with_proximal(step, samples, replicas)
        step.held.extend(samples)

    def _finish_step(self) -> UpdateMetrics:
        step = self._open_step()
        step.admission.require_complete()
        rate = learning_rate(self._section, step.admission.shape.step, self._num_steps)
        grad_norms: list[float] = []
        if self._streams:
            grad_norms.append(self._update(step, rate))
        else:
            for minibatch in self._minibatches(step):
                self._train(step, minibatch, self._replicas_on(None))
                grad_norms.append(self._update(step, rate))
        sums = self._over_all_ranks(step.sums)
        if not math.isfinite(sums.loss):
            raise _diverged(step, f"its loss is {sums.loss}")
        (num_broken_ranks,) = self._policy.all_reduce([0.0 if self._policy.is_finite() else 1.0], "sum")
        if num_broken_ranks:
            raise _diverged(step, f"its update with a learning rate of {rate:g} made weights infinite or NaN")
        self._policy_version += 1
        self._step = None
        return UpdateMetrics(
            policy_version=self._policy_version,
            loss=sums.loss / len(grad_norms),
            grad_norm=sum(grad_norms) / len(grad_norms),
            learning_rate=rate,
            clip_fraction=sums.num_clipped / sums.num_tokens,
            kl_to_reference=sums.kl / sums.num_tokens if self._has_reference else None,
            entropy=sums.entropy / sums.num_tokens,
            logprob_mismatch_max=sums.mismatch_max,
            logprob_mismatch_mean=sums.mismatch / sums.num_tokens,
            num_tokens=sums.num_tokens,
        )

    def _open_step(self) -> _Step:
        if self._step is None:
            raise ImpossibleEvent("No step is open", "accumulate and finish_step follow begin_step", "Call begin_step")
        return self._step

    def _replicas_on(self, gpus: Collection[int] | None) -> Sequence[int]:
        """Which replicas work: those with all their GPUs among these, and all of them for None."""
        everyone = range(self._policy.num_replicas)
        if gpus is None or len(everyone) == 1:
            return everyone
        chosen = [replica for replica, own in enumerate(self._replica_gpus) if set(own) <= set(gpus)]
        if not chosen:
            raise ImpossibleEvent(
                f"Groups were to be trained on GPUs {sorted(gpus)}",
                f"The replicas lie on {[sorted(own) for own in self._replica_gpus]}, and each works as a whole",
            )
        size = self._policy.replicas_per_copy
        if len(chosen) < len({replica // size for replica in chosen}) * size:
            raise ImpossibleEvent(
                f"Groups were to be trained on {len(chosen)} of {len(everyone)} replicas",
                f"With trainer.name={self._section.name} every pass needs the parameters of {size} neighbouring ranks",
                "Set trainer.shard_ranks, or choose trainer=megatron",
            )
        return chosen

    def _samples_of(self, group: RolloutGroup) -> list[Sample]:
        advantages_R = group_advantages(group.rewards, self._section.advantage)
        return [
            Sample(
                prompt_token_ids=group.prompt_token_ids,
                response_token_ids=response.token_ids,
                behaviour_logprobs=response.logprobs,
                advantage=float(advantage),
                is_masked=self._section.mask_truncated and response.finish_reason is FinishReason.LENGTH,
            )
            for response, advantage in zip(group.responses, advantages_R, strict=True)
        ]

    def _num_minibatches(self, shape: BatchShape) -> int:
        """A small last batch has fewer."""
        return min(self._section.num_minibatches, shape.num_groups)

    def _bounds(self, shape: BatchShape) -> list[int]:
        """Where the minibatches of a batch begin and end, as equal in groups as they can be."""
        num_parts = self._num_minibatches(shape)
        return [part * shape.num_groups // num_parts for part in range(num_parts + 1)]

    def _minibatches(self, step: _Step) -> list[list[Sample]]:
        """Cut the held groups into consecutive parts."""
        return [
            [sample for group in step.held[start:end] for sample in group]
            for start, end in itertools.pairwise(self._bounds(step.admission.shape))
        ]

    def _with_proximal(
        self, step: _Step, groups: Sequence[list[Sample]], replicas: Sequence[int]
    ) -> list[list[Sample]]:
        """Add the log-probabilities of the policy as it is before the step's first update, and observe each token.

        Only to the samples of this rank's replica, which is also the one that will train them.
        """
        samples = [sample for group in groups for sample in group]
        own = self._rows_of_minibatches(step, groups, replicas)
        microbatches = self._pack([samples[row] for row in own])
        for microbatch, scores in zip(microbatches, self._policy.score(microbatches), strict=True):
            self._observe(step.sums, microbatch, scores)
            proximals = torch.split(scores.logprobs_N, list(microbatch.num_tokens_B))
            for row, proximal_R in zip(microbatch.rows, proximals, strict=True):
                samples[own[row]] = dataclasses.replace(samples[own[row]], proximal_logprobs_R=proximal_R)
        completed = iter(samples)
        return [[next(completed) for _ in group] for group in groups]

    def _rows_of_minibatches(self, step: _Step, groups: Sequence[list[Sample]], replicas: Sequence[int]) -> list[int]:
        """Share groups that come now, each minibatch in itself; returns the rows of this rank's replica."""
        bounds = self._bounds(step.admission.shape)
        rows_of: list[list[int]] = [[] for _ in step.trained]
        row = 0
        for index, group in enumerate(groups, start=len(step.held)):
            minibatch = next(part for part, end in enumerate(bounds[1:]) if index < end)
            rows_of[minibatch].extend(range(row, row + len(group)))
            row += len(group)
        samples = [sample for group in groups for sample in group]
        return sorted(
            rows[index]
            for rows, balance in zip(rows_of, step.trained, strict=True)
            for index in self._share(balance, [samples[row] for row in rows], replicas)
        )

    def _share(self, balance: Balance, samples: Sequence[Sample], replicas: Sequence[int]) -> list[int]:
        """The indices of the samples that are this rank's replica's."""
        assigned = balance.assign([sample.num_inputs for sample in samples], replicas)
        return [index for index, replica in enumerate(assigned) if replica == self._policy.replica]

    def _train(self, step: _Step, samples: Sequence[Sample], replicas: Sequence[int]) -> None:
        """Add the gradient of samples of one update. Tokens without proximal log-probabilities are observed, too."""
        shape = step.admission.shape
        is_whole_batch = self._section.num_minibatches == 1
        divisors = _Divisors(
            num_responses=shape.num_responses if is_whole_batch else len(samples),
            max_response_tokens=shape.max_response_tokens,
            num_tokens=(
                None
                if self._streams
                else sum(len(sample.response_token_ids) for sample in samples if not sample.is_masked)
            ),
        )
        if is_whole_batch:
            (balance,) = step.trained
            trained = [sample for sample in samples if self._has_gradient(sample)]
            silent = [sample for sample in samples if not self._has_gradient(sample)]
            trained = [trained[index] for index in self._share(balance, trained, replicas)]
            silent = [silent[index] for index in self._share(step.observed, silent, replicas)]
        else:
            own = [sample for sample in samples if sample.proximal_logprobs_R is not None]
            trained, silent = [sample for sample in own if self._has_gradient(sample)], []
        if self._policy.replica not in replicas:
            return  # its GPUs are the engines'
        microbatches = self._with_reference(self._pack(trained))
        self._policy.accumulate(microbatches, lambda microbatch, scores: self._loss(step, divisors, microbatch, scores))
        microbatches = self._pack(silent)
        for microbatch, scores in zip(microbatches, self._policy.score(microbatches), strict=True):
            self._observe(step.sums, microbatch, scores)

    def _has_gradient(self, sample: Sample) -> bool:
        return not sample.is_masked and (sample.advantage != 0 or self._has_reference)

    def _with_reference(self, microbatches: list[MicroBatch]) -> list[MicroBatch]:
        if not self._has_reference:
            return microbatches
        return [
            dataclasses.replace(microbatch, reference_N=reference_N)
            for microbatch, reference_N in zip(microbatches, self._policy.score_reference(microbatches), strict=True)
        ]

    def _loss(self, step: _Step, divisors: _Divisors, microbatch: MicroBatch, scores: Scores) -> Tensor:
        current_N = scores.logprobs_N
        if microbatch.proximal_N is None:
            self._observe(step.sums, microbatch, scores)
            proximal_N = current_N.detach()
        else:
            proximal_N = microbatch.proximal_N
        loss_N, is_clipped_N = clipped_policy_loss(
            current_N, proximal_N, microbatch.advantages_N, self._section.clip_ratio_low, self._section.clip_ratio_high
        )
        step.sums.num_clipped += int(is_clipped_N.sum())
        if microbatch.reference_N is not None:
            kl_N = kl_k3(current_N, microbatch.reference_N)
            step.sums.kl += float(kl_N.detach().double().sum())
            loss_N = loss_N + self._section.kl_coefficient * kl_N
        weights_B = [
            token_weight(
                self._section.loss_normalisation,
                num_tokens=num_tokens,
                num_responses=divisors.num_responses,
                max_response_tokens=divisors.max_response_tokens,
                num_batch_tokens=divisors.num_tokens,
            )
            for num_tokens in microbatch.num_tokens_B
        ]
        weights_N = torch.tensor(weights_B, device=loss_N.device).repeat_interleave(
            torch.tensor(microbatch.num_tokens_B, device=loss_N.device)
        )
        loss = (weights_N * loss_N).sum()
        step.loss += loss.item()
        return loss

    def _update(self, step: _Step, rate: float) -> float:
        """Make an optimizer update; returns the gradient's norm before clipping."""
        norm = self._policy.update(rate)
        if not math.isfinite(norm):
            raise _diverged(step, f"the norm of its gradient is {norm}")
        step.sums.loss += step.loss
        step.loss = 0.0
        return norm

    @staticmethod
    def _observe(sums: _Sums, microbatch: MicroBatch, scores: Scores) -> None:
        logprobs_N = scores.logprobs_N.detach()
        mismatch_N = (logprobs_N - microbatch.behaviour_N).abs().double()
        sums.num_tokens += len(logprobs_N)
        sums.entropy += float(scores.entropies_N.double().sum())
        sums.mismatch += float(mismatch_N.sum())
        # Not max(): it would drop a NaN, the worst mismatch of all.
        sums.mismatch_max = float(mismatch_N.new_tensor([sums.mismatch_max, float(mismatch_N.max())]).max())

    def _over_all_ranks(self, own: _Sums) -> _Sums:
        """Sum what the replicas' reporters counted."""
        counted = own if self._policy.is_reporter else _Sums()
        num_tokens, entropy, mismatch, kl, num_clipped, loss = self._policy.all_reduce(
            [counted.num_tokens, counted.entropy, counted.mismatch, counted.kl, counted.num_clipped, counted.loss],
            "sum",
        )
        (mismatch_max,) = self._policy.all_reduce([counted.mismatch_max], "max")
        return _Sums(
            num_tokens=round(num_tokens),
            entropy=entropy,
            mismatch=mismatch,
            mismatch_max=mismatch_max,
            kl=kl,
            num_clipped=round(num_clipped),
            loss=loss,
        )

    def _pack(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        return pack(samples, self._section.max_tokens_per_microbatch, self._policy.device)

    def _with_weights(self, use: Callable[[Iterator[tuple[str, Tensor]]], Result]) -> Result:
        tensors = self._policy.weights()
        try:
            return use(tensors)
        finally:
            # The other ranks wait for this one at every tensor, also at those that `use` has no use for.
            for _ in tensors:
                pass

    def _export_weights(self) -> Weights:
        tensors: dict[str, Tensor] = {}
        if self._policy.rank == 0:
            tensors = self._with_weights(
                lambda named: {name: tensor.detach().to("cpu", copy=True) for name, tensor in named}
            )
        else:
            self._with_weights(lambda _: None)
        return Weights(
            policy_version=self._policy_version,
            checksum=checksum_of_tensors(tensors),
            num_bytes=num_bytes_of_tensors(tensors),
            payload=tensors,
        )

    def _save(self, folder: Path) -> None:
        found = generators() if self._step is None else self._step.generators
        self._policy.save(folder, Progress(policy_version=self._policy_version, generators=found))

    def _load(self, folder: Path) -> None:
        progress = self._policy.load(folder)
        restore_generators(progress.generators)
        self._policy_version = progress.policy_version
        self._step = None


def _diverged(step: _Step, what: str) -> PolicyDiverged:
    return PolicyDiverged(
        f"Training diverged in step {step.admission.shape.step}: {what}.",
        "Loss, gradient and weights are finite numbers; nothing of this step was published or saved.",
        "Lower trainer.learning_rate or trainer.max_grad_norm.",
    )
