"""A trainer's side of a transfer: each rank has one of these, and the first one of them sends.

All ranks gather every tensor together, so each of them calls `send` at every attempt; only the first one sends. Where
the trainer must leave its GPU before the engines come, `prepare` packs the policy in the first rank's host memory, and
it is sent from there, without the other ranks, as long as it is the current policy.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import torch

from rollpacker.protocols.weights import Weights
from rollpacker.transfer.memory import accelerator_here
from rollpacker.transfer.packing import Bucket, PackedPolicy
from rollpacker.transfer.sender import WeightSender

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.protocols.trainer import TensorTrainer
    from rollpacker.transfer.offers import Delivery, SendingOptions

_NO_VERSION = -1
"""Of a policy that was never prepared."""


class PolicyOffers:
    """What one rank does."""

    def __init__(self, trainer: TensorTrainer, *, is_first: bool) -> None:
        self._trainer = trainer
        self._is_first = is_first
        self._sender: WeightSender | None = None
        self._prepared = PackedPolicy()
        """On the first rank."""
        self._prepared_version = _NO_VERSION

    @property
    def _is_prepared(self) -> bool:
        return self._prepared_version == self._trainer.policy_version

    async def prepare(self, bucket_bytes: int) -> None:
        """Copy the policy to the host's memory unless it is there already; all ranks. No transfer is under way."""
        if self._is_prepared:
            return
        pack = partial(self._prepared.pack, bucket_bytes=bucket_bytes)
        await self._trainer.with_weights(pack if self._is_first else lambda _: None)
        self._prepared_version = self._trainer.policy_version

    async def lay_out(self, bucket_bytes: int) -> Sequence[Bucket]:
        """Prepare the current policy and give it; all ranks, the first one has it.

        What follows until the next policy is sent from the same copy.
        """
        await self.prepare(bucket_bytes)
        return self._prepared.buckets

    def open(self, engines: Sequence[str], host: str, options: SendingOptions) -> Weights:
        """Hold the policy ready for engines; only the first rank. `host` is its node's address."""
        self.close()  # of a cancelled transfer
        device = torch.device("cpu") if self._is_prepared else accelerator_here()
        self._sender = WeightSender(engines=engines, host=host, options=options, device=device)
        return Weights(
            policy_version=self._trainer.policy_version, checksum="", num_bytes=0, payload=self._sender.offer
        )

    async def send(self) -> Delivery | None:
        """Make an attempt to send the policy to all engines; all ranks call it, and the first one answers."""
        sender = self._sender
        if self._is_prepared:
            return await asyncio.to_thread(sender.send_packed, self._prepared.buckets) if sender else None
        return await self._trainer.with_weights(sender.send if sender else lambda _: None)

    def drop(self, engine: str, why: str) -> None:
        """Do without an engine, also while `send` runs; only the first rank."""
        if self._sender is not None:
            self._sender.drop(engine, why)

    def close(self) -> None:
        """End what `open` began."""
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()
