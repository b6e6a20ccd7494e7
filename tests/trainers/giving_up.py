"""A step that is given up in the midst of a call, for every policy; all ranks of one run the same function."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rollpacker.protocols.rollout import RolloutGroup
    from rollpacker.protocols.trainer import BatchShape
    from rollpacker.trainers.grpo import GrpoTrainer


@dataclass(frozen=True, kw_only=True)
class GivenUp:
    """What became of it, as one rank sees it."""

    num_passes: int
    """That had a loss."""
    is_dropped: bool
    """No step is open."""
    is_unchanged: bool
    """The policy is what it was before the step."""


async def give_up(
    trainer: GrpoTrainer, shape: BatchShape, groups: Sequence[RolloutGroup], folder: Path, *, is_told: bool
) -> GivenUp:
    """Train groups in one call, and save as soon as it ends; a rank that is told hears of it within its second pass."""
    loop = asyncio.get_running_loop()
    loss_of = trainer._objective.loss
    num_passes = 0

    def loss(*arguments: Any) -> Any:
        nonlocal num_passes
        num_passes += 1
        if is_told and num_passes == 2:
            asyncio.run_coroutine_threadsafe(trainer.give_up_step(), loop).result(timeout=30)
        return loss_of(*arguments)

    trainer._objective.loss = loss  # type: ignore[method-assign]
    before = await trainer.export_weights()
    await trainer.begin_step(shape)
    await trainer.accumulate(groups)
    if trainer._step is not None:
        await trainer.complete_batch()
    await trainer.save(folder)
    after = await trainer.export_weights()
    return GivenUp(
        num_passes=num_passes, is_dropped=trainer._step is None, is_unchanged=before.checksum == after.checksum
    )
