"""The receiver of weights: announces itself, takes bucket after bucket, checks each and passes its tensors to a loader.

    announce -> transports -> [note, bucket, checksum, load, "taken"] -> the end: checksum of all, "taken" -> delivered
        ^                                     |                                          |
        └──── given up, or the group broke ───┴──────────────────────────────────────────┘

Every worker of an engine is a receiver of its own: all get the full tensors, and their loaders take the worker's shard.
After a failed attempt a loader begins again; until an attempt ends the engine holds neither policy.
"""

from __future__ import annotations

import itertools
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import torch

from rollpacker.core.errors import EngineFailed
from rollpacker.protocols.tensors import combined_checksum
from rollpacker.transfer.assembly import Assembly, checksum_of_bucket
from rollpacker.transfer.board import (
    BucketNote,
    Delivered,
    EndNote,
    GivenUp,
    ReceiverBoard,
    ReceiverState,
    TransportNote,
)
from rollpacker.transfer.groups import BroadcastGroup, address_towards
from rollpacker.transfer.memory import open_cuda_buffer, open_host_buffer, station_here, wait_for_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.transfer.offers import ReceiverName, WeightOffer
    from rollpacker.transfer.transport_choice import Station

_POLL_S = 0.0005
"""Between two looks at a broadcast that is under way."""

_LOOK_AT_BOARD_S = 0.05
"""Between two looks at whether it was given up meanwhile."""


