"""An engine that pulls its weights bucket by bucket, without the process around it."""

import asyncio
import gc
import weakref
from types import SimpleNamespace

import torch

from rollpacker.protocols.tensors import PIECE_BYTES
from rollpacker.protocols.weights import Weights
from rollpacker.runtime.ray.actors import EngineActor, ShelfPayload
from rollpacker.transfer.packing import PackedPolicy
from rollpacker.transfer.shelf import Contents


class InStore:
    """A reference to a bucket that lies in an object store."""

    def __init__(self, data) -> None:
        self.data = data

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        return self.data


def weights_in_store(version):
    policy = PackedPolicy()
    policy.pack(iter({f"layers.{index}": torch.zeros(PIECE_BYTES // 8) for index in range(6)}.items()), PIECE_BYTES)
    buckets = tuple(InStore(bucket.buffer.data.numpy()) for bucket in policy.buckets)
    contents = Contents(notes=tuple(bucket.note for bucket in policy.buckets))
    payload = ShelfPayload(contents=contents, buckets=buckets)
    return Weights(policy_version=version, checksum=contents.checksum, num_bytes=0, payload=payload)


def engine_that_loads(load_weights):
    actor = object.__new__(EngineActor)
    actor._name, actor._loading = "engine-0", asyncio.Lock()
    actor._worker = SimpleNamespace(load_weights=load_weights)
    return actor


async def test_what_was_pulled_is_freed_once_it_is_loaded():
    async def load(weights):
        return weights.checksum

    actor, weights = engine_that_loads(load), weights_in_store(1)
    pulled = [weakref.ref(bucket.data) for bucket in weights.payload.buckets]
    assert await actor.load_weights(weights) == weights.checksum
    del weights
    await asyncio.sleep(0)
    gc.collect()
    assert [bucket() is None for bucket in pulled] == [True] * 3


async def test_a_newer_policy_is_loaded_after_the_older_one_whose_pull_has_ended():
    order, has_begun, may_end = [], asyncio.Event(), asyncio.Event()

    async def load(weights):
        order.append(f"begin {weights.policy_version}")
        has_begun.set()
        await may_end.wait()
        order.append(f"end {weights.policy_version}")
        return weights.checksum

    actor = engine_that_loads(load)
    older = asyncio.create_task(actor.load_weights(weights_in_store(1)))
    await has_begun.wait()
    newer = asyncio.create_task(actor.load_weights(weights_in_store(2)))
    await asyncio.sleep(0)
    await actor._pulling
    for _ in range(10):
        await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(older, newer)
    assert order == ["begin 1", "end 1", "begin 2", "end 2"]
