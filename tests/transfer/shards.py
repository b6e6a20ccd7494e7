"""A trainer whose policy lies on several ranks, as far as bringing it to engines goes."""

from __future__ import annotations

import asyncio
import threading

import torch

from rollpacker.protocols.weights import Weights
from rollpacker.transfer.offering import PolicyOffers
from tests.transfer.receivers import ANSWER_S

NUM_RANKS = 2


class Shards:
    """A policy whose rows lie on several ranks; every rank gathers each tensor, and waits for the others in it."""

    def __init__(self, tensors: dict[str, torch.Tensor]):
        self.tensors = tensors
        self._parts: list[torch.Tensor | None] = [None] * NUM_RANKS
        self._meeting = threading.Barrier(NUM_RANKS)

    def gather(self, rank: int):
        for name, tensor in self.tensors.items():
            self._parts[rank] = tensor.tensor_split(NUM_RANKS)[rank]
            self._meeting.wait(ANSWER_S)
            whole = torch.cat(self._parts)
            self._meeting.wait(ANSWER_S)
            yield name, whole


class RankOfShards:
    """One rank, as the driver and as its own process see it."""

    def __init__(self, shards: Shards, rank: int):
        self.name = f"trainer-{rank}"
        self.has_died = False
        self.policy_version = 0
        self.num_gathers = 0
        self._shards = shards
        self._rank = rank
        offers = PolicyOffers(self, is_first=rank == 0)
        self.prepare_weights, self.send_weights, self._offers = offers.prepare, offers.send, offers

    async def with_weights(self, use):
        def run():
            tensors = self._shards.gather(self._rank)
            try:
                return use(tensors)
            finally:
                for _ in tensors:
                    pass

        self.num_gathers += 1
        return await asyncio.to_thread(run)

    async def lay_out_weights(self, bucket_bytes):
        await self._offers.lay_out(bucket_bytes)
        return Weights(policy_version=self.policy_version, checksum="", num_bytes=0, payload=None)

    @property
    def bucket_sizes(self):
        """Bytes of the buffers in which the prepared policy lies."""
        return {bucket.buffer.data.numel() for bucket in self._offers._prepared.buckets}

    async def offer_weights(self, engines, options):
        return self._offers.open(engines, "127.0.0.1", options)

    async def drop_receiver(self, engine, why):
        self._offers.drop(engine, why)

    async def close_offer(self):
        self._offers.close()


def ranks_of(tensors: dict[str, torch.Tensor]) -> list[RankOfShards]:
    shards = Shards(tensors)
    return [RankOfShards(shards, rank) for rank in range(NUM_RANKS)]