class Loader(Protocol):
    """Where received tensors go."""

    keeps_tensors: bool
    """True when tensors are needed after `load`; else they may lie in the sender's memory, which is used again."""

    def begin(self) -> None:
        """Expect all tensors, whatever came before."""

    def load(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Take some of them, whole, under their Hugging Face names; on the host or on the receiver's device."""

    def finish(self) -> None:
        """Return when all of them are in place."""


class _Interrupted(Exception):
    """The attempt is over, and another one follows."""


def receive_weights(offer: WeightOffer, name: ReceiverName, loader: Loader, device: torch.device) -> str:
    """Fetch the offered weights, and return the checksum of what came.

    Args:
        offer: Where the sender waits.
        name: Which worker of which engine this is.
        loader: Takes the tensors; what it raises is reported to the sender and raised here.
        device: The worker's own.

    Raises:
        EngineFailed: The sender is gone, has dropped this engine, or sent a damaged bucket.
    """
    board = ReceiverBoard(offer, name)
    station = station_here(device)
    for attempt in itertools.count():
        board.announce(attempt, station)
        note = board.transports(attempt)
        if str(name) not in note.transports.receivers:
            why = dict(note.lost).get(name.engine, "")
            raise EngineFailed(f"{name.engine} was left out of a transfer of weights.", "", why)
        receiving = _Receiving(board, attempt, note, offer, name, loader, device, station)
        try:
            return receiving.run()
        except _Interrupted as interrupted:
            receiving.report(ReceiverState(broke_off=str(interrupted)))
        except BaseException as error:
            with suppress(EngineFailed):  # the sender may be what failed
                receiving.report(ReceiverState(failed=str(error) or type(error).__name__))
            traceback.clear_frames(error.__traceback__)  # they refer to the sender's memory, as long as the error lives
            raise
        finally:
            receiving.close()
    raise AssertionError("attempts do not end")


class _Receiving:
    """One attempt."""

    def __init__(  # noqa: PLR0917  (one call site)
        self,
        board: ReceiverBoard,
        attempt: int,
        note: TransportNote,
        offer: WeightOffer,
        name: ReceiverName,
        loader: Loader,
        device: torch.device,
        station: Station,
    ) -> None:
        self._board = board
        self._attempt = attempt
        self._note = note
        self._offer = offer
        self._name = str(name)
        self._loader = loader
        self._device = device
        self._station = station
        self._opened: list[torch.Tensor] = []
        self._group: BroadcastGroup | None = None
        self._assembly = Assembly()

    def run(self) -> str:
        self._loader.begin()
        self._open()
        checksums: list[str] = []
        has_everything = False
        for index in itertools.count():
            try:
                note = self._board.note(self._attempt, index)
            except EngineFailed:
                if not has_everything:
                    raise
                note = Delivered()  # the sender was closed before this was read
            match note:
                case BucketNote():
                    self._take(index, note)
                    checksums.append(note.checksum)
                case EndNote():
                    self._loader.finish()
                    wait_for_device(self._device)
                    if combined_checksum(checksums) != note.checksum:
                        raise EngineFailed(f"{self._name} lacks buckets of weights.", "", "")
                    has_everything = True
                case Delivered():
                    return combined_checksum(checksums)
                case GivenUp():
                    raise _Interrupted(note.why)
            self.report(ReceiverState(num_taken=index + 1))
        raise AssertionError("notes do not end")

    def report(self, state: ReceiverState) -> None:
        self._board.report(self._attempt, state)

    def close(self) -> None:
        if self._group is not None:
            self._group.abort()
        self._group = None
        self._opened = []

    def _open(self) -> None:
        note, transports = self._note, self._note.transports
        if self._name in transports.by_handle:
            for handle in note.handles[transports.by_handle.index(self._name)]:
                if transports.memory == "cuda":
                    assert note.gpu is not None
                    self._opened.append(open_cuda_buffer(handle, self._station.visible_gpus.index(note.gpu)))
                else:
                    self._opened.append(open_host_buffer(handle))
            return
        try:
            self._group = BroadcastGroup(
                backend=note.backend,
                store=self._board.store,
                name=f"{self._attempt}/group",
                rank=1 + transports.in_group.index(self._name),
                size=1 + len(transports.in_group),
                address=address_towards(self._offer.host, self._offer.port),
                device=self._device,
                timeout_s=self._offer.timeout_s,
            )
        except RuntimeError as error:
            raise _Interrupted(f"{self._name} could not join the process group: {error}") from error

    def _take(self, index: int, note: BucketNote) -> None:
        data = self._data(index, note.num_bytes)
        if (found := checksum_of_bucket(note, data)) != note.checksum:
            if self._board.is_given_up(self._attempt):
                raise _Interrupted("The sender gave up, and uses its memory again.")
            raise EngineFailed(
                f"{self._name} received a damaged bucket of weights: its checksum is {found}, it was sent with "
                f"{note.checksum}.",
                "",
                "",
            )
        self._loader.load(self._assembly.add(note, data))
        wait_for_device(self._device)  # the loader's copies may still read from the bucket

    def _data(self, index: int, num_bytes: int) -> torch.Tensor:
        """Bring a bucket to the worker's own device, at whose rate it is then checked and loaded."""
        if self._opened:
            data = self._opened[index % len(self._opened)][:num_bytes]
            return data.to(self._device, copy=self._loader.keeps_tensors)
        device = self._device if self._note.transports.memory == "cuda" else torch.device("cpu")
        data = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self._receive(data)
        return data.to(self._device)

    def _receive(self, data: torch.Tensor) -> None:
        """Take part in a broadcast, as long as the sender does."""
        assert self._group is not None
        try:
            work = self._group.broadcast(data)
            next_look = time.monotonic() + _LOOK_AT_BOARD_S
            while not work.is_completed():
                time.sleep(_POLL_S)
                if time.monotonic() > next_look:
                    if self._board.is_given_up(self._attempt):
                        raise _Interrupted("The sender gave up a broadcast.")
                    if self._board.timeout.is_over():
                        raise EngineFailed(f"{self._name} waited too long for a broadcast of weights.", "", "")
                    next_look = time.monotonic() + _LOOK_AT_BOARD_S
            work.wait()
        except RuntimeError as error:
            raise _Interrupted(f"{self._name} lost the process group: {error}") from error
