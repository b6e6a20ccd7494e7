"""Sends the trainer's policy to engines: the trainer's ranks gather and send, engines receive.

    offer (first rank) ─> load (every engine) ─┐
          └────────────> send (all ranks) ─────┴─> delivered? ─no─> send again, to those that are left
                                                       └─yes─> every engine confirms by its checksum

The weights do not pass through this process: they go from the trainer's first rank to the engines' workers
(`rollpacker.transfer`). The driver names the receivers, and reports engines that died, which it knows before any
timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import EngineFailed, WorldError
from rollpacker.core.ids import EngineId
from rollpacker.protocols.engine import Engine
from rollpacker.protocols.tasks import end_tasks
from rollpacker.protocols.weights import Published, Weights
from rollpacker.runtime.ray.trainer_group import Everywhere, Rank, TrainerGroup
from rollpacker.transfer.confirmations import those_that_do_not_confirm
from rollpacker.transfer.offers import Delivery, SendingOptions

_REASON_S = 1.0
"""How long a lost engine's own error is awaited."""


class SendingRank(Rank, Protocol):
    """A rank of a trainer whose policy engines can fetch; see `rollpacker.transfer.offering`."""

    async def prepare_weights(self, bucket_bytes: int) -> None: ...

    async def lay_out_weights(self, bucket_bytes: int) -> Weights | None: ...

    async def offer_weights(self, engines: Sequence[EngineId], options: SendingOptions) -> Weights: ...

    async def send_weights(self) -> Delivery | None: ...

    async def drop_receiver(self, engine: EngineId, why: str) -> None: ...

    async def close_offer(self) -> None: ...


def make_offer_sync(
    config: RunConfig, ranks: Sequence[SendingRank], group: TrainerGroup, *, has_gpu: bool
) -> OfferSync | None:
    """Make the configured weight sync; None where engines load a snapshot from Ray's object store instead.

    `group` is all ranks; `has_gpu` says whether they have GPUs.
    """
    section = config.weight_sync
    transport = section.transport
    if transport == "object_store" or (transport == "auto" and not has_gpu):
        return None
    options = SendingOptions(
        transport=transport,
        bucket_bytes=section.bucket_mb << 20,
        timeout_s=section.timeout_s,
        deadline_s=config.backend.deadlines.weight_sync_s,
    )
    return OfferSync(ranks[0], group, options)


class OfferSync:
    """Implements `rollpacker.protocols.weights.WeightSync` over the ranks of a trainer.

    An engine that joins later is served by the trainer, too: from the prepared copy, or else by all ranks, which are
    awake then, since only ranks that share GPUs with engines ever sleep.
    """

    def __init__(self, first: SendingRank, group: TrainerGroup, options: SendingOptions) -> None:
        self._first = first
        self._all = group
        self._options = options
        self._one_at_a_time = asyncio.Lock()
        """An engine may still be served from the memory that the next policy is packed into."""

    async def prepare(self) -> None:
        async with self._one_at_a_time:
            await self._all.everywhere(lambda rank: rank.prepare_weights(self._options.bucket_bytes))

    async def publish(self, engines: Mapping[EngineId, Engine]) -> Published:
        async with self._one_at_a_time:
            return await self._deliver(engines, are_all=True)

    async def serve(self, engine_id: EngineId, engine: Engine) -> Published:
        async with self._one_at_a_time:
            return await self._deliver({engine_id: engine}, are_all=False)

    async def _deliver(self, engines: Mapping[EngineId, Engine], *, are_all: bool) -> Published:
        loop = asyncio.get_running_loop()
        began = loop.time()
        loads: dict[EngineId, asyncio.Task[str]] = {}
        try:
            # An engine's deadline begins when it is asked to load: not before the trainer's step has ended, which may
            # also make another policy of the one that was offered.
            async with self._all.turn() as everywhere:
                weights = await self._first.offer_weights(tuple(engines), self._options)
                for engine_id, engine in engines.items():
                    load = self._load(engine_id, engine, weights)
                    loads[engine_id] = asyncio.create_task(load, name=f"weights of {engine_id}")
                delivery = await self._send(everywhere)
            lost = await _failures(loads, delivery)
            lost |= await those_that_do_not_confirm(
                {engine_id: _answer(task) for engine_id, task in loads.items() if engine_id not in lost},
                policy_version=weights.policy_version,
                checksum=delivery.checksum,
                straggler_s=self._options.timeout_s,
                are_all=are_all,
            )
        except BaseException:
            with suppress(WorldError):  # a rank that is gone cannot close it, and the first error says why
                await self._end(loads)
            raise
        await self._end(loads)
        return Published(
            policy_version=weights.policy_version,
            checksum=delivery.checksum,
            num_bytes=delivery.num_bytes,
            time_s=loop.time() - began,
            lost=lost,
        )

    async def _end(self, loads: Mapping[EngineId, asyncio.Task[str]]) -> None:
        await end_tasks(*loads.values())  # only those of lost engines are still pending, unless the transfer failed
        await self._first.close_offer()

    async def _load(self, engine_id: EngineId, engine: Engine, weights: Weights) -> str:
        try:
            return await engine.load_weights(weights)
        except WorldError as error:
            await self._first.drop_receiver(engine_id, error.problem)
            raise

    async def _send(self, everywhere: Everywhere[Delivery | None]) -> Delivery:
        """Send until every engine that is not lost has the weights; the caller has a deadline."""
        while True:
            delivery = await everywhere(lambda rank: rank.send_weights())
            assert delivery is not None, "the first rank answers"
            if delivery.is_complete:
                return delivery


async def _answer(task: asyncio.Task[str]) -> str:
    return await task


async def _failures(loads: Mapping[EngineId, asyncio.Task[str]], delivery: Delivery) -> dict[EngineId, EngineFailed]:
    """Say why each lost engine is lost; raises errors of the weights themselves."""
    lost = {EngineId(engine): why for engine, why in delivery.lost.items()}
    if lost:  # one that failed told the sender before its call ends
        await asyncio.wait([loads[engine] for engine in lost], timeout=_REASON_S)
    failures: dict[EngineId, EngineFailed] = {}
    for engine, why in lost.items():
        error = loads[engine].exception() if loads[engine].done() else None
        if error is not None and not isinstance(error, EngineFailed):
            raise error
        failures[engine] = error or EngineFailed(f"{engine} did not get the weights: {why}")
    return failures
