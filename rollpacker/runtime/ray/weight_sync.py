"""Brings the trainer's policy to engines that fetch it: the trainer's ranks gather and send, engines receive.

    offer (first rank) ─> load (every engine) ─┐
          └────────────> send (all ranks) ─────┴─> delivered? ─no─> send again, to those who are left
                                                       └─yes─> every engine confirms by its checksum

What travels goes past this process, from the trainer's first rank to the engines' workers (`rollpacker.transfer`). The
driver only says who takes part, and tells the sender of engines that died, which it knows sooner than any timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import EngineFailed, WorldError
from rollpacker.core.ids import EngineId
from rollpacker.protocols.engine import Engine
from rollpacker.protocols.tensors import PIECE_BYTES
from rollpacker.protocols.weights import Published, Weights
from rollpacker.runtime.ray.trainer_group import Rank, TrainerGroup
from rollpacker.transfer.confirmations import Expected, those_that_do_not_confirm
from rollpacker.transfer.offers import Delivery, SendingOptions

_MIB = 1 << 20

_REASON_S = 1.0
"""How long an engine that is lost may take to say why itself."""


class SendingRank(Rank, Protocol):
    """A rank of a trainer whose policy engines can fetch, as `rollpacker.transfer.offering` says."""

    async def prepare_weights(self) -> None: ...

    async def offer_weights(self, engines: Sequence[EngineId], options: SendingOptions) -> Weights: ...

    async def send_weights(self) -> Delivery | None: ...

    async def drop_receiver(self, engine: EngineId, why: str) -> None: ...

    async def close_offer(self) -> None: ...


def make_offer_sync(
    config: RunConfig, ranks: Sequence[SendingRank], group: TrainerGroup, *, has_gpu: bool
) -> OfferSync | None:
    """Make what the configuration asks for; None where engines load a snapshot out of Ray's object store instead.

    `group` is all ranks, through which everybody calls them; `has_gpu` says whether they have one.
    """
    section = config.weight_sync
    transport = section.transport
    if transport == "object_store" or (transport == "auto" and not has_gpu):
        return None
    options = SendingOptions(
        transport=transport,
        bucket_bytes=section.bucket_mb * _MIB // PIECE_BYTES * PIECE_BYTES,
        timeout_s=section.timeout_s,
        deadline_s=config.backend.deadlines.weight_sync_s,
    )
    return OfferSync(ranks[0], group, options)


class OfferSync:
    """Implements `rollpacker.protocols.weights.WeightSync` over the ranks of a trainer.

    An engine that comes later is served by the trainer, too: from the copy that was prepared, else by all ranks, which
    are awake then, since only ranks that take turns with engines ever sleep.
    """

    def __init__(self, first: SendingRank, group: TrainerGroup, options: SendingOptions) -> None:
        self._first = first
        self._all = group
        self._options = options

    async def prepare(self) -> None:
        await self._all.everywhere(lambda rank: rank.prepare_weights())

    async def publish(self, engines: Mapping[EngineId, Engine]) -> Published:
        return await self._deliver(engines)

    async def serve(self, engine_id: EngineId, engine: Engine) -> Published:
        return await self._deliver({engine_id: engine})

    async def _deliver(self, engines: Mapping[EngineId, Engine]) -> Published:
        loop = asyncio.get_running_loop()
        began = loop.time()
        weights = await self._first.offer_weights(tuple(engines), self._options)
        loads = {
            engine_id: asyncio.create_task(self._load(engine_id, engine, weights), name=f"weights of {engine_id}")
            for engine_id, engine in engines.items()
        }
        try:
            delivery = await self._send()
            lost = await _failures(loads, delivery)
            lost |= await those_that_do_not_confirm(
                {engine_id: _answer(task) for engine_id, task in loads.items() if engine_id not in lost},
                Expected(policy_version=weights.policy_version, checksum=delivery.checksum),
                self._options.timeout_s,
            )
        finally:
            await self._first.close_offer()
            for task in loads.values():
                task.cancel()  # what a lost engine still does is nobody's business
            await asyncio.gather(*loads.values(), return_exceptions=True)
        return Published(
            policy_version=weights.policy_version,
            checksum=delivery.checksum,
            num_bytes=delivery.num_bytes,
            time_s=loop.time() - began,
            lost=lost,
        )

    async def _load(self, engine_id: EngineId, engine: Engine, weights: Weights) -> str:
        try:
            return await engine.load_weights(weights)
        except WorldError as error:
            await self._first.drop_receiver(engine_id, error.problem)
            raise

    async def _send(self) -> Delivery:
        """Send until everybody has the weights who is not lost; whoever waits for this has a deadline."""
        while True:
            delivery: Delivery | None = await self._all.everywhere(lambda rank: rank.send_weights())
            assert delivery is not None, "the first rank answers"
            if delivery.is_complete:
                return delivery


async def _answer(task: asyncio.Task[str]) -> str:
    return await task


async def _failures(loads: Mapping[EngineId, asyncio.Task[str]], delivery: Delivery) -> dict[EngineId, EngineFailed]:
    """Say why each lost engine is lost; raises what is wrong with the weights themselves."""
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
