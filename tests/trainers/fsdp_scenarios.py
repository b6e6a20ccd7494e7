"""What the ranks of an FSDP2 trainer are asked to do; every rank runs the same function."""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from rollpacker.config.sections.trainer import TrainerSection
from rollpacker.core.errors import RollpackerError
from rollpacker.trainers.fsdp.moments import write_moments
from rollpacker.trainers.fsdp.policy import FsdpPolicy
from rollpacker.trainers.fsdp.sharding import unreduced_gradients
from rollpacker.trainers.grpo import GrpoTrainer
from tests.trainers.giving_up import GivenUp, give_up
from tests.trainers.streaming import Difference, compare, relabelled, shape_of, state_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from torch import Tensor

    from rollpacker.protocols.rollout import RolloutGroup
    from rollpacker.protocols.trainer import UpdateMetrics


DEADLINE_S = 123
"""Of a collective between the copies of the parameters, or within one."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A trainer and the batches that it trains on."""

    model_path: Path
    section: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    batches: Sequence[Sequence[RolloutGroup]] = ()
    split: Sequence[int] = ()
    """Where each batch is cut into calls of `accumulate`."""
    first_step: int = 0
    load_from: Path | None = None
    save_to: Path | None = None
    naps: bool = False
    """Sleep and wake after every call."""
    lent: int | None = None
    """The first call of each step is made on this GPU alone, which is that of the rank."""


@dataclass(frozen=True, kw_only=True, repr=False)  # asyncio prints a task's result to itself, tensors and all
class Outcome:
    """What became of it, as one rank sees it."""

    metrics: list[UpdateMetrics]
    weights: dict[str, Tensor]
    """As exported; empty but on rank 0."""
    checksum: str
    moments: dict[str, dict[str, Tensor]]
    """AdamW's, whole."""


def make_trainer(work: Work) -> GrpoTrainer:
    defaults = {"name": "fsdp", "learning_rate": 1e-3, "max_tokens_per_microbatch": 512}
    section = TrainerSection(**{**defaults, **work.section})
    policy = FsdpPolicy(work.model_path, section, model_dtype=work.dtype, temperature=1.0, seed=0, timeout_s=DEADLINE_S)
    return GrpoTrainer(policy, section, num_steps=10)


def deadlines_s(work: Work) -> list[float]:
    """Of the groups of ranks that hold one copy, and one part of each copy."""
    policy = make_trainer(work)._policy
    groups = policy._mesh.get_all_groups()
    return [group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups]


def train(work: Work) -> Outcome:
    return asyncio.run(_train(make_trainer(work), work))


async def _train(trainer: Any, work: Work) -> Outcome:
    if work.load_from is not None:
        if work.batches:  # a step that the checkpoint's arrival drops, gradients and all
            await trainer.begin_step(shape_of(work.batches[0], 0))
            await trainer.accumulate([relabelled(group, 0) for group in work.batches[0]])
        await trainer.load(work.load_from)
    metrics = [
        await step(trainer, batch, number, work.split, naps=work.naps, lent=work.lent)
        for number, batch in enumerate(work.batches, start=work.first_step)
    ]
    if work.save_to is not None:
        await trainer.save(work.save_to)
    exported = await trainer.export_weights()
    moments = {
        name: {key: _whole(value) for key, value in trainer._policy._optimizer.state[parameter].items()}
        for name, parameter in trainer._policy._parameters.items()
        if parameter in trainer._policy._optimizer.state
    }
    return Outcome(metrics=metrics, weights=exported.payload, checksum=exported.checksum, moments=moments)


async def step(
    trainer: Any,
    groups: Sequence[RolloutGroup],
    number: int,
    split: Sequence[int] = (),
    *,
    naps: bool = False,
    lent: int | None = None,
) -> UpdateMetrics:
    groups = [relabelled(group, number) for group in groups]
    on_gpus = None if lent is None else {lent}
    if on_gpus:
        trainer._replica_gpus = ((0,), (1,))
        await trainer.sleep()
        await trainer.wake(on_gpus)
    await trainer.begin_step(shape_of(groups, number))
    for start, end in itertools.pairwise([0, *split, len(groups)]):
        await trainer.accumulate(groups[start:end], on_gpus)
        if naps:
            await trainer.sleep()
            assert all(each.untyped_storage().nbytes() == 0 for each in unreduced_gradients(trainer._policy._model))
        await trainer.wake()
        on_gpus = None
    return await trainer.finish_step()


def _whole(value: Any) -> Tensor:
    whole: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole.clone()


