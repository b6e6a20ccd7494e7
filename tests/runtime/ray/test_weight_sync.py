"""A trainer of several ranks sends its policy to real engines; those that fail are lost and not awaited."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from rollpacker.config.sections.engine import EngineSection
from rollpacker.core.errors import EngineFailed, WeightSyncFailed
from rollpacker.core.ids import EngineId
from rollpacker.engines.torch.engine import TorchEngine
from rollpacker.protocols.tensors import PIECE_BYTES, checksum_of_tensors, named_tensors
from rollpacker.runtime.ray.trainer_group import TrainerGroup
from rollpacker.runtime.ray.weight_sync import OfferSync
from rollpacker.transfer.offers import SendingOptions
from tests.engines.tiny import make_model
from tests.runtime.scripted import ScriptedEngine, never_confirm
from tests.transfer.receivers import ANSWER_S
from tests.transfer.shards import ranks_of


@pytest.fixture(scope="module")
def model():
    return make_model("qwen2").bfloat16()


@pytest.fixture(scope="module")
def model_path(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def ranks(model):
    return ranks_of({name: tensor + 1 for name, tensor in named_tensors(model).items()})


def sync_of(ranks, transport, timeout_s=ANSWER_S, group=None):
    options = SendingOptions(transport=transport, bucket_bytes=PIECE_BYTES, timeout_s=timeout_s, deadline_s=ANSWER_S)
    return OfferSync(ranks[0], group or TrainerGroup(ranks, share=lambda groups: groups), options)


class Engines(AsyncExitStack):
    """Real engines of the same model, closed at the end."""

    async def start(self, model_path, *names, dtype="bfloat16"):
        engines = {}
        for name in names:
            section = EngineSection(max_num_seqs=2)
            engine = TorchEngine(EngineId(name), model_path, section, max_tokens_per_seq=64, dtype=dtype)
            self.push_async_callback(engine.close)
            engines[EngineId(name)] = engine
        return engines


@pytest.mark.parametrize("transport", ["handles", "broadcast"])
async def test_every_engine_gets_the_gathered_policy_and_tied_tensors_travel_once(ranks, model, model_path, transport):
    sync = sync_of(ranks, transport)
    async with Engines() as running:
        engines = await running.start(model_path, "engine-0", "engine-1")
        for version in (0, 1):
            for rank in ranks:
                rank.policy_version = version
            published = await sync.publish(engines)
            assert [(await engine.stats()).policy_version for engine in engines.values()] == [version] * 2
    assert published.checksum == checksum_of_tensors(ranks[0]._shards.tensors)
    assert published.num_bytes == 2 * sum(parameter.numel() for parameter in model.parameters())
    assert published.time_s > 0
    assert not published.lost


@pytest.mark.parametrize("transport", ["handles", "broadcast"])
async def test_an_engine_that_died_is_dropped_before_the_timeout_and_one_that_comes_later_is_served(
    ranks, model_path, transport
):
    sync = sync_of(ranks, transport)
    async with Engines() as running:
        engines = await running.start(model_path, "engine-0")
        dead = ScriptedEngine("engine-9", lambda _: None)
        dead.die()
        published = await sync.publish(engines | {EngineId("engine-9"): dead})
        assert {engine: error.problem for engine, error in published.lost.items()} == {
            "engine-9": "The process of engine-9 died."
        }
        [(name, successor)] = (await running.start(model_path, "engine-9.1")).items()
        served = await sync.serve(name, successor)
    assert (served.checksum, served.lost) == (published.checksum, {})


async def test_an_engine_that_never_comes_is_lost_and_nobody_waits_for_its_answer(ranks, model_path):
    async with Engines() as running:
        engines = await running.start(model_path, "engine-0")
        deaf = ScriptedEngine("deaf", lambda _: None, on_weights=never_confirm)
        published = await sync_of(ranks, "handles", 2.0).publish(engines | {EngineId("deaf"): deaf})
    assert list(published.lost) == ["deaf"]
    assert "within 2 s" in published.lost[EngineId("deaf")].problem


async def test_a_prepared_policy_is_sent_without_the_other_ranks_until_it_is_an_old_one(ranks, model_path):
    sync = sync_of(ranks, "handles")
    async with Engines() as running:
        engines = await running.start(model_path, "engine-0")
        await sync.prepare()
        await sync.publish(engines)
        assert [rank.num_gathers for rank in ranks] == [1, 1]
        await sync.prepare()  # as after a checkpoint
        assert [rank.num_gathers for rank in ranks] == [1, 1]
        for rank in ranks:
            rank.policy_version = 1
        await sync.publish(engines)
        assert [rank.num_gathers for rank in ranks] == [2, 2]


async def test_an_engine_that_is_served_late_keeps_the_next_policy_out_of_the_memory_that_it_reads(ranks, model_path):
    sync = sync_of(ranks, "handles")
    async with Engines() as running:
        await sync.prepare()
        late = ScriptedEngine("late", lambda _: None, on_weights=never_confirm)
        serving = asyncio.create_task(sync.serve(EngineId("late"), late))
        preparing = asyncio.create_task(sync.prepare())
        while ranks[0]._offers._sender is None:  # noqa: ASYNC110  (it tells nobody)
            await asyncio.sleep(0.01)
        assert [rank.num_gathers for rank in ranks] == [1, 1]
        serving.cancel()
        for rank in ranks:
            rank.policy_version = 1
        await asyncio.wait_for(preparing, ANSWER_S)
        assert [rank.num_gathers for rank in ranks] == [2, 2]
        published = await sync.publish(await running.start(model_path, "engine-0"))
    assert published.checksum == checksum_of_tensors(ranks[0]._shards.tensors)


async def test_an_engine_that_is_served_while_the_trainer_makes_a_step_gets_the_policy_after_it(ranks, model_path):
    group = TrainerGroup(ranks, share=lambda groups: groups)

    async def finish_step(rank):
        await asyncio.sleep(3.0)  # longer than an engine may keep a transfer waiting
        rank.policy_version = 1

    async with Engines() as running:
        [(name, engine)] = (await running.start(model_path, "engine-0")).items()
        training = asyncio.create_task(group.everywhere(finish_step))
        await asyncio.sleep(0)
        served = await sync_of(ranks, "handles", 2.0, group).serve(name, engine)
        await training
        assert (await engine.stats()).policy_version == served.policy_version == 1
    assert not served.lost


async def test_an_engine_of_another_type_of_numbers_ends_the_run_with_the_reason(ranks, model_path):
    async with Engines() as running:
        engines = await running.start(model_path, "engine-0", dtype="float32")
        with pytest.raises(WeightSyncFailed, match=r"as torch\.bfloat16 of shape"):
            await sync_of(ranks, "handles").publish(engines)


async def test_a_rank_that_dies_while_it_sends_says_so_itself_and_no_engine_is_left_loading(ranks):
    async def die_sending():
        raise EngineFailed("The process died while it sent weights.")

    async def die():
        raise EngineFailed("The process is gone.")

    ranks[0].send_weights, ranks[0].close_offer, ranks[0].has_died = die_sending, die, True
    waiting = ScriptedEngine("engine-0", lambda _: None, on_weights=never_confirm)
    with pytest.raises(EngineFailed, match="died while it sent weights"):
        await sync_of(ranks[:1], "handles").publish({EngineId("engine-0"): waiting})
    assert asyncio.all_tasks() == {asyncio.current_task()}
