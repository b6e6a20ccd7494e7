"""What the ranks of a Megatron-core trainer are asked to do; every rank runs the same function.

Megatron-core is imported in the ranks only: it takes seconds, and says in ten warnings what is not installed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rollpacker.config.sections.trainer import TrainerSection
from rollpacker.core.errors import RollpackerError
from rollpacker.trainers.checkpoints import read_state
from rollpacker.trainers.grpo import GrpoTrainer
from rollpacker.trainers.microbatches import Sample, pack
from rollpacker.trainers.policy import Progress
from tests.trainers.giving_up import GivenUp, give_up
from tests.trainers.logits import LogitsWatch
from tests.trainers.streaming import Difference, compare, relabelled, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from rollpacker.protocols.rollout import RolloutGroup
    from rollpacker.protocols.trainer import UpdateMetrics
    from rollpacker.trainers.megatron.policy import MegatronPolicy


@dataclass(frozen=True, kw_only=True)
class Work:
    """A trainer and the batches that it trains on."""

    model_path: Path
    section: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    temperature: float = 1.0
    batches: Sequence[Sequence[RolloutGroup]] = ()
    split: Sequence[int] = ()
    """Where each batch is cut into calls of `accumulate`."""
    first_step: int = 0
    load_from: Path | None = None
    save_to: Path | None = None
    naps: bool = False
    """Sleep and wake after every call of `accumulate`, and save asleep."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of it; weights and gradients of rank 0, under Hugging Face names."""

    metrics: list[UpdateMetrics]
    weights: dict[str, Tensor]
    gradients: dict[str, Tensor]
    """Of the first step."""


def section_of(work: Work) -> TrainerSection:
    defaults = {"name": "megatron", "learning_rate": 1e-3, "max_tokens_per_microbatch": 64}
    return TrainerSection(**{**defaults, **work.section})


def make_policy(work: Work) -> MegatronPolicy:
    from megatron.core import parallel_state

    from rollpacker.trainers.megatron.policy import MegatronPolicy

    parallel_state.destroy_model_parallel()  # of the scenario before
    return MegatronPolicy(
        work.model_path,
        section_of(work),
        model_dtype=work.dtype,
        temperature=work.temperature,
        seed=0,
        timeout_s=60,
    )


def train(work: Work) -> Outcome:
    policy = make_policy(work)
    return asyncio.run(run(work, policy, lambda: gradients_of(policy)))


async def run(work: Work, policy: Any, gradients: Any) -> Outcome:
    """The same for every policy; `gradients` is called after the first step."""
    trainer = GrpoTrainer(policy, section_of(work), num_steps=10)
    if work.load_from is not None:
        await trainer.load(work.load_from)
    metrics: list[UpdateMetrics] = []
    first: dict[str, Tensor] = {}
    for number, batch in enumerate(work.batches, start=work.first_step):
        metrics.append(await step(trainer, batch, number, work))
        first = first or gradients()
    if work.naps:
        await trainer.sleep()
    if work.save_to is not None:
        await trainer.save(work.save_to)
    await trainer.wake()
    exported = await trainer.export_weights()
    return Outcome(metrics=metrics, weights=exported.payload, gradients=first)


async def step(trainer: GrpoTrainer, groups: Sequence[RolloutGroup], number: int, work: Work) -> UpdateMetrics:
    groups = [relabelled(group, number) for group in groups]
    await trainer.begin_step(shape_of(groups, number))
    for start, end in itertools.pairwise([0, *work.split, len(groups)]):
        await trainer.accumulate(groups[start:end])
        if work.naps:
            await trainer.sleep()
            assert all(tensor.untyped_storage().nbytes() == 0 for tensor in trainer._policy._tensors())
            await trainer.wake()
    return await trainer.finish_step()


def most_rows_of_logits(work: Work, samples: Sequence[Sample], width: int) -> int:
    """While this rank scores samples and takes their gradient; `width` are its columns of the vocabulary."""
    policy = make_policy(work)
    microbatches = pack(list(samples), 512, policy.device)
    with LogitsWatch(width) as watch:
        policy.accumulate(microbatches, lambda _, scores: scores.logprobs_N.sum())
    return watch.most_rows


def gradients_of(policy: MegatronPolicy) -> dict[str, Tensor]:
    """AdamW's first moment after its first step is 1 - beta1 of the gradient."""
    from rollpacker.trainers.megatron.weight_files import full_tensors

    own = {name: moment / 0.1 for name, moment in policy._optimizer.gather("exp_avg", policy._away).items()}
    return {name: tensor.clone() for name, tensor in full_tensors(own, policy._architecture)}