def refusals(work: Work, groups: Sequence[RolloutGroup], gpus: Collection[int]) -> list[str]:
    """What is refused on this rank, by type and problem, in the midst of a step that still ends well."""

    async def run() -> list[str]:
        trainer = make_trainer(work)
        trainer._replica_gpus = ((0,), (1,))
        problems: list[str] = []

        async def refused(answer: Any) -> None:
            try:
                await answer
            except RollpackerError as error:
                problems.append(f"{type(error).__name__}: {error.problem}")

        await refused(trainer.finish_step())
        await trainer.begin_step(shape_of(groups, 0))
        await refused(trainer.accumulate([relabelled(groups[0], 1)]))
        await refused(trainer.accumulate(groups[:1], gpus))
        await trainer.accumulate(groups[:1], [0, 1])
        await refused(trainer.accumulate(groups[:1]))
        await refused(trainer.finish_step())
        await trainer.accumulate(groups[1:])
        await trainer.finish_step()
        return problems

    return asyncio.run(run())


def load_error(work: Work, folder: Path) -> tuple[str, str, str]:
    """The error of a checkpoint that cannot be loaded, and the weights' checksums before and after."""

    async def run() -> tuple[str, str, str]:
        trainer = make_trainer(work)
        before = await trainer.export_weights()
        try:
            await trainer.load(folder)
        except RollpackerError as error:
            after = await trainer.export_weights()
            return f"{type(error).__name__}: {error}", before.checksum, after.checksum
        raise AssertionError("it was loaded")

    return asyncio.run(run())


def make_error(work: Work) -> str:
    try:
        make_trainer(work)
    except RollpackerError as error:
        return f"{type(error).__name__}: {error.problem}"
    raise AssertionError("it was made")


def weights_while_one_rank_stops_early(work: Work) -> tuple[list[str], str]:
    """Names that this rank took, of which rank 0 takes two and then raises; and the names that it sees afterwards."""

    async def run() -> tuple[list[str], str]:
        trainer = make_trainer(work)
        taken: list[str] = []

        def use(tensors: Any) -> None:
            for name, _ in tensors:
                taken.append(name)
                if trainer._policy.rank == 0 and len(taken) == 2:
                    raise KeyError(name)

        try:
            await trainer.with_weights(use)
        except KeyError:
            taken.append("raised")
        names = await trainer.with_weights(lambda tensors: ",".join(name for name, _ in tensors))
        return taken, names

    return asyncio.run(run())


def sums_and_maxima(_: None) -> tuple[list[float], list[float]]:
    """Reduce numbers of which each rank has others, and one a NaN."""
    import torch.distributed as dist

    from rollpacker.trainers.process_group import all_reduce

    rank = dist.get_rank()
    device = torch.device("cpu")
    return (
        all_reduce([rank + 0.5, 1e-300], "sum", device),
        all_reduce([rank, float("nan") if rank else 3.0, -5.0], "max", device),
    )


def errors_of_a_full_disk(work: Work, folder: Path) -> list[str]:
    """Save where files may have no more than 1 KiB, first the whole, then only what is cut up among the ranks."""

    async def run() -> list[str]:
        trainer = make_trainer(work)
        await step(trainer, work.batches[0], 0)
        policy: Any = trainer._policy
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
        errors = []
        try:
            await trainer.save(folder)
        except RollpackerError as error:
            errors.append(f"{type(error).__name__}: {error.problem}")
        try:
            write_moments(policy._optimizer, policy._parameters, folder / "moments")
        except RollpackerError as error:
            errors.append(f"{type(error).__name__}: {error.problem}")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        return errors

    return asyncio.run(run())


def crash_once(marker: Path) -> int:
    """The first rank that comes here crashes; gives the rank."""
    import torch.distributed as dist

    try:
        marker.mkdir()
    except FileExistsError:
        return dist.get_rank()
    os.abort()


def streamed_steps(work: Work) -> list[Difference]:
    """Of every batch, on this rank."""
    trainer = make_trainer(work)
    policy: Any = trainer._policy
    can_lend = policy.replicas_per_copy == 1
    return asyncio.run(compare(trainer, state_of(policy), work.batches, can_lend=can_lend))


def gives_up(work: Work, groups: Sequence[RolloutGroup], folder: Path, told: Collection[int]) -> GivenUp:
    trainer = make_trainer(work)
    return asyncio.run(give_up(trainer, shape_of(groups, 0), groups, folder, is_told=trainer._policy.rank in told))
