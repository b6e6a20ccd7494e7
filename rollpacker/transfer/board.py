"""The board of one transfer: the messages of the sender and its receivers beside the buckets.

    attempt 0:  receivers announce themselves -> the sender posts the transports -> notes of bucket 0, 1, ... , the end
    attempt 1:  the same, when attempt 0 was given up because a member of the process group was lost

The sender holds the board (a TCPStore of torch, in the sender's process) and a receiver reaches it over the network, so
it ends with the sender, and every receiver notices at once. The sender never blocks on it. A receiver
waits for the next note until the offer's deadline.

Everything is JSON: any process that reaches the port can write to the board, and must not be able to run code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import DistError, DistStoreError

from rollpacker.core.errors import EngineFailed
from rollpacker.metrics.codec import UnionCodec, decode, encode
from rollpacker.transfer.buckets import Piece
from rollpacker.transfer.polled_timeout import PolledTimeout
from rollpacker.transfer.stores import open_store, reach_store
from rollpacker.transfer.transport_choice import Station, Transports

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollpacker.transfer.offers import ReceiverName, WeightOffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A receiver is ready."""

    num_ranks: int
    """Of its engine."""
    station: Station


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportNote:
    """How the buckets of an attempt travel."""

    transports: Transports
    handles: tuple[tuple[str, ...], ...]
    """Of the buffers that hold buckets in turn, for each receiver of `transports.by_handle`, in that order."""
    gpu: str | None
    """The sender's, by its UUID."""
    backend: str
    """Of the process group: `nccl` or `gloo`."""
    lost: tuple[tuple[str, str], ...]
    """Engines that are left out, each with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketNote:
    """A bucket lies ready, or is being broadcast."""

    pieces: tuple[Piece, ...]
    num_bytes: int
    """From the bucket's beginning to the end of the last piece."""
    checksum: str
    """Of the pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndNote:
    """All buckets have been noted."""

    checksum: str
    """Of all tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """Every receiver that is left has all tensors: no further attempt follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """The attempt is over; another one follows."""

    why: str


Note = BucketNote | EndNote | Delivered | GivenUp
_NOTES: UnionCodec[Note] = UnionCodec(Note)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverState:
    """How far a receiver is in an attempt."""

    num_taken: int = 0
    """Buckets that it has loaded; the end counts as one."""
    broke_off: str = ""
    """Not empty: the group broke under it, and it waits for the next attempt."""
    failed: str = ""
    """Not empty: why it cannot go on."""


class SenderBoard:
    """The sender's end; made once per transfer."""

    def __init__(self, host: str, timeout_s: float) -> None:
        """Open a port. `host` is this node's address, as the other nodes reach it."""
        self.store = open_store(host, 0, timeout_s=timeout_s)
        self.port: int = self.store.port

    def close(self) -> None:
        """Close the port, and with it every connection; may be called again."""
        self.__dict__.pop("store", None)

    def announcement(self, attempt: int, receiver: str) -> Announcement | None:
        """Return what a receiver announced; None before that."""
        key = _ready_key(attempt, receiver)
        return decode(Announcement, self.store.get(key)) if self.store.check([key]) else None

    def post_transports(self, attempt: int, note: TransportNote) -> None:
        self.store.set(f"{attempt}/transports", encode(note))

    def post(self, attempt: int, index: int, note: Note) -> None:
        """Post the note that follows note `index - 1`."""
        self.store.set(f"{attempt}/note/{index}", _NOTES.encode(note))

    def give_up(self, attempt: int, index: int, why: str) -> None:
        """Post the last note of an attempt, also where receivers see it that do not wait for a note."""
        self.store.set(_given_up_key(attempt), why)
        self.post(attempt, index, GivenUp(why=why))

    def states(self, attempt: int, receivers: Iterable[str]) -> dict[str, ReceiverState]:
        """How far each is; all of them have announced themselves in this attempt."""
        names = list(receivers)
        if not names:
            return {}
        answers = self.store.multi_get([_state_key(attempt, name) for name in names])
        return {name: decode(ReceiverState, answer) for name, answer in zip(names, answers, strict=True)}


class ReceiverBoard:
    """A receiver's end."""

    def __init__(self, offer: WeightOffer, name: ReceiverName) -> None:
        """Reach the sender; raises `EngineFailed` when it is not there any more."""
        self._name = name
        self.timeout = PolledTimeout(offer.deadline_s)
        """Of the whole transfer."""
        try:
            self.store = reach_store(offer.host, offer.port, timeout_s=offer.timeout_s)
        except DistError as error:
            raise self._lost_sender(error) from error

    def announce(self, attempt: int, station: Station) -> None:
        """Say that this receiver is ready."""
        self.report(attempt, ReceiverState())
        self._set(
            _ready_key(attempt, str(self._name)),
            encode(Announcement(num_ranks=self._name.num_ranks, station=station)),
        )

    def transports(self, attempt: int) -> TransportNote:
        """Wait until the sender has assigned the transports."""
        return decode(TransportNote, self._wait(f"{attempt}/transports"))

    def note(self, attempt: int, index: int) -> Note:
        """Wait for a note."""
        return _NOTES.decode(json.loads(self._wait(f"{attempt}/note/{index}")))

    def is_given_up(self, attempt: int) -> bool:
        try:
            is_given_up: bool = self.store.check([_given_up_key(attempt)])
        except DistError as error:
            raise self._lost_sender(error) from error
        return is_given_up

    def report(self, attempt: int, state: ReceiverState) -> None:
        self._set(_state_key(attempt, str(self._name)), encode(state))

    def _set(self, key: str, value: str) -> None:
        try:
            self.store.set(key, value)
        except DistError as error:
            raise self._lost_sender(error) from error

    def _wait(self, key: str) -> bytes:
        while True:
            is_last = self.timeout.is_over()
            try:
                self.store.wait([key], timedelta(seconds=self.timeout.next_look_s))
                text: bytes = self.store.get(key)
            except DistStoreError as error:
                if is_last:
                    raise EngineFailed(f"{self._name} waited too long for weights.", "", str(error)) from error
            except DistError as error:
                raise self._lost_sender(error) from error
            else:
                return text

    def _lost_sender(self, error: Exception) -> EngineFailed:
        return EngineFailed(f"{self._name} cannot reach the sender of weights.", "", str(error).splitlines()[0])


def _ready_key(attempt: int, receiver: str) -> str:
    return f"{attempt}/ready/{receiver}"


def _state_key(attempt: int, receiver: str) -> str:
    return f"{attempt}/state/{receiver}"


def _given_up_key(attempt: int) -> str:
    return f"{attempt}/given_up"
