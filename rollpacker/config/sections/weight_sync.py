"""How the trainer's policy reaches the engines."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rollpacker.config.sections.base import Count, OnlyWith, PositiveSeconds, Section


class WeightSyncSection(Section):
    """How the trainer's policy reaches the engines after every update."""

    transport: Literal["auto", "object_store", "broadcast", "handles"] = "auto"
    """`object_store`: one copy in Ray's shared memory, from which engines that start later are served too.
    `broadcast`: trainer and engines' workers form a process group (NCCL between GPUs, else gloo). `handles`: workers on
    the trainer's node open its buckets where they lie (CUDA IPC, else shared memory). `auto` takes `object_store` where
    the trainer has no GPU: a copy in the host's memory is then all that a sync is. With a GPU that copy would be its
    slowest part, so `auto` takes `handles` for workers on the trainer's node, also where NCCL does not go, as on the
    trainer's own GPU, and `broadcast` for all others. With rollout workers (`elastic.max_workers`) and another
    transport than `object_store` the trainer copies its policy to the host's memory once, for all engines: `handles` is
    then shared memory, and `broadcast` gloo."""
    bucket_mb: Annotated[
        Count,
        OnlyWith("weight_sync.transport", "auto", "broadcast", "handles"),
        OnlyWith("elastic.max_workers", "0"),
    ] = Field(256, ge=1)
    """Of each of the two buffers that a policy passes through, MiB, in the memory that it passes through. Not used by
    `object_store`, nor with rollout workers, for which `elastic.bucket_mb` says the size."""
    timeout_s: PositiveSeconds = 60.0
    """An engine that does not hold the version so long after half of the engines do is replaced; so is one that started
    later and still loads the last version so long after the next one is due. In a run that trains nothing, whose
    engines read the model's files, it is half of `backend.deadlines.weight_sync_s`, if that is longer. With `handles`
    and `broadcast`, an engine that takes so long to be ready or to take one bucket is replaced, too, whatever the
    others hold."""