def scores(work: Work, samples: Sequence[Sample]) -> tuple[bool, list[tuple[Tensor, ...]]]:
    """Whether this rank reports, and log-probabilities, entropies and variances of every micro-batch."""
    policy = make_policy(work)
    found = policy.score(pack(samples, 64, policy.device))
    return policy.is_reporter, [(scores.logprobs_N, scores.entropies_N, scores.variances_N) for scores in found]


def weights(works: Sequence[Work]) -> list[dict[str, Tensor]]:
    """Of one trainer after the other, as they were read."""
    return [{name: tensor.clone() for name, tensor in make_policy(work).weights()} for work in works]


def load_error(work: Work, folder: Path) -> tuple[str, bool]:
    """The error of a checkpoint that cannot be loaded, and whether weights and moments stayed as they were."""
    policy = make_policy(work)
    before = [
        {name: tensor.clone() for name, tensor in policy._optimizer.gather(what, policy._away).items()}
        for what in _STATE
    ]
    try:
        policy.load(folder)
    except RollpackerError as error:
        after = [policy._optimizer.gather(what, policy._away) for what in _STATE]
        same = all(torch.equal(old[name], new[name]) for old, new in zip(before, after, strict=True) for name in old)
        return f"{type(error).__name__}: {error.problem}", same
    raise AssertionError("it was loaded")


_STATE = ("param", "exp_avg", "exp_avg_sq")


def update_after_a_loss_that_is_no_number(work: Work, samples: Sequence[Sample]) -> tuple[float, bool]:
    """The norm of such an update, and whether the weights stayed as they were."""
    policy = make_policy(work)
    before = {name: tensor.clone() for name, tensor in policy._model.parameters().items()}
    policy.accumulate(pack(samples, 64, policy.device), lambda _, scores: scores.logprobs_N.sum() * float("nan"))
    norm = policy.update(1e-3)
    return norm, all(torch.equal(before[name], tensor) for name, tensor in policy._model.parameters().items())


def num_children_after_saving(work: Work, folder: Path) -> int:
    """Processes that this rank has started."""
    policy = make_policy(work)
    policy.save(folder, Progress(policy_version=0, generators=()))
    return sum(len(task.joinpath("children").read_text().split()) for task in Path("/proc/self/task").iterdir())


def checksum_and_passes(work: Work, samples: Sequence[Sample], folder: Path) -> tuple[str | None, int]:
    """What a checkpoint says of the reference, whose weights are 0 by then; and the number of passes over samples."""
    from rollpacker.trainers.megatron.checkpoint import STATE_FILE, MegatronState

    policy = make_policy(work)
    if policy._reference is not None:
        for parameter in policy._reference.parameters().values():
            parameter.zero_()
    policy.save(folder, Progress(policy_version=0, generators=()))
    trainer = GrpoTrainer(policy, section_of(work), num_steps=10)
    return read_state(MegatronState, folder / STATE_FILE).reference_checksum, len(trainer._pack(samples))


def left_alone(work: Work, samples: Sequence[Sample]) -> str:
    """What rank 0 raises when rank 1 does not come."""
    from megatron.core import parallel_state

    policy = make_policy(work)
    # Only now: the ranks of a busy machine take their time to meet.
    for group in (
        parallel_state.get_tensor_model_parallel_group(),
        parallel_state.get_tensor_and_context_parallel_group(),
    ):
        parallel_state.update_pg_timeout(timedelta(seconds=1), group)
    if policy.rank == 1:
        return ""
    try:
        policy.score(pack(samples, 64, policy.device))
    except RuntimeError as error:
        return str(error)
    raise AssertionError("it did not wait for the other rank")


def make_errors(works: Sequence[Work]) -> list[str]:
    """Of trainers that cannot be made."""
    problems = []
    for work in works:
        try:
            make_policy(work)
        except RollpackerError as error:
            problems.append(f"{type(error).__name__}: {error.problem}")
    return problems


@dataclass(frozen=True, kw_only=True)
class Part:
    """A micro-batch as one context-parallel rank has it."""

    token_ids: list[int]
    scored: list[int]
    tokens: list[int]
    targets: list[int]
    segments: list[tuple[int, int]]
    """Queries and keys of each."""
    key_ids: list[int] | None


