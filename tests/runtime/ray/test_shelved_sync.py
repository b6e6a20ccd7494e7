"""What a member is given of the shelf while it is filled, and what lies there for local engines."""

from __future__ import annotations

import asyncio

import pytest
import torch

from rollpacker.protocols.tensors import PIECE_BYTES, checksum_of_tensors
from rollpacker.protocols.weights import Weights
from rollpacker.runtime.ray.shelved_sync import ShelvedSync
from rollpacker.runtime.ray.trainer_group import TrainerGroup
from rollpacker.runtime.ray.weight_sync import OfferSync
from rollpacker.transfer.offers import ReceiverName, SendingOptions
from rollpacker.transfer.receiver import receive_weights
from tests.runtime.scripted import ScriptedEngine
from tests.transfer.receivers import ANSWER_S, Shelf
from tests.transfer.shards import ranks_of


class Ranks:
    """All ranks of a trainer, which lay their policy out when they are let."""

    def __init__(self) -> None:
        self.version = 0
        self.may_go_on = asyncio.Event()

    async def everywhere(self, _: object) -> Weights:
        await self.may_go_on.wait()
        return Weights(policy_version=self.version, checksum="0", num_bytes=0, payload=None)


async def _while_it_is_filled(version: int, asked: int) -> Weights | None:
    """The answer to a member that asks for a version while another one, or the same again, takes the place of 0."""
    ranks = Ranks()
    sync = ShelvedSync(None, ranks, bucket_mb=1)
    ranks.may_go_on.set()
    await sync.lay_out()
    ranks.may_go_on.clear()
    ranks.version = version
    filling = asyncio.create_task(sync.lay_out())
    await asyncio.sleep(0)
    answer = asyncio.create_task(sync.shelf(asked))
    await asyncio.sleep(0)
    ranks.may_go_on.set()
    await filling
    return await answer


def test_a_member_that_asks_while_a_checkpoint_lays_the_same_policy_out_again_gets_it() -> None:
    weights = asyncio.run(_while_it_is_filled(0, 0))
    assert weights is not None
    assert weights.policy_version == 0


def test_a_member_that_asks_for_what_a_newer_policy_replaces_gets_nothing() -> None:
    assert asyncio.run(_while_it_is_filled(1, 0)) is None


async def _fetch(weights: Weights) -> str:
    """Take the policy from the trainer, as an engine of one worker does."""
    name, loader = ReceiverName(engine="engine-0", rank=0, num_ranks=1), Shelf("", keeps_tensors=False)
    return await asyncio.to_thread(receive_weights, weights.payload, name, loader, torch.device("cpu"))


@pytest.mark.parametrize("prepares", [True, False], ids=["shared GPUs", "own GPUs"])
async def test_members_and_local_engines_are_served_from_the_same_buckets_of_the_shelfs_size(prepares: bool) -> None:
    tensors = {"weight": torch.ones(3, 5)}
    ranks = ranks_of(tensors)
    group = TrainerGroup(ranks, share=lambda groups: groups)
    options = SendingOptions(transport="handles", bucket_bytes=PIECE_BYTES, timeout_s=ANSWER_S, deadline_s=ANSWER_S)
    sync = ShelvedSync(OfferSync(ranks[0], group, options), group, bucket_mb=1)
    if prepares:
        await sync.prepare()
    await sync.lay_out()
    engine = ScriptedEngine("engine-0", lambda _: None, on_weights=_fetch)
    published = await sync.publish({engine.engine: engine})
    assert (published.checksum, published.lost) == (checksum_of_tensors(tensors), {})
    assert (ranks[0].bucket_sizes, [rank.num_gathers for rank in ranks]) == ({1 << 20}, [1, 1])
