"""Weights that vLLM's workers fetch themselves, by `rollpacker.transfer`.

The sender is the trainer, past the engine's process, or that process (`sending`). Each worker is a receiver of its own:
it gets every tensor whole, and vLLM's loaders take the worker's shard of it, so any layout of the trainer meets any
layout of the engine. `fetch_weights` runs in the engine's process, all else in the workers.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.engine.exceptions import EngineDeadError

from rollpacker.core.errors import EngineFailed, WeightSyncFailed
from rollpacker.protocols.tensors import dtype_name
from rollpacker.transfer.offers import ReceiverName, WeightOffer
from rollpacker.transfer.receiver import receive_weights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vllm.v1.engine.async_llm import AsyncLLM

    from rollpacker.core.ids import EngineId
    from rollpacker.engines.vllm.worker import PolicyReceiver


Answer = tuple[str, list[list[Any]], str]
"""A worker's: the checksum of what it received, name, dtype and shape of each tensor, and why it failed, or nothing.

A worker raises nothing: vLLM 0.32 stops reading its workers' answers at the first that raised, and takes those that it
left for answers to its next calls.
"""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What every worker of an engine received."""

    checksum: str
    tensors: Mapping[str, torch.Tensor]
    """Their names, shapes and dtypes; no values."""


async def fetch_weights(
    llm: AsyncLLM, engine: EngineId, offer: WeightOffer, policy_version: int, *, keeps_cache: bool = False
) -> Fetched:
    """Let all workers replace their weights by those offered. Nothing may be generated.

    Raises:
        EngineFailed: A worker did not get them. The model is useless until it gets others.
        WeightSyncFailed: What the old policy computed could not be forgotten.
    """
    try:
        answers = await llm.collective_rpc("receive_offer", args=(dataclasses.asdict(offer), str(engine)))
        fetched = _fetched(answers)
        await llm.update_weight_version(str(policy_version))
        has_forgotten = keeps_cache or await llm.reset_prefix_cache(reset_running_requests=True)
    except EngineDeadError:
        raise
    except Exception as error:  # vLLM reports its own failures as a plain Exception
        raise EngineFailed(f"{engine} did not fetch policy version {policy_version}: {error}") from error
    if not has_forgotten:
        raise WeightSyncFailed("vLLM's prefix cache still holds what the old policy computed.")
    return fetched


def _fetched(answers: Sequence[Answer]) -> Fetched:
    """What all workers received; raises `EngineFailed` where one failed."""
    if failures := [why for _, _, why in answers if why]:
        raise EngineFailed("; ".join(dict.fromkeys(failures)))
    checksum, described, _ = answers[0]  # each worker has compared its own with the sender's
    tensors = {name: torch.empty(shape, dtype=getattr(torch, dtype), device="meta") for name, dtype, shape in described}
    return Fetched(checksum=checksum, tensors=tensors)


def receive_offer(receiver: PolicyReceiver, offer: Mapping[str, Any], engine: str) -> Answer:
    """Fetch the weights in a worker."""
    parallel = receiver.parallel_config
    name = ReceiverName(engine=engine, rank=parallel.rank, num_ranks=parallel.world_size)
    loader = _ReloadLoader(receiver)
    try:
        checksum = receive_weights(WeightOffer(**offer), name, loader, receiver.device)
    except Exception as error:  # noqa: BLE001  # the worker's boundary: `fetch_weights` raises it
        _LOG.exception("%s did not receive the offered weights.", name)
        return "", [], str(error) or type(error).__name__
    return checksum, loader.described, ""


class _ReloadLoader:
    """Loads through vLLM's reload by layers; implements `rollpacker.transfer.receiver.Loader`."""

    keeps_tensors = True  # vLLM holds a layer's tensors until it is complete

    def __init__(self, receiver: PolicyReceiver) -> None:
        self._receiver = receiver
        self.described: list[list[Any]] = []

    def begin(self) -> None:
        self._receiver.start_weight_update()
        self.described = []

    @torch.no_grad()
    def load(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        self._receiver.model.load_weights(tensors)
        self.described += [[name, dtype_name(tensor.dtype), list(tensor.shape)] for name, tensor in tensors]

    def finish(self) -> None:
        self._receiver.finish_weight_update()
