"""A modelled trainer: learns nothing, in the time that it would take, and refuses what a real one refuses.

Invariant: a step takes in exactly its batch, as it was announced or smaller, of the announced policy versions; the
admission is the real trainer's own. Its whole state is the number of its steps.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from rollpacker.core.errors import CheckpointError, ImpossibleEvent
from rollpacker.core.ids import sampled
from rollpacker.metrics.files import storage_errors
from rollpacker.paths import read_text
from rollpacker.protocols.rollout import FinishReason
from rollpacker.protocols.trainer import UpdateMetrics
from rollpacker.protocols.weights import Weights
from rollpacker.trainers.admission import Admission

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from rollpacker.protocols.rollout import RolloutGroup
    from rollpacker.protocols.trainer import BatchShape
    from rollpacker.sim.costs import StepCosts

STATE_FILE = "modelled_trainer.json"


class ModelledTrainer:
    """Counts tokens and takes their time."""

    def __init__(
        self,
        costs: StepCosts,
        *,
        trains_all: bool = False,
        mask_truncated: bool = False,
        on_export: Callable[[int], None] | None = None,
    ) -> None:
        """Make one that has taken no step.

        Args:
            costs: Of its passes and updates.
            trains_all: Groups of equal rewards pass backward, too: they may have an advantage, or the loss has terms
                without it.
            mask_truncated: Responses that were cut pass forward only.
            on_export: Is told each policy version whose weights are given.
        """
        self._costs = costs
        self._trains_all = trains_all
        self._mask_truncated = mask_truncated
        self._on_export = on_export
        self._num_steps = 0
        self._num_tokens = 0
        self._admission: Admission | None = None

    async def begin_step(self, shape: BatchShape) -> None:
        self._admission = Admission(shape)
        self._num_tokens = 0

    async def accumulate(self, groups: Sequence[RolloutGroup], gpus: Collection[int] | None = None) -> None:
        self._open().admit(groups)
        responses = [response for group in groups for response in group.responses]
        self._num_tokens += sum(span.num_tokens for response in responses for span in sampled(response.spans))
        lengths: dict[bool, list[int]] = {True: [], False: []}
        for group in groups:
            num_prompt_tokens = len(group.prompt_token_ids)
            has_gradient = self._trains_all or len(set(group.rewards)) > 1
            for response in group.responses:
                is_masked = self._mask_truncated and response.finish_reason is FinishReason.LENGTH
                lengths[has_gradient and not is_masked].append(num_prompt_tokens + response.num_tokens)
        num_replicas = None if gpus is None else len(gpus) // self._costs.gpus_per_replica
        await asyncio.sleep(self._costs.passes_s(lengths[True], num_replicas, forward_only=lengths[False]))

    async def complete_batch(self, num_responses: int | None = None) -> None:
        """Take no time: nothing waits for the last group."""
        self._open().close(num_responses)

    async def give_up_step(self) -> None:
        """Do nothing: a cancelled call has ended."""

    async def finish_step(self) -> UpdateMetrics:
        if not self._open().is_closed:
            await self.complete_batch()
        self._admission = None
        await asyncio.sleep(self._costs.update_s() + (0.0 if self._num_steps else self._costs.first_step_s))
        self._num_steps += 1
        return UpdateMetrics(
            policy_version=self._num_steps,
            loss=None,
            grad_norm=None,
            learning_rate=None,
            clip_fraction=None,
            kl_to_reference=None,
            entropy=None,
            surprisal=None,
            surprisal_z=None,
            logprob_mismatch_max=None,
            logprob_mismatch_mean=None,
            mismatch_kl=None,
            mismatch_weight_mean=None,
            mismatch_weight_max=None,
            mismatch_bounded_share=None,
            num_tokens=self._num_tokens,
        )

    async def export_weights(self) -> Weights:
        """Give weights without tensors; their checksum is their version, which every engine gives back."""
        if self._on_export is not None:
            self._on_export(self._num_steps)
        return Weights(
            policy_version=self._num_steps,
            checksum=f"{self._num_steps:08x}",
            num_bytes=self._costs.num_weight_bytes,
            payload=None,
        )

    async def sleep(self) -> None:
        """Take no time: what a switch costs is charged to the engines (`hardware.engine_switch_s`)."""

    async def wake(self, gpus: Collection[int] | None = None) -> None:
        """Take no time, as `sleep`."""

    async def save(self, folder: Path) -> None:
        file = folder / STATE_FILE
        with storage_errors(file):
            file.write_text(json.dumps({"num_steps": self._num_steps}))

    async def load(self, folder: Path) -> None:
        file = folder / STATE_FILE
        try:
            self._num_steps = int(json.loads(read_text(file))["num_steps"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(
                f"{file} cannot be read: {error}.",
                "A modelled run continues from the checkpoint of a modelled run.",
                "Move the checkpoint's folder away: run.resume=auto then goes on from the one before it.",
            ) from error

    async def close(self) -> None:
        """Do nothing: there is nothing to end."""

    def _open(self) -> Admission:
        if self._admission is None:
            raise ImpossibleEvent("The trainer was called outside a step.", "begin_step comes first.")
        return self._admission
