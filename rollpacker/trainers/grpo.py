"""The steps of a GRPO trainer over any policy: one process, FSDP2 or Megatron-core.

Invariant: the weights after a step are a function of the weights before it, the groups and their order. Each group is
trained once, on tokens of the policy versions that the step announced; anything else raises before it changes anything.

How `accumulate` treats its groups follows from the objective (`objective.py`):

* It **streams** with one optimizer update per step and a weight per token that is known in advance: forward and
  backward at once, nothing is kept. The gradient of a batch is the same in whatever split its groups come, to fp32
  rounding. That of a batch which turns out smaller than was announced is scaled to its size before the update.
* `loss_normalisation=token_mean` waits: the weight is known only when the last response is there, so groups are held
  and `complete_batch` trains them. The split then changes nothing at all.
* `num_minibatches > 1` waits as well, because every proximal log-probability must come from the policy before the first
  update: `accumulate` computes them at once (forward only), `complete_batch` cuts the batch into minibatches of whole
  groups in the order in which they came and trains the first; `finish_step` updates and goes on with the others. Each
  update is normalised over its own minibatch.
* An advantage of the whole batch waits likewise: `complete_batch` computes it from all rewards.

The reference's log-probabilities come from a pass of their own, before the one with gradients: the stages of a pipeline
cannot alternate between two models.

**Several ranks** are several trainers, each with its rank's policy, that get the same calls with the same groups. What
they decide (admission, minibatches, whose sample is whose) is a function of those, so they agree without communication
and raise the same errors, before any of them waits for another. Each passes its replica's samples, of those that are
not split among context-parallel ranks its own (`replicas.py`); what was observed is counted on one rank and summed over
all once, in `finish_step`, so all of them report the same metrics.

All work of a trainer runs on one thread of its own, in the order of the calls, so that the event loop stays free to
answer. Bit-equality holds on a CPU with an equal number of torch threads and ranks; the order of additions on
accelerators is not fixed.

Source: GRPO (arXiv 2402.03300), streaming as in the paper, section 4.4.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import torch

from rollpacker.core.errors import ForeignVersion, ImpossibleEvent, PolicyDiverged
from rollpacker.protocols.gpu_memory import gpu_memory_peak_gb, reset_gpu_memory_peak
from rollpacker.protocols.tensors import checksum_of_tensors, num_bytes_of_tensors
from rollpacker.protocols.trainer import UpdateMetrics
from rollpacker.protocols.weights import Weights
from rollpacker.trainers.admission import Admission
from rollpacker.trainers.checkpoints import generators, restore_generators
from rollpacker.trainers.giving_up import StepGivenUp
from rollpacker.trainers.microbatches import pack
from rollpacker.trainers.objective import Objective, Sums
from rollpacker.trainers.policy import Progress
from rollpacker.trainers.replicas import StepShares, replicas_on
from rollpacker.trainers.schedules import learning_rate
from rollpacker.trainers.surprisal import surprisal_z

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from torch import Tensor

    from rollpacker.config.sections.trainer import TrainerSection
    from rollpacker.protocols.rollout import RolloutGroup
    from rollpacker.protocols.trainer import BatchShape
    from rollpacker.trainers.microbatches import MicroBatch, Sample
    from rollpacker.trainers.policy import Policy, Scores

Result = TypeVar("Result")


@dataclass(slots=True, kw_only=True)
class _Step:
    """A step between `begin_step` and `finish_step`."""

    admission: Admission
    generators: tuple[Tensor, ...]
    """torch's, as the step found them."""
    shares: StepShares
    sums: Sums = field(default_factory=Sums)
    """Of what this rank has to count."""
    held: list[list[Sample]] = field(default_factory=list)
    """Groups that wait for the last one, in the order in which they came."""
    rewards: list[Sequence[float]] = field(default_factory=list)
    """Of the same groups."""
    minibatches: Sequence[Sequence[Sequence[Sample]]] = ()
    """Of a batch that is complete, all but the first."""


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
        self._objective = Objective(section)
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

    async def begin_step(self, shape: BatchShape) -> None:
        """Open a step; raises `ForeignVersion` unless the batch is announced with the version that is held."""
        await self._run(lambda: self._begin_step(shape))

    async def accumulate(self, groups: Sequence[RolloutGroup], gpus: Collection[int] | None = None) -> None:
        """Forward and backward for some groups of the batch; all of them are checked before the first is trained.

        Raises `ImpossibleEvent` when no replica, or none that can work without the others, lies on `gpus` alone.
        """
        await self._run(lambda: self._unless_given_up(lambda: self._accumulate(groups, gpus)))

    async def complete_batch(self, num_responses: int | None = None) -> None:
        """Make the passes of the first update that waited for the whole batch."""
        await self._run(lambda: self._unless_given_up(lambda: self._complete_batch(num_responses)))

    async def give_up_step(self) -> None:
        """Drop the open step before the next pass, and every later one."""
        self._policy.give_up()

    async def finish_step(self) -> UpdateMetrics:
        """Update and close the step. Loss and gradient norm of several updates are their means.

        Raises `PolicyDiverged`, on all ranks, where loss, gradient or a new weight is not finite: such weights
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
        self._step = _Step(
            admission=admission,
            generators=generators(),
            shares=StepShares(
                num_groups=shape.num_groups,
                num_minibatches=self._section.num_minibatches,
                num_replicas=self._policy.num_replicas,
                replica=self._policy.replica,
                num_parts=self._policy.num_parts,
                part=self._policy.part,
                whole_up_to=self._section.context_parallel_above or 0,
            ),
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
        shape = step.admission.shape
        samples = [self._objective.samples_of(group, shape) for group in groups]
        if self._objective.streams:
            self._train(step, [sample for group in samples for sample in group], replicas)
            return
        if self._section.num_minibatches > 1:
            samples = self._with_proximal(step, samples, replicas)
        step.held.extend(samples)
        step.rewards.extend(group.rewards for group in groups)

    def _unless_given_up(self, work: Callable[[], None]) -> None:
        """Work, or drop the step."""
        step = self._open_step()
        try:
            work()
        except StepGivenUp:
            restore_generators(step.generators)
            self._step = None

    def _complete_batch(self, num_responses: int | None) -> None:
        step = self._open_step()
        step.admission.close(num_responses)
        if not self._objective.streams:
            step.held = self._objective.with_batch_advantages(step.held, step.rewards)
            first, *rest = step.shares.minibatches(step.held)
            step.minibatches = rest
            self._train_minibatch(step, first)

    def _train_minibatch(self, step: _Step, groups: Sequence[Sequence[Sample]]) -> None:
        self._train(step, [sample for group in groups for sample in group], self._replicas_on(None))

    def _finish_step(self) -> UpdateMetrics:
        step = self._open_step()
        if not step.admission.is_closed:
            self._complete_batch(None)
        rate = learning_rate(self._section, step.admission.shape.step, self._num_steps)
        scale = step.admission.shape.num_responses / step.admission.num_responses if self._objective.streams else 1.0
        step.sums.loss *= scale
        grad_norms = [self._update(step, rate, scale)]
        for minibatch in step.minibatches:
            self._train_minibatch(step, minibatch)
            grad_norms.append(self._update(step, rate))
        sums = self._over_all_ranks(step.sums)
        if not math.isfinite(sums.loss):
            raise _diverged(step, f"its loss is {sums.loss}")
        (num_broken_ranks,) = self._policy.all_reduce([0.0 if self._policy.is_finite() else 1.0], "sum")
        if num_broken_ranks:
            raise _diverged(step, f"its update with a learning rate of {rate:g} made weights infinite or NaN")
        (peak_gb,) = self._policy.all_reduce([gpu_memory_peak_gb() or 0.0], "max")
        reset_gpu_memory_peak()
        self._policy_version += 1
        self._step = None
        num_tokens, has_correction = round(sums.num_tokens), self._objective.has_correction
        num_current, num_trained = round(sums.num_current), round(sums.num_trained)
        gap = sums.surprisal - sums.current_entropy
        return UpdateMetrics(
            policy_version=self._policy_version,
            loss=sums.loss / len(grad_norms),
            grad_norm=sum(grad_norms) / len(grad_norms),
            learning_rate=rate,
            clip_fraction=sums.num_clipped / num_trained if num_trained else None,
            kl_to_reference=sums.kl / num_trained if num_trained and self._objective.has_reference else None,
            entropy=sums.entropy / num_tokens,
            surprisal=sums.surprisal / num_current if num_current else None,
            surprisal_z=(surprisal_z(gap, sums.surprisal_squares, sums.surprisal_variance) if num_current else None),
            logprob_mismatch_max=sums.mismatch_max if num_current else None,
            logprob_mismatch_mean=sums.mismatch / num_current if num_current else None,
            mismatch_kl=sums.mismatch_kl / num_tokens,
            mismatch_weight_mean=sums.correction / num_tokens if has_correction else None,
            mismatch_weight_max=sums.correction_max if has_correction else None,
            mismatch_bounded_share=sums.num_bounded / num_tokens if has_correction else None,
            num_tokens=num_tokens,
            gpu_memory_peak_gb=peak_gb or None,
            effective_sample_share=sums.ratio**2 / (num_tokens * sums.ratio_squares),
            current_entropy=sums.current_entropy / num_current if num_current else None,
        )

    def _open_step(self) -> _Step:
        if self._step is None:
            raise ImpossibleEvent("No step is open", "accumulate and finish_step follow begin_step", "Call begin_step")
        return self._step

    def _replicas_on(self, gpus: Collection[int] | None) -> Sequence[int]:
        return replicas_on(gpus, self._policy, self._replica_gpus, self._section.name)

    def _with_proximal(
        self, step: _Step, groups: Sequence[list[Sample]], replicas: Sequence[int]
    ) -> list[list[Sample]]:
        """Add the log-probabilities of the policy as it is before the step's first update, and observe each token.

        Only to the samples of this rank, which is also the one that will train them.
        """
        samples = [sample for group in groups for sample in group]
        own = list(step.shares.rows(len(step.held), groups, replicas).items())
        microbatches = self._pack([sample for _, sample in own])
        for microbatch, scores in zip(microbatches, self._policy.score(microbatches), strict=True):
            self._objective.observe(self._sums(step, microbatch), microbatch, scores)
            proximals = torch.split(scores.logprobs_N, list(microbatch.num_tokens_B))
            for index, proximal_R in zip(microbatch.rows, proximals, strict=True):
                row, sample = own[index]
                samples[row] = dataclasses.replace(sample, proximal_logprobs_R=proximal_R)
        completed = iter(samples)
        return [[next(completed) for _ in group] for group in groups]

    def _train(self, step: _Step, samples: Sequence[Sample], replicas: Sequence[int]) -> None:
        """Add the gradient of samples of one update."""
        objective = self._objective
        divisors = objective.divisors(step.admission.shape, samples)
        if self._section.num_minibatches == 1:
            trained = step.shares.trained([sample for sample in samples if objective.has_gradient(sample)], replicas)
            silent = [sample for sample in samples if not objective.has_gradient(sample)]
            silent = step.shares.observed(silent, replicas)
        else:
            own = [sample for sample in samples if sample.proximal_logprobs_R is not None]
            trained, silent = [sample for sample in own if objective.has_gradient(sample)], []
        if self._policy.replica not in replicas:
            return  # its GPUs are the engines'
        microbatches = self._with_reference(self._pack(trained))

        def loss_of(microbatch: MicroBatch, scores: Scores) -> Tensor:
            sums = self._sums(step, microbatch)
            loss = objective.loss(sums, divisors, microbatch, scores)
            sums.loss += loss.item()
            return loss

        self._policy.accumulate(microbatches, loss_of)
        microbatches = self._pack(silent)
        for microbatch, scores in zip(microbatches, self._policy.score(microbatches), strict=True):
            objective.observe(self._sums(step, microbatch), microbatch, scores)

    def _sums(self, step: _Step, microbatch: MicroBatch) -> Sums:
        """Return where a micro-batch is counted; what another rank counts, too, goes nowhere."""
        policy = self._policy
        return step.sums if policy.is_reporter and (microbatch.is_whole or policy.part == 0) else Sums()

    def _with_reference(self, microbatches: list[MicroBatch]) -> list[MicroBatch]:
        if not self._objective.has_reference:
            return microbatches
        return [
            dataclasses.replace(microbatch, reference_N=reference_N)
            for microbatch, reference_N in zip(microbatches, self._policy.score_reference(microbatches), strict=True)
        ]

    def _update(self, step: _Step, rate: float, gradient_scale: float = 1.0) -> float:
        """Make an optimizer update; returns the gradient's norm before clipping."""
        norm = self._policy.update(rate, gradient_scale)
        if not math.isfinite(norm):
            raise _diverged(step, f"the norm of its gradient is {norm}")
        return norm

    def _over_all_ranks(self, own: Sums) -> Sums:
        """Sum what every rank has counted."""
        counted = dataclasses.asdict(own)
        largest = [name for name in counted if name.endswith("_max")]
        sums = [name for name in counted if name not in largest]
        found = self._policy.all_reduce([counted[name] for name in sums], "sum")
        found += self._policy.all_reduce([counted[name] for name in largest], "max")
        return Sums(**dict(zip([*sums, *largest], found, strict=True)))

    def _pack(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        policy, most_tokens = self._policy, self._section.max_tokens_per_microbatch
        return pack(samples, most_tokens, policy.device, policy.num_parts, policy.pass_cost_tokens)

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
