"""The engine as the driver sees it: its thread, its weights, its memory, its end. And what its model directory says."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers

from rollpacker.config.sections.engine import EngineSection
from rollpacker.core.errors import EngineFailed, ImpossibleEvent, ModelError, WeightSyncFailed
from rollpacker.core.ids import EngineId, VersionSpan
from rollpacker.engines.checks import NO_VERSION
from rollpacker.engines.end_tokens import end_tokens
from rollpacker.engines.torch.engine import TorchEngine
from rollpacker.engines.torch.model_files import load_model
from rollpacker.protocols.rollout import FinishReason
from rollpacker.protocols.tensors import checksum_of_tensors, named_tensors
from rollpacker.protocols.weights import Weights
from tests.engines.exercises import (
    check_increments,
    check_parity_over_updates,
    check_slots_of_kept_responses,
    check_spans_of_continued_responses,
    check_spans_of_kept_responses,
    collect,
    weights_of,
)
from tests.engines.tiny import (
    EOS,
    LONG_FACTOR,
    LONGROPE_LIMIT,
    check_logprobs,
    longrope_config,
    make_model,
    make_model_of,
    make_request,
    mixed_requests,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@asynccontextmanager
async def running(
    model_path: Path, *, max_num_seqs: int = 8, dtype: str = "float32", keeps_requests: bool = False
) -> AsyncIterator[TorchEngine]:
    section = EngineSection(max_num_seqs=max_num_seqs)
    engine = TorchEngine(EngineId("engine-0"), model_path, section, 256, dtype, keeps_requests=keeps_requests)
    try:
        yield engine
    finally:
        await engine.close()


async def test_logprobs_stay_those_of_the_senders_forward_pass_over_weight_updates(
    model: Any, model_path: Path
) -> None:
    async with running(model_path) as engine:
        await check_parity_over_updates(engine, model)


async def test_a_response_that_goes_on_under_new_weights_keeps_the_logprobs_of_each_version(
    model: Any, model_path: Path
) -> None:
    async with running(model_path) as engine:
        await check_spans_of_continued_responses(engine, model)


async def test_an_engine_that_keeps_requests_goes_on_with_their_cache_under_new_weights(
    model: Any, tmp_path: Path
) -> None:
    async with running(save_without_end(model, tmp_path), max_num_seqs=4, keeps_requests=True) as engine:
        await check_spans_of_kept_responses(engine, model, num_slots=4)
        await check_slots_of_kept_responses(engine, model)


async def test_a_response_that_has_all_its_tokens_is_not_gone_on_with(model: Any, model_path: Path) -> None:
    async with running(model_path) as engine:
        await engine.load_weights(weights_of(model, 0))
        await engine.generate([make_request()])
        whole = (await collect(engine, 1))["p"]
        again = replace(make_request(), begun=whole, max_response_tokens=whole.num_tokens)
        with pytest.raises(ImpossibleEvent, match=f"was begun with {whole.num_tokens} tokens"):
            await engine.generate([again])


async def test_tokens_are_told_as_they_come(model: Any, model_path: Path) -> None:
    async with running(model_path) as engine:
        await check_increments(engine, model)


async def test_loading_twice_keeps_the_last_weights(model: Any, model_path: Path) -> None:
    async with running(model_path) as engine:
        first, second = weights_of(make_model(seed=5), 0), weights_of(model, 1)
        assert first.checksum != second.checksum
        assert await engine.load_weights(first) == first.checksum
        assert await engine.load_weights(second) == second.checksum
        assert await engine.load_weights(second) == second.checksum
        assert (await engine.stats()).policy_version == 1
        await engine.generate([make_request()])
        check_logprobs(model, [make_request()], await collect(engine, 1))


async def test_bfloat16_weights_arrive_with_the_senders_checksum(model_path: Path) -> None:
    async with running(model_path, dtype="bfloat16") as engine:
        weights = weights_of(make_model(seed=3).bfloat16(), 0)
        assert await engine.load_weights(weights) == weights.checksum
        await engine.generate([make_request()])
        assert (await collect(engine, 1))["p"].logprobs.dtype == "float32"


def test_a_tied_tensor_is_named_once_as_in_the_file(model: Any) -> None:
    assert "model.embed_tokens.weight" in named_tensors(model)
    assert "lm_head.weight" not in named_tensors(model)
    assert "lm_head.weight" in named_tensors(make_model("llama"))
    assert list(named_tensors(model)) == sorted(named_tensors(model))


def test_the_checksum_sees_every_name_and_every_byte(model: Any) -> None:
    tensors = {name: tensor.clone() for name, tensor in named_tensors(model).items()}
    before = checksum_of_tensors(tensors)
    assert checksum_of_tensors(dict(reversed(tensors.items()))) == before
    tensors["model.norm.weight"][-1] += 1e-6
    assert checksum_of_tensors(tensors) != before
    tensors["model.norm.weight"] = named_tensors(model)["model.norm.weight"]
    tensors["model.norm.weights"] = tensors.pop("model.norm.weight")
    assert checksum_of_tensors(tensors) != before


async def test_weights_of_another_model_are_refused_by_name_and_change_nothing(model: Any, model_path: Path) -> None:
    async with running(model_path) as engine:
        held = weights_of(model, 4)
        await engine.load_weights(held)
        other = dict(held.payload)
        other["model.norm.scale"] = other.pop("model.norm.weight")
        with pytest.raises(
            WeightSyncFailed, match=r"missing \['model.norm.weight'\], unexpected \['model.norm.scale'\]"
        ):
            await engine.load_weights(Weights(policy_version=5, checksum="", num_bytes=0, payload=other))
        wrong_shape = {name: tensor + 1 for name, tensor in held.payload.items()}
        wrong_shape["model.norm.weight"] = torch.zeros(31)
        with pytest.raises(WeightSyncFailed, match=r"model.norm.weight as torch.float32 of shape \(31,\)"):
            await engine.load_weights(Weights(policy_version=5, checksum="", num_bytes=0, payload=wrong_shape))
        wrong_dtype = {name: tensor.bfloat16() for name, tensor in held.payload.items()}
        with pytest.raises(WeightSyncFailed, match=r"torch\.bfloat16"):
            await engine.load_weights(Weights(policy_version=5, checksum="", num_bytes=0, payload=wrong_dtype))
        assert (await engine.stats()).policy_version == 4
        assert await engine.load_weights(held) == held.checksum


async def test_weights_and_sleep_are_refused_while_requests_are_in_flight(model: Any, tmp_path: Path) -> None:
    async with running(save_without_end(model, tmp_path), max_num_seqs=1) as engine:
        await engine.load_weights(weights_of(model, 0))
        requests = [make_request(name, max_response_tokens=240) for name in ("running", "waiting")]
        weights = weights_of(model, 1)
        # all at once: on a busy machine the engine might be done between two calls
        _, *refusals, _ = await asyncio.gather(
            engine.generate(requests),
            engine.load_weights(weights),
            engine.sleep(),
            engine.abort([request.request for request in requests]),
            return_exceptions=True,
        )
        for refusal, wish in zip(refusals, ("load weights with", "sleep with"), strict=True):
            assert isinstance(refusal, ImpossibleEvent)
            assert wish in str(refusal)
        await collect(engine, 2)
        assert (await engine.stats()).policy_version == 0


async def test_an_abort_returns_what_was_generated(model: Any, tmp_path: Path) -> None:
    async with running(save_without_end(model, tmp_path), max_num_seqs=1) as engine:
        await engine.load_weights(weights_of(model, 7))
        requests = [make_request(name, max_response_tokens=250) for name in ("running", "waiting")]
        await engine.generate(requests)
        while not (await engine.stats()).num_generated_tokens:
            pass
        await engine.abort([request.request for request in requests])
        responses = await collect(engine, 2)
        assert responses["running"].finish_reason is FinishReason.ABORTED
        assert responses["running"].num_tokens > 0
        assert responses["running"].spans == (
            VersionSpan(policy_version=7, num_tokens=responses["running"].num_tokens),
        )
        assert responses["waiting"].finish_reason is FinishReason.ABORTED
        assert responses["waiting"].num_tokens == 0
        assert responses["waiting"].spans == ()


async def test_stats_follow_the_work(model: Any, model_path: Path) -> None:
    async with running(model_path, max_num_seqs=4) as engine:
        before = await engine.stats()
        assert before.policy_version == NO_VERSION
        assert before.kv_tokens_capacity == 4 * 256
        await engine.load_weights(weights_of(model, 2))
        await engine.generate(mixed_requests(9))
        responses = await collect(engine, 9)
        stats = await engine.stats()
        assert stats.policy_version == 2
        assert (await engine.progress()).running == ()
        assert stats.num_generated_tokens == sum(response.num_tokens for response in responses.values())
        assert stats.busy_slot_steps + stats.idle_slot_steps == 4 * stats.num_decode_steps


async def test_requests_without_a_policy_or_beyond_the_limit_are_refused_and_harm_nothing(
    model: Any, model_path: Path
) -> None:
    async with running(model_path) as engine:
        with pytest.raises(ImpossibleEvent, match="holds no policy"):
            await engine.generate([make_request()])
        await engine.load_weights(weights_of(model, 0))
        for num_prompt, num_response in ((0, 5), (200, 57), (257, 1), (5, 0)):
            other = make_request("other", [3] * num_prompt, max_response_tokens=num_response)
            with pytest.raises(ImpossibleEvent, match=f"{num_prompt} prompt tokens and asks for {num_response} more"):
                await engine.generate([make_request("short"), other])
        with pytest.raises(ImpossibleEvent, match="is given 2 times in one call"):
            await engine.generate([make_request("short"), make_request("short")])
        await engine.generate([make_request("short")])
        assert list(await collect(engine, 1)) == ["short"]


async def test_a_model_with_fewer_positions_than_the_limit_refuses_by_its_own(tmp_path: Path) -> None:
    model = make_model("gpt2")
    model.save_pretrained(tmp_path)
    engine = TorchEngine(EngineId("e"), tmp_path, EngineSection(), max_tokens_per_seq=4096, dtype="float32")
    await engine.load_weights(weights_of(model, 0))
    with pytest.raises(ImpossibleEvent) as error:
        await engine.generate([make_request(prompt=[3] * 510, max_response_tokens=3)])
    assert "at most 512" in error.value.allowed
    await engine.close()


@pytest.mark.parametrize(("longest", "factor"), [(LONGROPE_LIMIT, 1.0), (LONGROPE_LIMIT + 1, LONG_FACTOR)])
async def test_a_longrope_has_the_factors_of_the_longest_sequence_whatever_is_in_the_batch(
    longest: int, factor: float, tmp_path: Path
) -> None:
    model, reference = make_model_of(longrope_config()), make_model_of(longrope_config(short_factor=factor))
    model.save_pretrained(tmp_path)
    engine = TorchEngine(EngineId("e"), tmp_path, EngineSection(), longest, "float32")
    await engine.load_weights(weights_of(model, 0))
    requests = [make_request("short"), make_request("long", [3] * (longest - 4), max_response_tokens=4)]
    for batch in (requests, requests[:1]):
        await engine.generate(batch)
        check_logprobs(reference, batch, await collect(engine, len(batch)))
    await engine.close()


async def test_an_engine_that_stands_by_takes_weights_and_generates_when_it_wakes(model: Any, model_path: Path) -> None:
    async with running(model_path) as engine:
        await engine.sleep()
        await engine.stand_by()
        await engine.stand_by()
        weights = weights_of(model, 3)
        assert await engine.load_weights(weights) == weights.checksum
        await engine.wake()
        assert (await engine.stats()).policy_version == 3
        await engine.generate([make_request()])
        assert (await collect(engine, 1))["p"].num_tokens > 0


async def test_sleep_frees_weights_and_cache_and_wake_takes_them_back(model: Any, model_path: Path) -> None:
    async with running(model_path) as engine:
        weights = weights_of(model, 0)
        await engine.load_weights(weights)
        await engine.generate([make_request()])
        first = (await collect(engine, 1))["p"]
        await engine.sleep()
        await engine.sleep()
        assert sum(parameter.untyped_storage().nbytes() for parameter in engine._model.parameters()) == 0
        assert not engine._decoder._cache.layers
        with pytest.raises(ImpossibleEvent, match="holds no policy"):
            await engine.generate([make_request()])
        with pytest.raises(ImpossibleEvent, match="while it sleeps"):
            await engine.load_weights(weights)
        await engine.wake()
        with pytest.raises(ImpossibleEvent, match="holds no policy"):
            await engine.generate([make_request()])
        assert await engine.load_weights(weights) == weights.checksum
        await engine.generate([make_request()])
        assert (await collect(engine, 1))["p"].token_ids.tolist() == first.token_ids.tolist()


async def test_an_error_in_the_decode_loop_is_raised_from_collect_and_ends_the_engine(
    model: Any, model_path: Path
) -> None:
    engine = TorchEngine(EngineId("engine-3"), model_path, EngineSection(), max_tokens_per_seq=256, dtype="float32")
    await engine.load_weights(weights_of(model, 0))
    pending = asyncio.create_task(engine.collect())
    await engine.generate([make_request(prompt=[39, 40])])  # token 40 is outside the vocabulary
    with pytest.raises(EngineFailed, match=r"engine-3 stopped generating: IndexError: index out of range"):
        await pending
    for call in (engine.collect, engine.stats, engine.sleep):
        with pytest.raises(EngineFailed, match="index out of range"):
            await call()
    with pytest.raises(EngineFailed, match="index out of range"):
        await engine.generate([make_request("other")])
    await engine.close()


@pytest.mark.parametrize("ahead", ["a cancelled question", "an order that fails"])
async def test_a_question_is_answered_when_the_engine_fails_before_its_turn(
    model: Any, model_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: str
) -> None:
    engine = TorchEngine(EngineId("engine-3"), model_path, EngineSection(), max_tokens_per_seq=256, dtype="float32")
    await engine.load_weights(weights_of(model, 0))
    began, may_go_on = threading.Event(), threading.Event()

    def fail() -> None:
        raise RuntimeError("out of memory")

    def step() -> list[Any]:
        began.set()
        may_go_on.wait()
        if ahead == "a cancelled question":
            fail()
        return []

    monkeypatch.setattr(engine._decoder, "step", step)
    await engine.generate([make_request()])
    await asyncio.to_thread(began.wait)
    if ahead == "an order that fails":
        engine._order(fail)
    else:
        cancelled = asyncio.create_task(engine.progress())
        await asyncio.sleep(0)  # it is queued
        cancelled.cancel()
    question = asyncio.create_task(engine.stats())
    await asyncio.sleep(0)
    may_go_on.set()
    with pytest.raises(EngineFailed, match="out of memory"):
        await asyncio.wait_for(question, 30)
    await engine.close()


async def test_a_diverged_policy_ends_the_engine_with_a_reason(model: Any, model_path: Path) -> None:
    engine = TorchEngine(EngineId("engine-0"), model_path, EngineSection(), max_tokens_per_seq=256, dtype="float32")
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    await engine.load_weights(weights_of(model, 0))
    await engine.generate([make_request("a"), make_request("b")])
    with pytest.raises(EngineFailed, match=r"logits are not finite numbers.\nSeen in r0:a@0#0."):
        await engine.collect()
    await engine.close()


async def test_close_returns_what_is_left_to_a_pending_collect_and_ends_the_thread(model: Any, tmp_path: Path) -> None:
    async with running(save_without_end(model, tmp_path), max_num_seqs=1) as engine:
        await engine.load_weights(weights_of(model, 0))
        await engine.generate([make_request(name, max_response_tokens=250) for name in ("running", "waiting")])
        pending = asyncio.create_task(engine.collect())
        await asyncio.sleep(0)
        await engine.close()
        responses = await pending
        assert {response.request.prompt.key for response in responses} == {"running", "waiting"}
        assert await engine.collect() == ()
        assert not engine._thread.is_alive()
        with pytest.raises(ImpossibleEvent, match="after it was closed"):
            await engine.generate([make_request()])


async def test_a_cancelled_collect_loses_no_response(model: Any, model_path: Path) -> None:
    async with running(model_path) as engine:
        await engine.load_weights(weights_of(model, 0))
        cancelled = asyncio.create_task(engine.collect())
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await engine.generate([make_request("a"), make_request("b")])
        assert set(await collect(engine, 2)) == {"a", "b"}


async def test_an_engine_without_work_burns_no_time(model_path: Path) -> None:
    async with running(model_path) as engine:
        rounds = 0
        wait_for = engine._changed.wait_for

        def counting(predicate: Any) -> bool:
            nonlocal rounds
            rounds += 1
            return wait_for(predicate)

        engine._changed.wait_for = counting  # type: ignore[method-assign]
        await engine.stats()
        rounds = 0
        await asyncio.sleep(0.05)
        assert rounds <= 1


def test_every_end_token_of_the_directory_counts(model_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "chat"
    shutil.copytree(model_path, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 3]}))
    assert end_tokens(folder) == (EOS, 3, 5)


def test_the_tokenizers_end_token_counts_where_no_config_names_one(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    model = make_model()
    model.config.eos_token_id = None
    model.generation_config.eos_token_id = None
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="names no end-of-sequence token"):
        end_tokens(tmp_path)
    vocabulary = {f"t{index}": index for index in range(39)} | {"</s>": 39}
    words = Tokenizer(models.WordLevel(vocabulary, "t0"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>")  # noqa: S106  # no password
    tokenizer.save_pretrained(tmp_path)
    assert end_tokens(tmp_path) == (39,)


@pytest.mark.parametrize("content", [None, "{", '{"model_type": "no-such-architecture"}'])
def test_a_directory_without_a_causal_language_model_is_the_users_mistake(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match="cannot be loaded as a causal language model"):
        load_model(tmp_path, "float32")


def test_importing_the_package_of_engines_imports_no_torch() -> None:
    code = "import sys, rollpacker.engines, rollpacker.protocols.tensors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def save_without_end(model: Any, folder: Path) -> Path:
    """A directory of the same model whose only end token is outside the vocabulary, so that it is never drawn."""
    model.config.eos_token_id = model.generation_config.eos_token_id = 10_000
    model.save_pretrained(folder)
    return folder
