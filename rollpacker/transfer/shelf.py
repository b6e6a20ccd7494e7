"""Weights on a shelf: buckets of one policy in the memory of the trainer's node, which engines of workers pull.

    bucket 0 ─┐ at most WINDOW on their way          each: checksum right ──> its tensors
    bucket 1 ─┤                                            wrong, or lost ──> asked for again
    bucket 2 ─┘

A puller takes the buckets in order, from one of its own on and around, so it needs no more memory than the window
beyond what it keeps; what has come stays where a bucket is asked for again. Each tensor travels once, tied ones under
one name: 1.00 times the model's bytes, plus buckets that were asked for again. The trainer waits for none of it.
Nothing here knows how a bucket travels.

Whatever node has a bucket may hand it on: that is a relay only if pullers have different ones. Those that begin at the
same bucket at the same time ask the trainer's node for all of them, and none has what another one lacks; each begins at
another one, so that they soon have them from each other.

The source of pulling instead of pushing: Wu et al., RLBoost (NSDI '26), section 4.3.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollpacker.core.errors import EngineFailed, RollpackerError
from rollpacker.protocols.tasks import end_tasks
from rollpacker.protocols.tensors import combined_checksum
from rollpacker.transfer.assembly import Assembly, checksum_of_bucket

if TYPE_CHECKING:
    import torch

    from rollpacker.transfer.board import BucketNote

WINDOW = 3
"""Buckets on their way at once: the link stays full while one is checked and another one begins."""

NUM_ATTEMPTS = 3
"""At each bucket. One that is damaged so often lies damaged on the shelf."""

_PAUSE_S = 0.2
"""Before a bucket that was lost is asked for again."""

Fetch = Callable[[int], Awaitable["torch.Tensor"]]
"""Brings the bucket of this index here: flat, of uint8. Raises `RollpackerError` where it is lost on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What lies on the shelf."""

    notes: tuple[BucketNote, ...]
    """In order."""

    @property
    def checksum(self) -> str:
        """Of all tensors, as `rollpacker.protocols.tensors` defines it."""
        return combined_checksum(note.checksum for note in self.notes)

    @property
    def num_bytes(self) -> int:
        """Of all tensors, without what aligns them."""
        return sum(piece.num_bytes for note in self.notes for piece in note.pieces)


async def pull(contents: Contents, fetch: Fetch, first: int = 0) -> Mapping[str, torch.Tensor]:
    """Bring all tensors here, each bucket checked. Cancelled, it asks for nothing more.

    Args:
        contents: What there is.
        fetch: Brings a bucket.
        first: The bucket to begin with.

    Raises:
        EngineFailed: A bucket did not come whole, however often it was asked for.
    """
    assembly, tensors = Assembly(), dict[str, "torch.Tensor"]()
    order = [*range(first, len(contents.notes)), *range(first)]
    waiting = deque(order)
    under_way: deque[asyncio.Task[torch.Tensor]] = deque()
    try:
        for taken in order:
            while waiting and len(under_way) < WINDOW:
                index = waiting.popleft()
                under_way.append(asyncio.create_task(_whole(index, contents.notes[index], fetch)))
            tensors.update(assembly.add(contents.notes[taken], await under_way[0]))
            under_way.popleft()
    finally:
        await end_tasks(*under_way)
    return tensors


async def _whole(index: int, note: BucketNote, fetch: Fetch) -> torch.Tensor:
    why = ""
    for attempt in range(1, NUM_ATTEMPTS + 1):
        try:
            data = (await fetch(index))[: note.num_bytes]
        except RollpackerError as error:
            why = error.problem
            if attempt < NUM_ATTEMPTS:
                await asyncio.sleep(_PAUSE_S)
            continue
        found = await asyncio.to_thread(checksum_of_bucket, note, data)
        if found == note.checksum:
            return data
        why = f"its checksum is {found}, it lies there with {note.checksum}"
    raise EngineFailed(f"Bucket {index} of the weights did not come whole in {NUM_ATTEMPTS} attempts: {why}.")
