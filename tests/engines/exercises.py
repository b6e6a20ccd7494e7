"""What tests do with any engine: give it weights, collect what it makes of requests, hold that against transformers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import torch

from rollpacker.core.ids import VersionSpan
from rollpacker.protocols.tensors import checksum_of_tensors, named_tensors, num_bytes_of_tensors
from rollpacker.protocols.weights import Weights
from tests.engines.tiny import mixed_requests, reference_logprobs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollpacker.protocols.engine import Engine
    from rollpacker.protocols.rollout import Response

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
        for asked in requests:
            response = responses[asked.request.prompt.key]
            assert response.engine == "engine-0"
            assert response.spans == (VersionSpan(policy_version=version, num_tokens=response.num_tokens),)
            expected = reference_logprobs(model, asked, response.token_ids)
            torch.testing.assert_close(torch.from_numpy(response.logprobs), expected, rtol=0, atol=1e-4)
        change(model)
