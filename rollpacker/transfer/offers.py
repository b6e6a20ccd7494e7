"""What an engine needs to fetch weights from the trainer: where the sender waits, and for how long.

A `WeightOffer` travels as `Weights.payload`, to the engine and on to each of its workers. It is plain data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollpacker.transfer.transport_choice import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightOffer:
    """One policy version that a sender holds ready; it ends with the sender's board."""

    host: str
    port: int
    """Of the board on which both ends write what they do (`transfer.board`)."""
    timeout_s: float
    """How long a receiver may keep the others waiting before it is dropped."""
    deadline_s: float
    """How long the whole transfer may take, seconds: then a receiver considers the sender lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingOptions:
    """Settings of a transfer."""

    transport: Transport
    bucket_bytes: int
    """Of each buffer; a multiple of `rollpacker.protocols.tensors.PIECE_BYTES`."""
    timeout_s: float
    """How long one receiver may keep the others waiting."""
    deadline_s: float
    """For the whole transfer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverName:
    """One worker of one engine."""

    engine: str
    rank: int
    num_ranks: int
    """Workers of the engine; each of them receives."""

    def __str__(self) -> str:
        return f"{self.engine}/{self.rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What became of one attempt to send."""

    is_complete: bool
    """True when every engine that is not lost holds the weights; else another attempt is due."""
    checksum: str
    """Of all tensors."""
    num_bytes: int
    """Of all tensors: what each receiver got."""
    lost: Mapping[str, str]
    """Engines that were dropped since the transfer began, and why."""