def packed(samples: Sequence[Sample], num_parts: int) -> list[Part]:
    """The parts of one micro-batch."""
    from rollpacker.trainers.megatron.packing import pack_rows
    from rollpacker.trainers.microbatches import _collate

    microbatch = _collate(samples, tuple(range(len(samples))), torch.device("cpu"))
    parts = []
    for part in range(num_parts):
        rows = pack_rows(microbatch, num_parts, part)
        key_ids = rows.sequences.key_ids_M
        parts.append(
            Part(
                token_ids=rows.token_ids_1L[0].tolist(),
                scored=rows.scored_n.tolist(),
                tokens=rows.tokens_n.tolist(),
                targets=rows.target_ids_n.tolist(),
                segments=[(segment.num_queries, segment.num_keys) for segment in rows.sequences.segments],
                key_ids=None if key_ids is None else key_ids.tolist(),
            )
        )
    return parts


def what_the_shim_leaves_alone(model_path: Path) -> tuple[str, str, bool]:
    """A tensor's type, where a new tensor is, and whether transformers computes the rotary embedding right."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_path)
    return (
        torch.zeros(1).type(),
        str(torch.zeros(1, device="meta").device),
        bool(model.model.rotary_emb.inv_freq[0] == 1),
    )


@dataclass(frozen=True, kw_only=True)
class ByLength:
    """A batch whose short samples were not split, against the same with all of them split."""

    gradient: float
    """The largest difference, over the largest number of the gradient."""
    counts: float
    """The largest difference of what was observed, relative; absolute of sums below 1, which are rounding itself."""
    num_whole: int
    """Samples that this rank computed alone."""
    num_split: int


def gradients_by_length(work: Work, limits: Sequence[int]) -> list[ByLength]:
    """For each batch with its `trainer.context_parallel_above`."""
    policy = make_policy(work)
    return [
        asyncio.run(_by_length(policy, section_of(work), batch, limit, work.split))
        for batch, limit in zip(work.batches, limits, strict=True)
    ]


async def _by_length(
    policy: MegatronPolicy, section: TrainerSection, batch: Sequence[RolloutGroup], limit: int, split: Sequence[int]
) -> ByLength:
    gradients, counted, rows = [], [], []
    for above in (0, limit):
        trainer = GrpoTrainer(policy, section.model_copy(update={"context_parallel_above": above}), num_steps=10)
        passed = _spy_on_passes(policy)
        await trainer.begin_step(shape_of(batch, 0))
        for start, end in itertools.pairwise([0, *split, len(batch)]):
            await trainer.accumulate(batch[start:end])
        gradients.append(_summed_gradient(policy))
        counted.append(dataclasses.asdict(trainer._over_all_ranks(trainer._open_step().sums)))
        rows.append(passed)
        await asyncio.to_thread(trainer._executor.shutdown)
    split_all, by_length = gradients
    return ByLength(
        gradient=float((by_length - split_all).abs().max() / split_all.abs().max()),
        counts=max(abs(counted[1][name] - value) / max(abs(value), 1.0) for name, value in counted[0].items()),
        num_whole=rows[1].count(True),
        num_split=rows[1].count(False),
    )


def _spy_on_passes(policy: Any) -> list[bool]:
    """For each sample of the backward passes to come, whether this rank computes it alone."""
    passed: list[bool] = []
    accumulate = type(policy).accumulate

    def spied(microbatches: Sequence[Any], loss_of: Any) -> None:
        passed.extend(microbatch.is_whole for microbatch in microbatches for _ in microbatch.rows)
        accumulate(policy, microbatches, loss_of)

    policy.accumulate = spied
    return passed


def _summed_gradient(policy: Any) -> Tensor:
    """Of all ranks, each of which holds the gradient of its own layers; flat, and clear afterwards."""
    flat = torch.cat([buffer.grad_data.flatten() for buffer in policy._gradients.buffers])
    from megatron.core import parallel_state

    torch.distributed.all_reduce(flat, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
    policy.clear_gradients()
    return flat


def streamed_steps(work: Work) -> list[Difference]:
    """Of every batch, on this rank."""
    policy: Any = make_policy(work)
    trainer = GrpoTrainer(policy, section_of(work), num_steps=10)

    def state() -> Iterator[Tensor]:
        for shard in policy._optimizer._shards():
            yield policy._optimizer._adamw.state[shard]["step"]
        yield from policy._tensors()

    return asyncio.run(compare(trainer, state(), work.batches, can_lend=policy.num_replicas > 1))


def gives_up(work: Work, groups: Sequence[RolloutGroup], folder: Path, told: int) -> GivenUp:
    """`told` is the rank that is."""
    policy = make_policy(work)
    trainer = GrpoTrainer(policy, section_of(work), num_steps=10)
    return asyncio.run(give_up(trainer, shape_of(groups, 0), groups, folder, is_told=policy.rank == told))
