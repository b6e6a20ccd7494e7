"""Modelled engine and trainer keep their protocols, and take the time that they say."""

import asyncio
from dataclasses import replace

import pytest

from rollpacker.core.errors import CheckpointError, ForeignVersion, ImpossibleEvent
from rollpacker.core.ids import ENVIRONMENT, Domain, EngineId, VersionSpan
from rollpacker.protocols.rollout import FinishReason, GenerationRequest, RolloutGroup
from rollpacker.protocols.trainer import BatchShape
from rollpacker.protocols.weights import Weights
from rollpacker.sim.costs import TrainerCosts
from rollpacker.sim.engine import ModelledEngine, ResponseLength, blank_tokens
from rollpacker.sim.trainer import ModelledTrainer
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.sim.clusters import SMALL, engine_costs, hardware, request

LENGTH = 300


def weights(version: int = 3) -> Weights:
    return Weights(policy_version=version, checksum=f"{version:08x}", num_bytes=1, payload=None)


def make_engine(lengths: dict[int, ResponseLength] | None = None, **changes) -> ModelledEngine:
    fates = {request(number): fate for number, fate in (lengths or {}).items()}
    settings = {
        "engine": EngineId("engine-0"),
        "costs": engine_costs(1000),
        "max_num_seqs": 4,
        "weight_transfer_s": 2.5,
        "switch_s": 0.5,
        "length_of": lambda asked: fates.get(asked.request, ResponseLength(LENGTH, is_truncated=False)),
    }
    return ModelledEngine(**(settings | changes))


def asked(number: int) -> GenerationRequest:
    return GenerationRequest(
        request=request(number), prompt_token_ids=blank_tokens(5), seed=1, max_response_tokens=LENGTH, temperature=1.0
    )


async def collect(engine: ModelledEngine, num_responses: int):
    responses = []
    while len(responses) < num_responses:
        responses += await engine.collect()
    return responses


def in_virtual_time(test):
    """Run an async test on the virtual loop; pytest-asyncio would run it on a real one."""
    return lambda: run_in_virtual_time(test())


@in_virtual_time
async def test_responses_carry_their_length_reason_version_and_times():
    engine = make_engine({1: ResponseLength(LENGTH, is_truncated=True), 2: ResponseLength(7, is_truncated=False)})
    await engine.load_weights(weights())
    began = asyncio.get_running_loop().time()
    assert began == 2.5
    await engine.generate([asked(number) for number in range(6)])
    responses = {response.request: response for response in await collect(engine, 6)}
    assert [responses[request(number)].num_tokens for number in range(3)] == [LENGTH, LENGTH, 7]
    assert responses[request(0)].finish_reason is FinishReason.STOP
    assert responses[request(1)].finish_reason is FinishReason.LENGTH
    assert responses[request(0)].spans[0].policy_version == 3
    assert responses[request(0)].queue_time_s == 0
    waited = responses[request(5)]  # four slots
    assert waited.queue_time_s > 0
    assert began + waited.queue_time_s + waited.generation_time_s == pytest.approx(asyncio.get_running_loop().time())
    assert len(waited.logprobs) == waited.num_tokens


@in_virtual_time
async def test_aborted_requests_come_back_once_and_unknown_ones_are_ignored():
    engine = make_engine()
    await engine.load_weights(weights())
    await engine.generate([asked(number) for number in range(6)])
    await asyncio.sleep(0.1)
    await engine.abort([request(0), request(0), request(5), request(99)])
    responses = await collect(engine, 6)
    aborted = {each.request: each.num_tokens for each in responses if each.finish_reason is FinishReason.ABORTED}
    assert aborted.keys() == {request(0), request(5)}
    assert 0 < aborted[request(0)] < LENGTH
    assert aborted[request(5)] == 0  # it was still waiting for a slot
    assert len({each.request for each in responses}) == 6
    stats = await engine.stats()
    assert (await engine.progress()).running == ()
    assert stats.num_generated_tokens == sum(each.num_tokens for each in responses)


