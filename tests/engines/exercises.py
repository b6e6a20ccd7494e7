"""What tests do with any engine: give it weights, collect what it makes of requests, hold that against transformers."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from rollpacker.core.ids import VersionSpan
from rollpacker.protocols.rollout import FinishReason
from rollpacker.protocols.tensors import checksum_of_tensors, named_tensors, num_bytes_of_tensors
from rollpacker.protocols.weights import Weights
from tests.engines.tiny import check_logprobs, make_request, mixed_requests, reference_logprobs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rollpacker.core.ids import RequestId
    from rollpacker.protocols.engine import Engine
    from rollpacker.protocols.members import MemberEngine
    from rollpacker.protocols.rollout import GenerationRequest, Response, TokenIncrement

PATIENCE_S = 120.0
"""For anything that an engine does; the machine may be busy."""


def change(model: Any) -> None:
    """Move every parameter, as a training step would."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)


def weights_of(model: Any, version: int) -> Weights:
    return as_weights({name: tensor.clone() for name, tensor in named_tensors(model).items()}, version)


def as_weights(payload: Mapping[str, torch.Tensor], version: int) -> Weights:
    return Weights(
        policy_version=version,
        checksum=checksum_of_tensors(payload),
        num_bytes=num_bytes_of_tensors(payload),
        payload=payload,
    )


async def collect(engine: Engine, num: int) -> dict[str, Response]:
    """Responses by their prompts' names, each of them once."""
    responses: dict[str, Response] = {}
    async with asyncio.timeout(PATIENCE_S):
        while len(responses) < num:
            for response in await engine.collect():
                assert response.request.prompt.key not in responses
                responses[response.request.prompt.key] = response
    return responses


async def check_parity_over_updates(engine: Engine, model: Any) -> None:
    """Log-probabilities are those of the model's own forward pass, over five weight updates; the model is changed."""
    for version in range(6):
        weights = weights_of(model, version)
        assert await engine.load_weights(weights) == weights.checksum
        requests = mixed_requests(6, seed=version)
        await engine.generate(requests)
        responses = await collect(engine, 6)
        check_logprobs(model, requests, responses)
        for response in responses.values():
            assert response.engine == "engine-0"
            assert response.spans == (VersionSpan(policy_version=version, num_tokens=response.num_tokens),)
        change(model)


async def check_spans_of_continued_responses(engine: Engine, model: Any) -> None:
    """Each span's log-probabilities are those of its version's own forward pass; the model is changed."""
    asked = {request.request.prompt.key: request for request in mixed_requests(16)}
    longest = {name: 24 if index % 2 else 12 for index, name in enumerate(asked)}
    expected: dict[str, list[torch.Tensor]] = {name: [] for name in asked}
    begun: dict[str, Response] = {}
    for version, limit in enumerate((6, 12, 24)):
        await engine.load_weights(weights_of(model, version))
        going_on = {
            name: dataclasses.replace(
                request,
                max_response_tokens=min(limit, longest[name]),
                begun=begun.get(name),
                oldest_policy_version=0 if begun else None,
                launch=version + 1,
            )
            for name, request in asked.items()
            if name not in begun
            or (begun[name].finish_reason is FinishReason.LENGTH and begun[name].num_tokens < longest[name])
        }
        await engine.generate(list(going_on.values()))
        for name, response in (await collect(engine, len(going_on))).items():
            kept = begun[name].num_tokens if name in begun else 0
            assert response.token_ids[:kept].tolist() == (begun[name].token_ids.tolist() if kept else [])
            assert response.launch == version + 1
            expected[name].append(reference_logprobs(model, asked[name], response.token_ids)[kept:])
            begun[name] = response
        change(model)
    num_versions = []
    for name, response in begun.items():
        spans = [VersionSpan(version, len(logprobs)) for version, logprobs in enumerate(expected[name])]
        assert response.spans == tuple(spans)
        torch.testing.assert_close(torch.from_numpy(response.logprobs), torch.cat(expected[name]), rtol=0, atol=1e-4)
        num_versions.append(len(spans))
    assert {2, 3} <= set(num_versions)


async def check_spans_of_kept_responses(engine: Engine, model: Any, num_slots: int) -> None:
    """An engine that takes weights with requests in flight samples by the new ones over the cache of the old ones.

    Each token's log-probability is that of such a pass, and of a fresh pass of the version of the first span. Later
    requests share nothing of that cache, nor do those that wait for a slot. The model is changed; responses end by
    their limit; there are fewer slots than 6.
    """
    prompt = [3 + place % 30 for place in range(130)]  # more than a block of any cache of prefixes
    asked = {f"p{index}": make_request(f"p{index}", prompt, seed=index, max_response_tokens=110) for index in range(6)}
    models = [copy.deepcopy(model)]
    await engine.load_weights(weights_of(model, 0))
    await engine.generate(list(asked.values()))
    for version in (1, 2):
        await until_longer(engine, num_slots)
        change(model)
        models.append(copy.deepcopy(model))
        weights = weights_of(model, version)
        assert await engine.load_weights(weights) == weights.checksum
    num_versions = []
    for name, response in (await collect(engine, len(asked))).items():
        assert [span.policy_version for span in response.spans] == sorted(
            {span.policy_version for span in response.spans}
        )
        expected = _logprobs_over_kept_cache(models, asked[name], response)
        torch.testing.assert_close(torch.from_numpy(response.logprobs), expected, rtol=0, atol=1e-4)
        first = response.spans[0]
        fresh = reference_logprobs(models[first.policy_version], asked[name], response.token_ids)[: first.num_tokens]
        torch.testing.assert_close(expected[: first.num_tokens], fresh, rtol=0, atol=1e-4)
        num_versions.append(len(response.spans))
    assert max(num_versions) == 3
    assert min(num_versions) == 1
    again = [dataclasses.replace(request, max_response_tokens=4) for request in asked.values()]
    await engine.generate(again)
    check_logprobs(model, again, await collect(engine, len(again)))


