"""Weights that are pulled bucket by bucket: how many bytes travel, and what happens to one that comes damaged."""

import asyncio

import pytest
import torch

from rollpacker.core.errors import EngineFailed
from rollpacker.protocols.tensors import (
    PIECE_BYTES,
    checksum_of_tensors,
    named_tensors,
    num_bytes_of_tensors,
)
from rollpacker.protocols.weights import Weights, first_bucket
from rollpacker.sim.virtual_time import run_in_virtual_time
from rollpacker.transfer.packing import PackedPolicy
from rollpacker.transfer.shelf import NUM_ATTEMPTS, WINDOW, Contents, pull
from tests.engines.exercises import change, collect
from tests.engines.test_engine import running
from tests.engines.tiny import make_model, make_request


class Shelf:
    """A policy in buckets of the smallest size, and what was asked of it."""

    def __init__(self, tensors):
        self.packed = PackedPolicy()
        self.packed.pack(iter(tensors.items()), PIECE_BYTES)
        self.contents = Contents(notes=tuple(bucket.note for bucket in self.packed.buckets))
        self.asked = []
        self.num_bytes = 0
        self.damage = {}
        """How often each bucket comes damaged, by its index."""

    async def fetch(self, index):
        self.asked.append(index)
        await asyncio.sleep(0)
        bucket = self.packed.buckets[index]
        data = bucket.buffer.data.clone()
        self.num_bytes += sum(piece.num_bytes for piece in bucket.note.pieces)
        if self.damage.get(index, 0):
            self.damage[index] -= 1
            data[0] ^= 1
        return data


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(0)
    many = {f"layers.{index}.weight": torch.randn(200, 333, generator=generator).bfloat16() for index in range(9)}
    return many | {"large": torch.randn(500_000, generator=generator), "small": torch.tensor(3.0)}


async def test_every_tensor_arrives_once_however_large(tensors):
    shelf = Shelf(tensors)
    pulled = await pull(shelf.contents, shelf.fetch)
    assert pulled.keys() == tensors.keys()
    assert all(torch.equal(pulled[name], tensor) for name, tensor in tensors.items())
    assert shelf.contents.checksum == checksum_of_tensors(tensors) == checksum_of_tensors(pulled)
    assert len(shelf.contents.notes) > WINDOW
    assert shelf.asked == list(range(len(shelf.contents.notes)))
    assert shelf.num_bytes == shelf.contents.num_bytes == num_bytes_of_tensors(tensors)  # 1.00 times


async def test_a_pull_that_begins_in_the_middle_goes_around(tensors):
    shelf = Shelf(tensors)
    num = len(shelf.contents.notes)
    in_two = [index for index, note in enumerate(shelf.contents.notes) if note.pieces[-1].tensor.name == "large"]
    first = in_two[1]  # so that the end of the tensor comes before its beginning
    pulled = await pull(shelf.contents, shelf.fetch, first)
    assert shelf.asked == [*range(first, num), *range(first)]
    assert pulled.keys() == tensors.keys()
    assert checksum_of_tensors(pulled) == shelf.contents.checksum


def test_engines_begin_at_different_buckets_and_each_always_at_the_same_one(tensors):
    contents = Shelf(tensors).contents
    first = [first_bucket(f"e7_{number}-r0.0", len(contents.notes)) for number in range(20)]
    assert first == [first_bucket(f"e7_{number}-r0.0", len(contents.notes)) for number in range(20)]
    assert set(first) <= set(range(len(contents.notes)))
    assert len(set(first)) > 1


async def test_a_damaged_bucket_alone_is_asked_for_again(tensors):
    shelf = Shelf(tensors)
    shelf.damage = {2: NUM_ATTEMPTS - 1}
    pulled = await pull(shelf.contents, shelf.fetch)
    assert checksum_of_tensors(pulled) == shelf.contents.checksum
    assert {index: shelf.asked.count(index) for index in shelf.asked} == {
        index: NUM_ATTEMPTS if index == 2 else 1 for index in range(len(shelf.contents.notes))
    }


async def test_a_bucket_that_lies_damaged_on_the_shelf_is_the_engines_failure(tensors):
    shelf = Shelf(tensors)
    shelf.damage = {0: 100}
    with pytest.raises(EngineFailed, match=r"Bucket 0 .* did not come whole in 3 attempts: its checksum is"):
        await pull(shelf.contents, shelf.fetch)


async def test_a_lost_source_is_asked_again(tensors):
    shelf, losses = Shelf(tensors), [1]

    async def fetch(index):
        if index == 1 and losses:
            losses.pop()
            raise EngineFailed("The node of bucket 1 is gone.")
        return await shelf.fetch(index)

    assert checksum_of_tensors(await pull(shelf.contents, fetch)) == shelf.contents.checksum
    assert not losses


def test_a_source_that_stays_lost_is_asked_again_after_pauses_and_given_up_without_one(tensors):
    contents = Shelf(tensors).contents
    asked_at_s = []

    async def fetch(index):
        asked_at_s.append(asyncio.get_running_loop().time())
        raise EngineFailed(f"The node of bucket {index} is gone.")

    async def given_up_at_s():
        with pytest.raises(EngineFailed, match=r"Bucket 0 .* did not come whole in 3 attempts: The node of bucket 0"):
            await pull(contents, fetch)
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(given_up_at_s()) == asked_at_s[-1]
    assert len(set(asked_at_s)) == NUM_ATTEMPTS


async def test_no_more_than_a_window_is_on_its_way_and_a_cancelled_pull_asks_for_nothing_more(tensors):
    shelf, gate, num_under_way = Shelf(tensors), asyncio.Event(), []

    async def fetch(index):
        num_under_way.append(index)
        await gate.wait()
        return await shelf.fetch(index)

    pulling = asyncio.create_task(pull(shelf.contents, fetch))
    for _ in range(10):
        await asyncio.sleep(0)
    assert num_under_way == list(range(WINDOW))
    pulling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pulling
    gate.set()
    await asyncio.sleep(0)
    assert not shelf.asked


async def test_an_engine_that_pulls_one_policy_after_the_other_holds_the_newer_one(tmp_path):
    model = make_model()
    model.save_pretrained(tmp_path)
    first = Shelf({name: tensor.clone() for name, tensor in named_tensors(model).items()})
    change(model)
    second = Shelf({name: tensor.clone() for name, tensor in named_tensors(model).items()})
    assert "lm_head.weight" not in await pull(first.contents, first.fetch)  # tied: it travels once
    async with running(tmp_path) as engine:
        for version, shelf in enumerate((first, second)):
            weights = Weights(
                policy_version=version,
                checksum=shelf.contents.checksum,
                num_bytes=shelf.contents.num_bytes,
                payload=await pull(shelf.contents, shelf.fetch),
            )
            assert await engine.load_weights(weights) == shelf.contents.checksum
        await engine.generate([make_request()])
        response = (await collect(engine, 1))["p"]
        assert [span.policy_version for span in response.spans] == [1]
    assert second.num_bytes == num_bytes_of_tensors(named_tensors(model))
