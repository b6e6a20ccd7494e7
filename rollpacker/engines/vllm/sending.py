"""A policy in the memory of the engine's process on its way to vLLM's workers: they fetch it as they do a trainer's.

The engine's process is the sender of a transfer of its own (`rollpacker.transfer`), whose receivers are on its node.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import torch

from rollpacker.engines.vllm.receiving import Fetched, fetch_weights
from rollpacker.transfer.offers import SendingOptions
from rollpacker.transfer.sender import WeightSender

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm.v1.engine.async_llm import AsyncLLM

    from rollpacker.core.ids import EngineId

BUCKET_BYTES = 256 << 20
"""Of shared memory: large enough that what each costs the workers, a few milliseconds, does not count."""

_HOST = "127.0.0.1"

_TIMEOUT_S = 600.0
"""For a bucket, and for all of them: the caller's own deadline is the one that counts."""


async def send_tensors(
    llm: AsyncLLM,
    engine: EngineId,
    tensors: Mapping[str, torch.Tensor],
    policy_version: int,
    *,
    keeps_cache: bool = False,
) -> Fetched:
    """`fetch_weights` of tensors in this process; raises as it does."""
    options = SendingOptions(
        transport="handles", bucket_bytes=BUCKET_BYTES, timeout_s=_TIMEOUT_S, deadline_s=_TIMEOUT_S
    )
    sender = WeightSender(engines=[engine], host=_HOST, options=options, device=torch.device("cpu"))
    sending = asyncio.ensure_future(asyncio.to_thread(sender.send, sorted(tensors.items())))
    fetching = fetch_weights(llm, engine, sender.offer, policy_version, keeps_cache=keeps_cache)
    try:
        fetched, _ = await asyncio.gather(fetching, asyncio.shield(sending))
    finally:
        sender.drop(engine, "Its process has ended the transfer.")  # lets the thread go, whatever became of the workers
        await asyncio.wait([sending])
        sender.close()
    return fetched
