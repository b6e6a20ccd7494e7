"""A policy's weights on their way from the trainer to the engines, and the checksum that proves they arrived."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollpacker.core.errors import EngineFailed
    from rollpacker.core.ids import EngineId
    from rollpacker.protocols.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """One policy version's parameters under their Hugging Face names, tied tensors once."""

    policy_version: int
    checksum: str
    """As `rollpacker.protocols.tensors.RunningChecksum` computes it; empty where the payload is an offer."""
    num_bytes: int
    """0 where the payload is an offer."""
    payload: Any
    """A mapping of name to CPU tensor; a transport's reference to one; or an offer of tensors that the engine is to
    fetch (`rollpacker.transfer.offers`)."""


def first_bucket(puller: str, num_buckets: int) -> int:
    """Say at which bucket a puller of this name begins: by chance, and always at the same one."""
    return zlib.crc32(puller.encode()) % max(1, num_buckets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The outcome of sending one policy version to the engines."""

    policy_version: int
    checksum: str
    """Of the weights that the trainer gave and every engine that is not lost confirmed."""
    num_bytes: int
    """What each engine was given: the model's size, tied tensors once."""
    time_s: float
    """From the question for the weights until the last engine confirmed, without the time to wake."""
    lost: Mapping[EngineId, EngineFailed]
    """Engines that died, were too slow, or claim to hold other weights. The others did not wait for them, and hold the
    policy."""


class WeightSync(Protocol):
    """Sends the trainer's policy to engines. One call at a time."""

    async def prepare(self) -> None:
        """Copy the trainer's policy now, so that the next `publish` does not need the trainer, which will sleep.

        Only where engines and trainer share GPUs; elsewhere `publish` asks the trainer itself.
        """

    async def publish(self, engines: Mapping[EngineId, Engine]) -> Published:
        """Send the trainer's policy to engines that are awake and have nothing in flight.

        Raises:
            WeightSyncFailed: No engine holds what was sent, and one claims to hold something else.
        """

    async def serve(self, engine_id: EngineId, engine: Engine) -> Published:
        """Send the policy that was published last to an engine that joined later; it may be lost, too."""


@runtime_checkable
class Shelf(Protocol):
    """Holds the newest policy for engines of rollout workers, each of which loads it when it can."""

    async def lay_out(self) -> int:
        """Copy the trainer's policy now, for them and for the `publish` that follows; gives its version."""

    async def shelf(self, policy_version: int) -> Weights | None:
        """Give a policy that was laid out, for `Engine.load_weights`.

        None if a newer one has come in its place, or is about to.
        """