@in_virtual_time
async def test_weights_come_between_rounds_and_before_the_first_request():
    engine = make_engine()
    with pytest.raises(ImpossibleEvent, match="holds no policy"):
        await engine.generate([asked(0)])
    assert await engine.load_weights(weights()) == weights().checksum
    await engine.generate([asked(0)])
    with pytest.raises(ImpossibleEvent, match="1 requests in flight"):
        await engine.load_weights(weights(4))
    await collect(engine, 1)
    await engine.sleep()
    await engine.wake()
    with pytest.raises(ImpossibleEvent, match="holds no policy"):
        await engine.generate([asked(1)])


@in_virtual_time
async def test_a_closed_engine_answers_a_pending_collect_with_nothing():
    engine = make_engine()
    pending = asyncio.create_task(engine.collect())
    await asyncio.sleep(0)
    await engine.close()
    assert list(await pending) == []


def make_trainer() -> ModelledTrainer:
    return ModelledTrainer(
        TrainerCosts(
            model=SMALL,
            hardware=hardware(),
            num_gpus=2,
            num_nodes=1,
            tensor_parallel=1,
            pipeline_parallel=1,
            context_parallel=1,
            max_tokens_per_microbatch=16384,
        )
    )


def shape(version: int = 0) -> BatchShape:
    return BatchShape(
        step=0,
        policy_version=version,
        oldest_policy_version=version,
        num_groups=1,
        num_responses=2,
        max_response_tokens=LENGTH,
    )


async def group(version: int = 0) -> RolloutGroup:
    engine = make_engine()
    await engine.load_weights(weights(version))
    await engine.generate([asked(0), asked(1)])
    return RolloutGroup(
        prompt=request(0).prompt,
        domain=Domain("math"),
        prompt_token_ids=blank_tokens(5),
        responses=tuple(await collect(engine, 2)),
        rewards=(0.0, 1.0),
    )


@in_virtual_time
async def test_a_step_takes_its_time_counts_the_tokens_of_a_policy_and_makes_a_new_version():
    trainer, batch = make_trainer(), await group()
    spans = (VersionSpan(0, 100), VersionSpan(ENVIRONMENT, 50), VersionSpan(0, LENGTH - 150))
    batch = replace(batch, responses=(batch.responses[0], replace(batch.responses[1], spans=spans)))
    began = asyncio.get_running_loop().time()
    await trainer.begin_step(shape())
    await trainer.accumulate([batch])
    update = await trainer.finish_step()
    assert asyncio.get_running_loop().time() > began
    assert (update.policy_version, update.num_tokens, update.loss) == (1, 2 * LENGTH - 50, None)
    assert (await trainer.export_weights()).policy_version == 1


@in_virtual_time
async def test_a_batch_that_a_real_trainer_refuses_is_refused():
    trainer = make_trainer()
    with pytest.raises(ImpossibleEvent, match="outside a step"):
        await trainer.finish_step()
    await trainer.begin_step(shape())
    with pytest.raises(ForeignVersion):
        await trainer.accumulate([await group(version=1)])
    with pytest.raises(ImpossibleEvent, match="was to finish after 0 of 1 groups"):
        await trainer.finish_step()


def test_a_checkpoint_brings_the_version_back(tmp_path):
    async def save_and_load():
        trainer, resumed = make_trainer(), make_trainer()
        await trainer.begin_step(shape())
        await trainer.accumulate([await group()])
        await trainer.finish_step()
        with pytest.raises(CheckpointError, match="cannot be read"):
            await resumed.load(tmp_path)
        await trainer.save(tmp_path)
        await resumed.load(tmp_path)
        return (await resumed.export_weights()).policy_version

    assert run_in_virtual_time(save_and_load()) == 1


