"""What a member is given of the shelf while it is filled."""

from __future__ import annotations

import asyncio

from rollpacker.protocols.weights import Weights
from rollpacker.runtime.ray.shelved_sync import ShelvedSync


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
