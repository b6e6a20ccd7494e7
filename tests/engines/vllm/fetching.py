"""An engine of vLLM fetches the policy from a trainer of two ranks, beside an engine of another kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from rollpacker.config.sections.engine import EngineSection
from rollpacker.core.errors import WeightSyncFailed
from rollpacker.core.ids import EngineId
from rollpacker.engines.torch.engine import TorchEngine
from rollpacker.protocols.tensors import PIECE_BYTES, checksum_of_tensors, named_tensors
from rollpacker.runtime.ray.trainer_group import TrainerGroup
from rollpacker.runtime.ray.weight_sync import OfferSync
from rollpacker.transfer.offers import SendingOptions
from tests.engines.exercises import PATIENCE_S, change, collect
from tests.engines.tiny import check_logprobs, mixed_requests
from tests.engines.vllm.models import make_model
from tests.transfer.shards import ranks_of

if TYPE_CHECKING:
    from pathlib import Path

    from rollpacker.engines.vllm.engine import VllmEngine


async def check_fetching(engine: VllmEngine, folder: Path) -> None:
    """Both engines have the trainer's log-probabilities after each sync; what lacks a tensor is refused."""
    other = TorchEngine(
        EngineId("other"), folder, EngineSection(max_num_seqs=8), max_tokens_per_seq=512, dtype="float32"
    )
    engines = {EngineId("engine-0"): engine, EngineId("other"): other}
    try:
        model = make_model(seed=3)
        for version, transport in enumerate(("handles", "broadcast")):
            change(model)
            tensors = {name: tensor.clone() for name, tensor in named_tensors(model).items()}
            published = await _sync_of(tensors, transport, version).publish(engines)
            assert (published.checksum, published.lost) == (checksum_of_tensors(tensors), {})
            assert published.num_bytes == 4 * sum(parameter.numel() for parameter in model.parameters())
            for each in engines.values():
                await _check_parity(each, model, version)
        lacking = {name: tensor for name, tensor in tensors.items() if name != "model.norm.weight"}
        with pytest.raises(WeightSyncFailed, match=r"missing \['model.norm.weight'\]"):
            await _sync_of(lacking, "handles", 5).publish(engines)
        assert {(await each.stats()).policy_version for each in engines.values()} == {-1}
        assert not (await _sync_of(tensors, "handles", 6).publish(engines)).lost
        await _check_parity(engine, model, 6)
    finally:
        await other.close()


def _sync_of(tensors: dict[str, torch.Tensor], transport: Any, version: int) -> OfferSync:
    ranks = ranks_of(tensors)
    for rank in ranks:
        rank.policy_version = version
    options = SendingOptions(
        transport=transport, bucket_bytes=PIECE_BYTES, timeout_s=PATIENCE_S, deadline_s=2 * PATIENCE_S
    )
    return OfferSync(ranks[0], TrainerGroup(ranks, share=lambda groups: groups), options)


async def _check_parity(engine: Any, model: Any, version: int) -> None:
    requests = mixed_requests(4, seed=version)
    await engine.generate(requests)
    responses = await collect(engine, 4)
    check_logprobs(model, requests, responses)
    for response in responses.values():
        assert [span.policy_version for span in response.spans] == [version]