@in_virtual_time
async def test_a_rollout_starts_late_once_for_each_policy():
    engine, prompt = make_engine(), make_engine()
    engine._start_s = 4.0
    ends = {}
    for each in (engine, prompt):
        await each.load_weights(weights())
        began = asyncio.get_running_loop().time()
        times = []
        for number in range(2):
            await each.generate([asked(number)])
            await collect(each, 1)
            times.append(asyncio.get_running_loop().time() - began)
            began = asyncio.get_running_loop().time()
        ends[each] = times
    assert ends[engine][0] == pytest.approx(ends[prompt][0] + 4.0)
    assert ends[engine][1] == pytest.approx(ends[prompt][1])


@in_virtual_time
async def test_every_request_waits_for_the_start_and_can_be_aborted_meanwhile():
    engine, now = make_engine(start_s=4.0), asyncio.get_running_loop().time
    await engine.load_weights(weights())
    starts_at_s = now() + 4.0
    first = asyncio.create_task(engine.generate([asked(0), asked(1)]))
    await asyncio.sleep(1)
    second = asyncio.create_task(engine.generate([asked(2)]))
    await asyncio.sleep(1)
    with pytest.raises(ImpossibleEvent, match="3 requests in flight"):
        await engine.sleep()
    await engine.abort([request(0)])
    [aborted] = await collect(engine, 1)
    assert now() == starts_at_s - 2
    assert (aborted.request, aborted.finish_reason, aborted.num_tokens) == (request(0), FinishReason.ABORTED, 0)
    await second
    assert now() == starts_at_s
    ended = await collect(engine, 2)
    assert first.done()
    assert {each.request for each in ended} == {request(1), request(2)}
    assert now() - starts_at_s > LENGTH * engine_costs(1000).pass_s(2)


@in_virtual_time
async def test_a_start_goes_on_when_the_call_that_began_it_is_cancelled():
    engine, now = make_engine(start_s=4.0), asyncio.get_running_loop().time
    await engine.load_weights(weights())
    starts_at_s = now() + 4.0
    first = asyncio.create_task(engine.generate([asked(0)]))
    await asyncio.sleep(1)
    first.cancel()
    await engine.generate([asked(1)])
    assert now() == starts_at_s
    ended = await collect(engine, 2)
    assert {each.request for each in ended} == {request(0), request(1)}


@in_virtual_time
async def test_an_engine_that_is_closed_during_its_start_generates_nothing():
    engine = make_engine(start_s=4.0)
    await engine.load_weights(weights())
    generating = asyncio.create_task(engine.generate([asked(0)]))
    await asyncio.sleep(1)
    await engine.close()
    await generating
    await asyncio.sleep(1000)
    assert (await engine.stats()).num_generated_tokens == 0


@in_virtual_time
async def test_weights_that_come_during_a_start_do_not_shorten_it():
    engine, now = make_engine(start_s=4.0, weight_transfer_s=1.0, keeps_requests=True), asyncio.get_running_loop().time
    await engine.load_weights(weights(3))
    starts_at_s = now() + 4.0
    generating = asyncio.create_task(engine.generate([asked(0)]))
    for version, transfer_at_s in ((4, starts_at_s - 3), (5, starts_at_s - 0.5)):  # the second outlasts the start
        await asyncio.sleep(transfer_at_s - now())
        await engine.load_weights(weights(version))
        assert (await engine.stats()).num_generated_tokens == 0
    assert generating.done()
    [response] = await collect(engine, 1)
    assert [span.policy_version for span in response.spans] == [5]
    assert now() > starts_at_s + 0.5


@in_virtual_time
async def test_an_engine_that_was_woken_does_not_wake_once_more_with_its_first_request():
    engine = make_engine(weight_transfer_s=0.0, switch_s=0.7, start_s=4.0, own_wake_s=0.7)
    now = asyncio.get_running_loop().time

    async def round_s(version: int) -> float:
        began = now()
        await engine.load_weights(weights(version))
        await engine.generate([asked(version)])
        started_s = now() - began
        await collect(engine, 1)
        return started_s

    async def turn() -> None:
        await engine.sleep()
        await engine.wake()

    assert await round_s(1) == pytest.approx(4.7)
    began = now()
    await turn()
    assert now() - began == pytest.approx(1.4)
    assert await round_s(2) == pytest.approx(4.0)
    assert await round_s(3) == pytest.approx(4.7)


