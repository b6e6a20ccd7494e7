"""Rows of weights on their way from a trainer to an engine: by CUDA IPC on one GPU, by NCCL between two."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rollpacker.gpu_check.inputs import Bench, config_of, engine_section, groups_of, make_requests, require_room
from rollpacker.gpu_check.outcomes import require
from rollpacker.gpu_check.workers import ENGINE, engine_on, trainer_on
from rollpacker.protocols.trainer import UpdateMetrics
from rollpacker.transfer.offers import SendingOptions
from rollpacker.transfer.transport_choice import Transport, choose_transports


def options_of(transport: Transport) -> SendingOptions:
    """As a run sends weights by default."""
    return SendingOptions(transport=transport, bucket_bytes=256 << 20, timeout_s=60, deadline_s=120)


MOST_MISMATCH = {"float32": 1e-3, "bfloat16": 0.1}
"""Mean difference in nats between engine's and trainer's log-probabilities of a token: what rounding may make of it."""

_NUM_SENDS = 3


async def transfer(bench: Bench, *, engine: str, transport: Transport) -> Mapping[str, float]:
    """Send a policy from a trainer's GPU into an engine, whose log-probabilities are then the trainer's."""
    config = config_of(
        bench.large(), bench.folder, engine=engine_section(engine), trainer={"logits_chunk_tokens": 1024}
    )
    require_room(bench, config)
    engine_gpu = 1 if transport == "broadcast" and bench.has_gpus else 0
    async with engine_on(config, [engine_gpu]) as worker, trainer_on(config, [0]) as ranks:
        sender, receiver = [await each.call("gpu.station") for each in (ranks.ranks[0], worker)]
        chosen = choose_transports(transport, sender, {f"{ENGINE}/0": receiver})
        if bench.has_gpus:
            require(chosen.memory == "cuda", f"the buckets lie in the memory of the {chosen.memory}, not on the GPU")
        fastest = float("inf")
        for _ in range(_NUM_SENDS):
            began = time.perf_counter()
            delivery = await ranks.send_to(worker, options_of(transport))
            fastest = min(fastest, time.perf_counter() - began)
        requests = make_requests(config, [16, 32, 64, 128] * 2, group_size=4)
        update = await ranks.step(groups_of(requests, await worker.call("loader.respond", requests)))
        require_alike(update, config.model.dtype)
    return {
        "sent_gb": delivery.num_bytes / 1e9,
        "gb_per_s": delivery.num_bytes / fastest / 1e9,
        "mismatch_mean_nats": update.logprob_mismatch_mean or 0.0,
    }


def require_alike(update: UpdateMetrics, dtype: str) -> None:
    """Raise `Refuted` unless the trainer's log-probabilities are those with which the engine sampled."""
    mismatch = update.logprob_mismatch_mean
    require(
        mismatch is not None and mismatch <= MOST_MISMATCH[dtype],
        f"log-probabilities of engine and trainer differ by {mismatch} nats in the mean, in {dtype} at most "
        f"{MOST_MISMATCH[dtype]}",
    )
