"""A policy that Megatron-core shards over ranks: tensor, pipeline and context parallel, with replicas of the whole.

Ranks stand in Megatron-core's order: tensor-parallel ranks next to each other, then context parallel, then replicas,
then pipeline stages. A replica is all ranks with the same place among the replicas; it takes its micro-batches through
Megatron-core's 1F1B schedule and waits for no other replica before `update`.

Invariants:

* Gradients are sums: over micro-batches, over calls of `accumulate`, over context-parallel parts, over replicas.
  Nothing is reduced over replicas before `update`, and then once.
* Every tensor- and context-parallel rank of the last stage sees the same scores of a micro-batch whose sequences are
  split. So the loss is the same on all of them, and each follows it back through what it computed itself. A micro-batch
  of whole sequences is that of one context-parallel rank, as if the rank were a replica. (Megatron-core 0.16.1 has
  `hybrid_context_parallel` for this, which needs Transformer Engine, knows no pipeline, and has all replicas wait for
  each other within a call.)
* With `model_dtype=bfloat16` weights and activations are bfloat16; gradients, main weights and moments are float32 and
  shared out over the replicas. Small updates add up in the main weights.
* No wait is endless: every collective of every group of ranks has the longest deadline of the trainer's calls.

Shapes: N response tokens of a micro-batch, n those that this rank scores.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.mappings import reduce_from_tensor_model_parallel_region
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from rollpacker.core.errors import ModelError
from rollpacker.protocols.tensors import RunningChecksum, are_finite
from rollpacker.trainers.checkpoints import (
    MODEL_FOLDER,
    read_state,
    require_same_reference,
    unreadable,
    write_state,
)
from rollpacker.trainers.giving_up import GivingUp, StepGivenUp
from rollpacker.trainers.host_memory import HostCopies
from rollpacker.trainers.megatron import cpu_shim
from rollpacker.trainers.megatron.architecture import read_architecture, transformer_config
from rollpacker.trainers.megatron.checkpoint import (
    STATE_FILE,
    MegatronState,
    read_moments,
    write_model,
    write_moments,
)
from rollpacker.trainers.megatron.model import ScoringModel
from rollpacker.trainers.megatron.optimizer import ShardedAdamW
from rollpacker.trainers.megatron.packing import pack_rows
from rollpacker.trainers.megatron.weight_files import check_weights, full_tensors, read_parameters
from rollpacker.trainers.microbatches import pass_cost
from rollpacker.trainers.policy import Progress, Scores
from rollpacker.trainers.process_group import all_reduce, leave, on_rank_0, own_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from rollpacker.config.sections.trainer import TrainerSection
    from rollpacker.trainers.megatron.architecture import Architecture
    from rollpacker.trainers.megatron.packing import PackedRows
    from rollpacker.trainers.microbatches import MicroBatch
    from rollpacker.trainers.policy import LossOf


class MegatronPolicy:
    """Implements `rollpacker.trainers.policy.Policy`."""

    replicas_per_copy = 1

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
        """Load this rank's part of a Hugging Face directory; the ranks have met (`process_group.join`).

        There are as many as `section` says, and its degrees divide the model (`rollpacker.data.degrees`).
        `timeout_s` is the deadline of every collective, as in `join`. `seed` sets torch's generators, which nothing
        draws from.

        Raises:
            ConfigError: Transformer Engine or Apex is installed.
            ModelError: The directory holds no model that Megatron-core computes as transformers does.
        """
        cpu_shim.apply()
        dtype: torch.dtype = getattr(torch, model_dtype)
        architecture = read_architecture(model_path)
        config = transformer_config(architecture, section, dtype)
        self.device = own_device()
        # Rows are not padded, so few full passes are best; but of p stages each idles for (p - 1) / m of m passes.
        self.pass_cost_tokens = None if section.pipeline_parallel == 1 else pass_cost(self.device)
        _split_ranks(section, timeout_s)
        torch.manual_seed(seed)
        model_parallel_cuda_manual_seed(seed)
        self._model_path = model_path
        self._architecture = architecture
        make = functools.partial(
            ScoringModel,
            architecture,
            config,
            temperature=temperature,
            chunk_tokens=section.logits_chunk_tokens,
            has_entropy_gradient=section.entropy_coefficient > 0,
        )
        self._model = make()
        self._reference: ScoringModel | None = None
        self._reference_checksum: str | None = None
        if section.kl_coefficient > 0:
            self._reference = make()
            self._reference.own.requires_grad_(requires_grad=False)
            own = self._reference.parameters()
            for name, values in read_parameters(self._reference.own, architecture, model_path):
                own[name].copy_(values)
            self._reference_checksum = _checksum(self._reference, architecture)
        # Without overlap nothing is reduced during a backward pass: only `update` knows which call was the last.
        buffers = DistributedDataParallelConfig(
            use_distributed_optimizer=True, overlap_grad_reduce=False, grad_reduce_in_fp32=True
        )
        self._gradients = DistributedDataParallel(config, buffers, self._model.own)
        self._optimizer = ShardedAdamW(self._gradients, section, dtype)
        self._read_weights(model_path)
        self._away = HostCopies()
        self._giving_up = GivingUp(self.device)
        self.rank = dist.get_rank()
        self.replica: int = parallel_state.get_data_parallel_rank()
        self.num_replicas: int = parallel_state.get_data_parallel_world_size()
        self._has_output: bool = parallel_state.is_pipeline_last_stage()
        self.num_parts: int = parallel_state.get_context_parallel_world_size()
        self.part: int = parallel_state.get_context_parallel_rank()
        self.is_reporter = self._has_output and parallel_state.get_tensor_model_parallel_rank() == 0
        self.clear_gradients()

    def score(self, microbatches: Sequence[MicroBatch]) -> list[Scores]:
        return self._pass_forward(self._model, microbatches)

    def score_reference(self, microbatches: Sequence[MicroBatch]) -> list[Tensor]:
        assert self._reference is not None, "there is a reference where there is a KL penalty"
        return [scores.logprobs_N for scores in self._pass_forward(self._reference, microbatches)]

    def accumulate(self, microbatches: Sequence[MicroBatch], loss_of: LossOf) -> None:
        self._run_schedule(self._model, microbatches, lambda microbatch, scores: (loss_of(microbatch, scores), None))

    def give_up(self) -> None:
        self._giving_up.tell()

    def update(self, learning_rate: float, gradient_scale: float = 1.0) -> float:
        finalize_model_grads([self._gradients])
        if gradient_scale != 1:
            self._gradients.scale_gradients(gradient_scale)
        norm = self._optimizer.update(learning_rate)
        self.clear_gradients()
        return norm

    def is_finite(self) -> bool:
        return are_finite(self._model.parameters().values())

    def clear_gradients(self) -> None:
        self._gradients.zero_grad_buffer()
        self._optimizer.clear_gradients()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return full_tensors(self._model.parameters(), self._architecture)

    def all_reduce(self, values: Sequence[float], how: Literal["sum", "max"]) -> list[float]:
        return all_reduce(values, how, self.device)

    def save(self, folder: Path, progress: Progress) -> None:
        """Raises `StorageFailed`, on all ranks. While the policy sleeps it is written from host memory."""
        weights = self._optimizer.gather("param", self._away)
        write_model(weights, self._architecture, self._model_path, folder / MODEL_FOLDER)
        write_moments(self._optimizer, self._model.own, self._away, folder)
        state = MegatronState(
            policy_version=progress.policy_version,
            generators=progress.generators,
            reference_checksum=self._reference_checksum,
            num_updates=self._optimizer.num_updates,
        )
        on_rank_0(lambda: write_state(state, folder / STATE_FILE))

    def load(self, folder: Path) -> Progress:
        self.wake()
        state = read_state(MegatronState, folder / STATE_FILE)
        require_same_reference(folder, state.reference_checksum, self._reference_checksum, self._model_path)
        try:
            check_weights(folder / MODEL_FOLDER, self._architecture)
        except ModelError as error:
            raise unreadable(f"The policy in {folder}", error) from error
        moments = read_moments(self._model.own, folder)
        self._read_weights(folder / MODEL_FOLDER)
        for moment, values in moments.items():
            for name, tensor in values.items():
                self._optimizer.take_moment(moment, name, tensor)
        self._optimizer.take_num_updates(state.num_updates)
        self.clear_gradients()
        return Progress(policy_version=state.policy_version, generators=state.generators)

    def sleep(self) -> None:
        if not self._away.is_away:
            self._away.take(self._tensors())
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def wake(self) -> None:
        self._away.put_back()

    def close(self) -> None:
        parallel_state.destroy_model_parallel()
        leave()

    def _read_weights(self, model_path: Path) -> None:
        """Fill parameters and main weights, the latter with what a smaller dtype would round away."""
        own = self._model.parameters()
        for name, values in read_parameters(self._model.own, self._architecture, model_path):
            own[name].copy_(values)
            self._optimizer.take_main_weights(name, values)

    def _tensors(self) -> Iterator[Tensor]:
        """All that lives on the accelerator between two calls."""
        for buffer in self._gradients.buffers:
            yield buffer.grad_data
            yield buffer.param_data
        yield from self._optimizer.tensors()
        yield from self._model.own.parameters()
        if self._reference is not None:
            yield from self._reference.own.parameters()

    def _pass_forward(self, model: ScoringModel, microbatches: Sequence[MicroBatch]) -> list[Scores]:
        nothing = torch.zeros((), device=self.device)
        with torch.no_grad():
            scored = self._run_schedule(model, microbatches, lambda _, scores: (nothing, scores), is_forward_only=True)
        if self._has_output:
            return scored
        zeros = [torch.zeros(sum(microbatch.num_tokens_B), device=self.device) for microbatch in microbatches]
        return [Scores(logprobs_N=zeros_N, entropies_N=zeros_N, variances_N=zeros_N) for zeros_N in zeros]

    def _run_schedule(
        self,
        model: ScoringModel,
        microbatches: Sequence[MicroBatch],
        use: Callable[[MicroBatch, Scores], tuple[Tensor, Any]],
        *,
        is_forward_only: bool = False,
    ) -> list[Any]:
        """Take micro-batches through all stages; returns what `use` gave beside its loss, on the last stage."""
        no_tokens = torch.zeros((), dtype=torch.int, device=self.device)

        def forward(remaining: Iterator[MicroBatch], wrapped: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
            microbatch = next(remaining)
            self._check_step(ends_alone=microbatch.is_whole)
            rows = pack_rows(microbatch, *((1, 0) if microbatch.is_whole else (self.num_parts, self.part)))

            def finish(output: Tensor) -> tuple[Tensor, Tensor, Any]:
                own = model.scores(output, rows)
                scores = Scores(
                    logprobs_N=self._of_all_parts(own.logprobs_N, microbatch, rows),
                    entropies_N=self._of_all_parts(own.entropies_N, microbatch, rows),
                    variances_N=self._of_all_parts(own.variances_N, microbatch, rows),
                )
                loss, kept = use(microbatch, scores)
                return loss, no_tokens, kept

            return model.forward(wrapped, rows), finish

        kept: list[Any] = []
        with contextlib.suppress(StepGivenUp):  # of one part's own micro-batches
            if microbatches:
                kept = get_forward_backward_func()(
                    forward_step_func=forward,
                    data_iterator=iter(microbatches),
                    model=[model.own if is_forward_only else self._gradients],
                    num_microbatches=len(microbatches),
                    # Stages tell each other the shape of every micro-batch.
                    seq_length=1,
                    micro_batch_size=1,
                    forward_only=is_forward_only,
                )
        self._check_step()
        return kept

    def _check_step(self, *, ends_alone: bool = False) -> None:
        """Raise `StepGivenUp`, where one rank was told, on all that pass next.

        Those are the tensor-parallel ranks of all context-parallel parts, or of one that `ends_alone`: it has as many
        passes of its own as no other, and meets the others after the last one. Stages of a pipeline alternate, so what
        they have begun they end.
        """
        if parallel_state.get_pipeline_model_parallel_world_size() == 1:
            self._giving_up.check(
                parallel_state.get_tensor_model_parallel_group()
                if ends_alone
                else parallel_state.get_tensor_and_context_parallel_group()
            )

    @staticmethod
    def _of_all_parts(values_n: Tensor, microbatch: MicroBatch, rows: PackedRows) -> Tensor:
        """Gather the values of all context-parallel parts; the gradient goes to each part's own."""
        group = parallel_state.get_context_parallel_group()
        if microbatch.is_whole or group.size() == 1:
            return values_n
        own_N = values_n.new_zeros(sum(microbatch.num_tokens_B)).index_copy(0, rows.tokens_n, values_n)
        # Megatron-core's name for it: sum forward, pass the gradient as it is.
        summed: Tensor = reduce_from_tensor_model_parallel_region(own_N, group=group)
        return summed


def _checksum(model: ScoringModel, architecture: Architecture) -> str:
    """Over the whole model. A collective."""
    running = RunningChecksum()
    for name, tensor in full_tensors(model.parameters(), architecture):
        if dist.get_rank() == 0:
            running.add(name, tensor)
    return on_rank_0(running.digest)


def _split_ranks(section: TrainerSection, timeout_s: float) -> None:
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=section.tensor_parallel,
        pipeline_model_parallel_size=section.pipeline_parallel,
        context_parallel_size=section.context_parallel,
        distributed_timeout_minutes=timeout_s / 60,
        create_gloo_process_groups=False,
    )
