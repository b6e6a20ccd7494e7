"""The embedded trainer: GRPO with AdamW on one device, with nothing beyond torch and transformers.

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
KL penalty it has a gradient and is trained like any other.

Parameters, gradients and AdamW's moments are float32. With `model_dtype=bfloat16` the forward pass runs under autocast
and `export_weights` rounds: small updates then add up in the master weights instead of being rounded away.

All work of a trainer runs on one thread of its own, in the order of the calls, so that the event loop stays free to
answer. Bit-equality holds on a CPU with an equal number of torch threads; accelerators add in any order they like.

Source: GRPO (arXiv 2402.03300), clip bounds of DAPO (arXiv 2503.14476), streaming as in the paper, section 4.4.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from rollpacker.core.errors import CheckpointError, EngineFailed, ForeignVersion, ImpossibleEvent, ModelError
from rollpacker.protocols.tensors import checksum_of_tensors, named_tensors, num_bytes_of_tensors
from rollpacker.protocols.trainer import UpdateMetrics
from rollpacker.protocols.weights import Weights
from rollpacker.trainers.admission import Admission
from rollpacker.trainers.advantages import group_advantages
from rollpacker.trainers.checkpoints import MODEL_FOLDER, TrainerState, read_state, write_state
from rollpacker.trainers.losses import clipped_policy_loss, kl_k3, score_tokens, token_weight
from rollpacker.trainers.microbatches import Sample, pack
from rollpacker.trainers.models import load_model, save_model
from rollpacker.trainers.schedules import learning_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from torch import Tensor

    from rollpacker.config.schema import TrainerSection
    from rollpacker.protocols.rollout import RolloutGroup
    from rollpacker.protocols.trainer import BatchShape
    from rollpacker.trainers.microbatches import MicroBatch

Result = TypeVar("Result")


@dataclass(slots=True, kw_only=True)
class _Sums:
    """Sums over the response tokens that passed so far; each token is observed once per step."""

    num_tokens: int = 0
    entropy: float = 0.0
    mismatch: float = 0.0
    mismatch_max: float = 0.0
    kl: float = 0.0
    num_clipped: int = 0


@dataclass(slots=True, kw_only=True)
class _Step:
    """A step between `begin_step` and `finish_step`."""

    admission: Admission
    generators: tuple[Tensor, ...]
    """torch's, as the step found them."""
    sums: _Sums = field(default_factory=_Sums)
    loss: float = 0.0
    """Of the update that is being accumulated."""
    held: list[list[Sample]] = field(default_factory=list)
    """Groups that wait for `finish_step`, in the order in which they came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Update:
    """What one optimizer update did."""

    loss: float
    grad_norm: float


class TorchTrainer:
    """Implements `rollpacker.protocols.trainer.Trainer`. `policy_version` is the number of finished steps."""

    def __init__(  # noqa: PLR0917  # one call site, the actor that builds it
        self,
        model_path: Path,
        section: TrainerSection,
        model_dtype: str,
        num_steps: int,
        temperature: float,
        seed: int,
    ) -> None:
        """Load the policy from a Hugging Face directory; raises `ModelError`.

        `num_steps` spans the learning-rate schedule, `temperature` is that of the rollout. `seed` sets torch's global
        generator, which nothing draws from but a model whose own forward pass does.
        """
        torch.manual_seed(seed)
        self._model_path = model_path
        self._section = section
        self._dtype: torch.dtype = getattr(torch, model_dtype)
        self._num_steps = num_steps
        self._temperature = temperature
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = load_model(model_path).to(self._device)
        self._reference: torch.nn.Module | None = None
        if section.kl_coefficient > 0:
            self._reference = load_model(model_path).to(self._device).requires_grad_(False)
        self._parameters = dict(self._model.named_parameters())
        for parameter in self._parameters.values():
            # AdamW skips a parameter without a gradient. A batch without any signal must still be an update.
            parameter.grad = torch.zeros_like(parameter)
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(),
            lr=section.learning_rate,
            betas=section.adam_betas,
            weight_decay=section.weight_decay,
            fused=True,
        )
        self._policy_version = 0
        self._step: _Step | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer")

    @property
    def _streams(self) -> bool:
        return self._section.num_minibatches == 1 and self._section.loss_normalisation != "token_mean"

    async def begin_step(self, shape: BatchShape) -> None:
        """Open a step; raises `ForeignVersion` unless the batch is announced with the version that is held."""
        await self._run(lambda: self._begin_step(shape))

    async def accumulate(self, groups: Sequence[RolloutGroup], gpus: Collection[int] | None = None) -> None:  # noqa: ARG002 one replica
        """Forward and backward for some groups of the batch; all of them are checked before the first is trained."""
        await self._run(lambda: self._accumulate(groups))

    async def finish_step(self) -> UpdateMetrics:
        """Update and close the step. Loss and gradient norm of several updates are their means."""
        return await self._run(self._finish_step)

    async def export_weights(self) -> Weights:
        """Copy the policy to CPU tensors in the model's dtype; later updates do not change them."""
        return await self._run(self._export_weights)

    async def save(self, folder: Path) -> None:
        """Write `model/`, a complete Hugging Face directory in float32, and `trainer.pt` into an existing folder.

        An open step is left out: nothing but gradients and the generators has changed before its update.
        """
        await self._run(lambda: self._save(folder))

    async def load(self, folder: Path) -> None:
        """Restore what `save` wrote, dropping an open step. Raises `CheckpointError` and changes nothing."""
        await self._run(lambda: self._load(folder))

    async def close(self) -> None:
        """Finish the call that runs, and take no other."""
        await asyncio.to_thread(self._executor.shutdown)

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

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
        self._optimizer.zero_grad(set_to_none=False)
        self._step = _Step(admission=Admission(shape), generators=_generators())

    def _accumulate(self, groups: Sequence[RolloutGroup]) -> None:
        step = self._open_step()
        step.admission.admit(groups)
        samples = [self._samples_of(group) for group in groups]
        if self._streams:
            self._train(step, [sample for group in samples for sample in group])
            return
        if self._section.num_minibatches > 1:
            samples = self._with_proximal(step, samples)
        step.held.extend(samples)

    def _finish_step(self) -> UpdateMetrics:
        step = self._open_step()
        step.admission.require_complete()
        rate = learning_rate(self._section, step.admission.shape.step, self._num_steps)
        updates: list[_Update] = []
        if self._streams:
            updates.append(self._update(step, rate))
        else:
            for minibatch in self._minibatches(step):
                self._train(step, minibatch)
                updates.append(self._update(step, rate))
        self._policy_version += 1
        self._step = None
        sums = step.sums
        return UpdateMetrics(
            policy_version=self._policy_version,
            loss=sum(update.loss for update in updates) / len(updates),
            grad_norm=sum(update.grad_norm for update in updates) / len(updates),
            learning_rate=rate,
            clip_fraction=sums.num_clipped / sums.num_tokens,
            kl_to_reference=None if self._reference is None else sums.kl / sums.num_tokens,
            entropy=sums.entropy / sums.num_tokens,
            logprob_mismatch_max=sums.mismatch_max,
            logprob_mismatch_mean=sums.mismatch / sums.num_tokens,
            num_tokens=sums.num_tokens,
        )

    def _open_step(self) -> _Step:
        if self._step is None:
            raise ImpossibleEvent("No step is open", "accumulate and finish_step follow begin_step", "Call begin_step")
        return self._step

    def _samples_of(self, group: RolloutGroup) -> list[Sample]:
        advantages_R = group_advantages(group.rewards, self._section.advantage)
        return [
            Sample(
                prompt_token_ids=group.prompt_token_ids,
                response_token_ids=response.token_ids,
                behaviour_logprobs=response.logprobs,
                advantage=float(advantage),
            )
            for response, advantage in zip(group.responses, advantages_R, strict=True)
        ]

    def _minibatches(self, step: _Step) -> list[list[Sample]]:
        """Cut the held groups into consecutive parts, as equal as they can be; a small last batch gives fewer."""
        num_groups, num_parts = len(step.held), min(self._section.num_minibatches, len(step.held))
        bounds = [part * num_groups // num_parts for part in range(num_parts + 1)]
        return [
            [sample for group in step.held[start:end] for sample in group] for start, end in itertools.pairwise(bounds)
        ]

    def _with_proximal(self, step: _Step, groups: list[list[Sample]]) -> list[list[Sample]]:
        """Add the log-probabilities of the policy as it is before the step's first update, and observe each token."""
        samples = [sample for group in groups for sample in group]
        proximal: dict[int, Tensor] = {}
        for microbatch in self._pack(samples):
            logprobs_N = self._observe(step, microbatch)
            proximal.update(zip(microbatch.rows, torch.split(logprobs_N, list(microbatch.num_tokens_B)), strict=True))
        completed = iter(
            dataclasses.replace(sample, proximal_logprobs_R=proximal[row]) for row, sample in enumerate(samples)
        )
        return [[next(completed) for _ in group] for group in groups]

    def _train(self, step: _Step, samples: Sequence[Sample]) -> None:
        """Add the gradient of samples of one update. Tokens without proximal log-probabilities are observed, too."""
        shape = step.admission.shape
        is_whole_batch = self._section.num_minibatches == 1
        num_responses = shape.num_responses if is_whole_batch else len(samples)
        num_batch_tokens = None if self._streams else sum(len(sample.response_token_ids) for sample in samples)
        has_gradient = [sample.advantage != 0 or self._reference is not None for sample in samples]
        for microbatch in self._pack([sample for sample, has in zip(samples, has_gradient, strict=True) if has]):
            weights_B = [
                token_weight(
                    self._section.loss_normalisation,
                    num_tokens=num_tokens,
                    num_responses=num_responses,
                    max_response_tokens=shape.max_response_tokens,
                    num_batch_tokens=num_batch_tokens,
                )
                for num_tokens in microbatch.num_tokens_B
            ]
            self._backward(step, microbatch, weights_B)
        if is_whole_batch:
            for microbatch in self._pack([s for s, has in zip(samples, has_gradient, strict=True) if not has]):
                self._observe(step, microbatch)

    def _backward(self, step: _Step, microbatch: MicroBatch, weights_B: Sequence[float]) -> None:
        current_N, entropies_N = self._score(self._model, microbatch)
        if microbatch.proximal_N is None:
            self._add_to_sums(step.sums, microbatch, current_N.detach(), entropies_N)
            proximal_N = current_N.detach()
        else:
            proximal_N = microbatch.proximal_N
        loss_N, is_clipped_N = clipped_policy_loss(
            current_N, proximal_N, microbatch.advantages_N, self._section.clip_ratio_low, self._section.clip_ratio_high
        )
        step.sums.num_clipped += int(is_clipped_N.sum())
        if self._reference is not None:
            with torch.no_grad():
                reference_N, _ = self._score(self._reference, microbatch)
            kl_N = kl_k3(current_N, reference_N)
            step.sums.kl += float(kl_N.detach().double().sum())
            loss_N = loss_N + self._section.kl_coefficient * kl_N
        weights_N = torch.tensor(weights_B, device=self._device).repeat_interleave(
            torch.tensor(microbatch.num_tokens_B, device=self._device)
        )
        loss = (weights_N * loss_N).sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward unannotated
        step.loss += loss.item()

    def _update(self, step: _Step, rate: float) -> _Update:
        """Clip, step and clear the gradient. Raises before it changes a weight when the gradient is not finite."""
        gradients = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if not norm.isfinite():
            raise EngineFailed(
                f"The gradient of step {step.admission.shape.step} is not finite: its norm is {norm.item()}",
                "A finite gradient; the weights have not been changed by it",
                "Lower trainer.learning_rate and resume from the last checkpoint",
            )
        torch.nn.utils.clip_grads_with_norm_(self._parameters.values(), self._section.max_grad_norm, norm)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)
        update = _Update(loss=step.loss, grad_norm=norm.item())
        step.loss = 0.0
        return update

    @torch.no_grad()
    def _observe(self, step: _Step, microbatch: MicroBatch) -> Tensor:
        """Pass forward only; returns the log-probabilities, [N]."""
        logprobs_N, entropies_N = self._score(self._model, microbatch)
        self._add_to_sums(step.sums, microbatch, logprobs_N, entropies_N)
        return logprobs_N

    def _add_to_sums(self, sums: _Sums, microbatch: MicroBatch, logprobs_N: Tensor, entropies_N: Tensor) -> None:
        mismatch_N = (logprobs_N - microbatch.behaviour_N).abs().double()
        sums.num_tokens += len(logprobs_N)
        sums.entropy += float(entropies_N.double().sum())
        sums.mismatch += float(mismatch_N.sum())
        # Not max(): it would drop a NaN, the worst mismatch of all.
        sums.mismatch_max = float(mismatch_N.new_tensor([sums.mismatch_max, float(mismatch_N.max())]).max())

    def _pack(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        return pack(samples, self._section.max_tokens_per_microbatch, self._device)

    def _score(self, model: Any, microbatch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies of the response tokens, both [N]."""
        num_scored = microbatch.num_scored
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._dtype is torch.bfloat16):
            output = model(input_ids=microbatch.input_ids_BT, use_cache=False, logits_to_keep=num_scored)
        # The few architectures that ignore logits_to_keep return all T positions.
        logits_BKV = output.logits[:, -num_scored:]
        logprobs_BK, entropies_BK = score_tokens(logits_BKV, microbatch.target_ids_BK, self._temperature)
        return logprobs_BK[microbatch.is_response_BK], entropies_BK[microbatch.is_response_BK]

    def _export_weights(self) -> Weights:
        tensors = {
            name: tensor.detach().to("cpu", self._dtype if tensor.is_floating_point() else tensor.dtype, copy=True)
            for name, tensor in named_tensors(self._model).items()
        }
        return Weights(
            policy_version=self._policy_version,
            checksum=checksum_of_tensors(tensors),
            num_bytes=num_bytes_of_tensors(tensors),
            payload=tensors,
        )

    def _save(self, folder: Path) -> None:
        save_model(self._model, self._model_path, folder / MODEL_FOLDER)
        state = TrainerState(
            policy_version=self._policy_version,
            optimizer={
                name: dict(self._optimizer.state[parameter])
                for name, parameter in self._parameters.items()
                if parameter in self._optimizer.state
            },
            generators=_generators() if self._step is None else self._step.generators,
            reference_checksum=self._reference_checksum(),
        )
        write_state(state, folder)

    def _load(self, folder: Path) -> None:
        state = read_state(folder)
        tensors = self._read_policy(folder / MODEL_FOLDER)
        checksums = {state.reference_checksum, self._reference_checksum()} - {None}
        if len(checksums) > 1:
            raise CheckpointError(
                f"{folder} was trained against another reference policy than the one in {self._model_path}",
                "The KL penalty is measured against the policy that the run began with",
                "Set model.path to the model that the run began with",
            )
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
        torch.set_rng_state(state.generators[0])
        if len(state.generators) - 1 == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(list(state.generators[1:]))
        self._policy_version = state.policy_version
        self._step = None

    def _read_policy(self, folder: Path) -> dict[str, Tensor]:
        try:
            tensors = named_tensors(load_model(folder))
        except ModelError as error:
            raise CheckpointError(
                f"The policy in {folder} cannot be loaded: {error.problem}",
                "A checkpoint that this trainer wrote",
                "Remove the checkpoint to resume from an older one",
            ) from error
        own = {name: tensor.shape for name, tensor in named_tensors(self._model).items()}
        if own != {name: tensor.shape for name, tensor in tensors.items()}:
            raise CheckpointError(
                f"The policy in {folder} has other tensors than the one in {self._model_path}",
                "A checkpoint continues the model that the run began with",
                "Set model.path to the model that the run began with, or choose another run.dir",
            )
        return tensors

    def _reference_checksum(self) -> str | None:
        return None if self._reference is None else checksum_of_tensors(named_tensors(self._reference))


def _generators() -> tuple[Tensor, ...]:
    """Torch's own: the CPU's, then each accelerator's."""
    return torch.get_rng_state(), *torch.cuda.get_rng_state_all()
