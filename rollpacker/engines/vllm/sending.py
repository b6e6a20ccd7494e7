"""A policy on its way from the engine's process to vLLM's workers, through vLLM's own verbs for weight updates.

Memory that this process shares with the workers is opened in all of them, a policy comes through it bucket by bucket,
and it is closed. `send_tensors` does all of it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.v1.engine.exceptions import EngineDeadError

from rollpacker.core.errors import WeightSyncFailed
from rollpacker.engines.vllm.shared_memory import SharedBuffer

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Mapping

    import torch
    from vllm.v1.engine.async_llm import AsyncLLM

BUCKET_BYTES = 256 << 20
"""Of shared memory: large enough that a call to the workers, a few milliseconds, does not count, and small against
any model that takes more than one."""


async def update(
    llm: AsyncLLM, buckets: AsyncIterable[Mapping[str, Any]], policy_version: int, *, keeps_cache: bool = False
) -> str:
    """Replace the model's weights in all workers by what comes through shared memory. Nothing may be generated.

    Args:
        llm: Whose weights.
        buckets: As `SharedBuffer.write` describes them; the next is asked for when the workers have loaded the last.
        policy_version: Of the new weights.
        keeps_cache: Whether what the old policy computed stays in the cache.

    Returns:
        The checksum that every worker computed of what it received.

    Raises:
        WeightSyncFailed: A worker could not take the weights, or not all received the same. The model is then useless
            until the next update.
    """
    try:
        await llm.collective_rpc("abandon_weight_update")
        await llm.start_weight_update()
        async for bucket in buckets:
            await llm.update_weights(WeightTransferUpdateRequest(update_info={"bucket": dict(bucket)}))
        await llm.finish_weight_update(str(policy_version))
        checksums: list[str] = await llm.collective_rpc("checksum_of_received")
        # what the old policy computed would otherwise be the beginning of the new one's responses
        has_forgotten = keeps_cache or await llm.reset_prefix_cache(reset_running_requests=True)
    except EngineDeadError:
        raise
    except Exception as error:  # vLLM hands on what a worker raised as a plain Exception
        raise WeightSyncFailed(
            f"vLLM's workers did not take policy version {policy_version}: {error}",
            "",
            "Their log says more. The model takes the next weights as if these had not been sent.",
        ) from error
    if len(set(checksums)) != 1:
        raise WeightSyncFailed(f"vLLM's workers received different weights: checksums {', '.join(checksums)}.")
    if not has_forgotten:
        raise WeightSyncFailed("vLLM's prefix cache still holds what the old policy computed.")
    return checksums[0]


async def send_tensors(
    llm: AsyncLLM, tensors: Mapping[str, torch.Tensor], policy_version: int, *, keeps_cache: bool = False
) -> str:
    """`update` with tensors of this process, copied bucket by bucket into memory that the workers share."""
    buckets = _cut(tensors)
    buffer = SharedBuffer(max(_num_bytes(bucket) for bucket in buckets))

    async def written() -> AsyncIterator[Mapping[str, Any]]:
        for bucket in buckets:
            yield await asyncio.to_thread(buffer.write, bucket)

    try:
        await llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info={"handle": buffer.handle()}))
        try:
            return await update(llm, written(), policy_version, keeps_cache=keeps_cache)
        finally:
            await llm.collective_rpc("abandon_weight_update")  # also after an update that broke off
            await llm.shutdown_weight_transfer_engine()
    finally:
        buffer.close()


def _cut(tensors: Mapping[str, torch.Tensor]) -> list[list[tuple[str, torch.Tensor]]]:
    """Fill buckets in the order of names, which keeps layers together; a larger tensor has one to itself."""
    buckets: list[list[tuple[str, torch.Tensor]]] = [[]]
    room = BUCKET_BYTES
    for name in sorted(tensors):
        num_bytes = _num_bytes([(name, tensors[name])])
        if buckets[-1] and num_bytes > room:
            buckets.append([])
            room = BUCKET_BYTES
        buckets[-1].append((name, tensors[name]))
        room -= num_bytes
    return buckets


def _num_bytes(bucket: list[tuple[str, torch.Tensor]]) -> int:
    return sum(tensor.numel() * tensor.element_size() for _, tensor in bucket)