@in_virtual_time
async def test_an_evicted_response_goes_on_in_another_engine_and_sleep_frees_the_first():
    first, second = make_engine(), make_engine()
    for engine in (first, second):
        await engine.load_weights(weights())
    await first.generate([asked(0)])
    await asyncio.sleep(0.1)
    [progress] = (await first.progress()).running
    await first.abort([request(0)])
    [begun] = await collect(first, 1)
    assert 0 < progress.num_generated_tokens <= begun.num_tokens < LENGTH
    await first.sleep()
    await second.generate([replace(asked(0), begun=begun)])
    [whole] = await collect(second, 1)
    assert (whole.num_tokens, whole.finish_reason) == (LENGTH, FinishReason.STOP)
    assert (await second.stats()).num_generated_tokens == LENGTH - begun.num_tokens
    await first.wake()
    with pytest.raises(ImpossibleEvent, match="no policy"):
        await first.generate([asked(1)])


@in_virtual_time
async def test_a_response_that_goes_on_under_new_weights_has_a_span_of_each_version():
    engine = make_engine()
    await engine.load_weights(weights(0))
    await engine.generate([asked(0)])
    await asyncio.sleep(0.1)
    await engine.abort([request(0)])
    [first] = await collect(engine, 1)
    await engine.load_weights(weights(1))
    with pytest.raises(ImpossibleEvent, match="begun by policy version 0"):
        await engine.generate([replace(asked(0), begun=first)])
    going_on = replace(asked(0), begun=first, oldest_policy_version=0)
    await engine.generate([going_on])
    await asyncio.sleep(0.05)
    await engine.abort([request(0)])
    [second] = await collect(engine, 1)
    assert first.num_tokens < second.num_tokens < LENGTH
    await engine.load_weights(weights(2))
    began = asyncio.get_running_loop().time()
    await engine.generate([replace(going_on, begun=second)])
    [whole] = await collect(engine, 1)
    went_on_s = asyncio.get_running_loop().time() - began
    assert sum(span.num_tokens for span in whole.spans) == whole.num_tokens == LENGTH
    assert [span.policy_version for span in whole.spans] == [0, 1, 2]
    assert whole.spans[0].num_tokens == first.num_tokens
    # what was kept is computed again, as a prompt: cheaper than to generate it, not free
    fresh = make_engine()
    await fresh.load_weights(weights())
    began = asyncio.get_running_loop().time()
    await fresh.generate([asked(1)])
    await collect(fresh, 1)
    assert went_on_s < asyncio.get_running_loop().time() - began
    assert went_on_s > fresh._decoder._costs.prefill_pass_s(0, [(0, second.num_tokens)])


@in_virtual_time
async def test_a_next_turn_finds_what_the_last_one_left_on_its_engine_until_new_weights_come():
    def length_of(asked):
        return ResponseLength(LENGTH if asked.begun else 100, is_truncated=False)

    def next_turn(number):
        return replace(asked(number), begun=turns[request(number)], oldest_policy_version=0)

    engine, other = (make_engine(keeps_prefixes=True, length_of=length_of) for _ in range(2))
    for each in (engine, other):
        await each.load_weights(weights(0))
    await engine.generate([asked(number) for number in range(3)])
    turns = {turn.request: turn for turn in await collect(engine, 3)}
    for each, number in ((engine, 0), (other, 1)):
        await each.generate([next_turn(number)])
        [whole] = await collect(each, 1)
        assert whole.num_tokens == LENGTH
    assert [(await each.stats()).num_prefix_hit_tokens for each in (engine, other)] == [96, 0]
    await engine.load_weights(weights(1))
    await engine.generate([next_turn(2)])
    await collect(engine, 1)
    assert (await engine.stats()).num_prefix_hit_tokens == 96