async def check_slots_of_kept_responses(engine: Engine, model: Any) -> None:
    """What goes on with other weights has its slots; those of responses that ended before are not idle any more."""
    short = [make_request(f"short{index}", seed=index, max_response_tokens=8) for index in range(3)]
    await engine.load_weights(weights_of(model, 3))
    await engine.generate([*short, make_request("long", max_response_tokens=110)])
    await collect(engine, len(short))
    await engine.load_weights(weights_of(model, 4))
    num_idle = (await engine.stats()).idle_slot_steps
    (response,) = (await collect(engine, 1)).values()
    assert len(response.spans) == 2
    assert (await engine.stats()).idle_slot_steps == num_idle


async def until_longer(engine: Engine, num_slots: int) -> None:
    """Wait until so many of the requests in flight, or all that are left, are longer than they were."""
    before = {running.request: running.num_generated_tokens for running in (await engine.progress()).running}
    async with asyncio.timeout(PATIENCE_S):
        while running := (await engine.progress()).running:
            num_longer = sum(each.num_generated_tokens > before[each.request] for each in running)
            if num_longer >= min(num_slots, len(running)):
                return
            await asyncio.sleep(0)


@torch.no_grad()
def _logprobs_over_kept_cache(models: list[Any], asked: GenerationRequest, response: Response) -> torch.Tensor:
    """What each version gives for the tokens of its span, over the keys and values that the ones before computed."""
    prompt = asked.prompt_token_ids.tolist()
    sequence = torch.tensor([[*prompt, *response.token_ids.tolist()]])
    cache, begin, end, logits = DynamicCache(), 0, len(prompt) - 1, []
    for span in response.spans:
        end += span.num_tokens
        model = models[span.policy_version]
        logits.append(model(input_ids=sequence[:, begin:end], past_key_values=cache, use_cache=True).logits[0])
        begin = end
    logprobs = (torch.cat(logits).float() / asked.temperature).log_softmax(-1)
    return logprobs.gather(1, sequence[0, 1:, None])[len(prompt) - 1 :, 0]


async def check_increments(engine: MemberEngine, model: Any) -> None:
    """What is told before a response ends is its beginning, once and without a gap, also where another one began it."""
    await engine.load_weights(weights_of(model, 3))
    assert not await engine.increments()
    asked = [make_request(f"p{index}", seed=index, max_response_tokens=200) for index in range(4)]
    told = await _told_of(engine, asked, at_least=32)
    await engine.abort([request.request for request in asked])
    responses = await collect(engine, 4)
    for request in asked:
        told.check(request, responses[request.request.prompt.key])
    begun = max(responses.values(), key=lambda response: response.num_tokens)
    going_on = dataclasses.replace(next(each for each in asked if each.request == begun.request), begun=begun)
    told = await _told_of(engine, [going_on], at_least=1)
    await engine.abort([going_on.request])
    told.check(going_on, (await collect(engine, 1))[going_on.request.prompt.key])
    assert not await engine.increments()


async def _told_of(engine: MemberEngine, asked: Sequence[GenerationRequest], at_least: int) -> _Told:
    """Generate until so many tokens of a request are told; on a busy machine all may end before one looks."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            told = _Told()
            await engine.generate(asked)
            if await told.hears(engine, lambda: any(told.num_tokens(each) >= at_least for each in asked)):  # noqa: B023
                return told
            await collect(engine, len(asked))


class _Told:
    """Increments by request."""

    def __init__(self) -> None:
        self._by_request: dict[RequestId, list[TokenIncrement]] = {}

    def num_tokens(self, request: GenerationRequest) -> int:
        return sum(len(each.token_ids) for each in self._by_request.get(request.request, ()))

    async def hears(self, engine: MemberEngine, is_enough: Callable[[], bool]) -> bool:
        """Listen until that is enough; False if everything has ended before."""
        while (await engine.progress()).running:
            for increment in await engine.increments():
                self._by_request.setdefault(increment.request, []).append(increment)
            if is_enough():
                return True
            await asyncio.sleep(0.001)
        return False

    def check(self, request: GenerationRequest, response: Response) -> None:
        place = request.begun.num_tokens if request.begun else 0
        for each in self._by_request.get(request.request, ()):
            assert (each.first_index, each.policy_version) == (place, 3)
            told = slice(place, place + len(each.token_ids))
            assert response.token_ids[told].tolist() == each.token_ids.tolist()
            assert response.logprobs[told].tolist() == each.logprobs.tolist()
            place = told.stop
