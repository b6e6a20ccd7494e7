"""The sender of weights: takes full tensors one by one, fills buckets with them, and passes each to all receivers.

    gather receivers -> choose transports -> [fill a bucket -> note it, broadcast it -> wait until it was taken]
        -> the end -> wait until all have everything -> delivered

Two buckets alternate: while one is being taken, the next one is filled (for a sharded policy: gathered). A policy that
was packed ahead (`packing`) is passed on as it lies.

**A receiver that fails does not hold the others up.** One that does not announce itself, makes no progress or reports
a failure costs the others at most the timeout, and less when the driver reports its death (`drop`). It is lost with
its whole engine. Receivers that share memory go on at once. A process group cannot: the attempt is given up, and the
next one makes a new group of those that announce themselves again: all of them, as none goes its way before the last
one has everything. A receiver that is stuck in the broken group does not, and is lost.

The checksum of a bucket is computed here from the trainer's tensors and by each receiver from what it has, before it
loads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch.distributed import Work

from rollpacker.protocols.tensors import combined_checksum
from rollpacker.transfer.board import BucketNote, Delivered, EndNote, SenderBoard, TransportNote
from rollpacker.transfer.groups import BroadcastGroup
from rollpacker.transfer.memory import Buffer, CudaBuffer, HostBuffer, station_here
from rollpacker.transfer.offers import Delivery, SendingOptions, WeightOffer
from rollpacker.transfer.packing import Bucket, packed
from rollpacker.transfer.polled_timeout import PolledTimeout
from rollpacker.transfer.transport_choice import Station, Transports, choose_transports

_POLL_S = 0.001
"""Between two looks at the board; a look costs some 0.05 ms."""


class _Broken(Exception):
    """The attempt cannot go on: its process group has lost a member."""


class WeightSender:
    """One transfer of one policy version; made for it and closed after it."""

    def __init__(self, *, engines: Sequence[str], host: str, options: SendingOptions, device: torch.device) -> None:
        """Open the board.

        Args:
            engines: The receivers' engines.
            host: This node's address, as the engines' nodes reach it.
            options: Transport, sizes and times.
            device: Where the tensors will be.
        """
        self._host = host
        self._options = options
        self._device = device
        self._board = SenderBoard(host, options.timeout_s)
        self._num_attempts = 0
        self._roster = _Roster(engines=list(engines))
        self._buffers: dict[str, list[Buffer]] = {}

    @property
    def offer(self) -> WeightOffer:
        return WeightOffer(
            host=self._host,
            port=self._board.port,
            timeout_s=self._options.timeout_s,
            deadline_s=self._options.deadline_s,
        )

    def drop(self, engine: str, why: str) -> None:
        """Drop an engine; may be called from another thread while `send` runs."""
        self._roster.dropped[engine] = why

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Delivery:
        """Try once to send every tensor to every engine; raises `ConfigError` if the transport cannot reach one.

        A tensor is read before the next one is requested.
        """
        return self._attempt(
            self._buffers_in, lambda next_buffer: packed(tensors, self._options.bucket_bytes, next_buffer)
        )

    def send_packed(self, buckets: Sequence[Bucket]) -> Delivery:
        """The same for a policy that lies in buckets of host memory; the sender was made for the CPU."""

        def as_they_lie(next_buffer: Callable[[], Buffer]) -> Iterator[Bucket]:
            for bucket in buckets:
                next_buffer()
                yield bucket

        return self._attempt(lambda _: [bucket.buffer for bucket in buckets], as_they_lie)

    def _attempt(
        self,
        buffers_in: Callable[[str], Sequence[Buffer]],
        fill: Callable[[Callable[[], Buffer]], Iterable[Bucket]],
    ) -> Delivery:
        attempt = self._num_attempts
        self._num_attempts += 1
        stations = self._gather(attempt)
        checksum, num_bytes, is_complete = "", 0, True
        if stations:
            here = station_here(self._device)
            transports = choose_transports(self._options.transport, here, stations)
            buffers = buffers_in(transports.memory)
            sending = _Sending(self._board, attempt, self._roster, transports, self.offer, buffers, here.gpu)
            try:
                checksum, num_bytes = sending.run(fill(sending.next_buffer))
            except _Broken as error:
                self._board.give_up(attempt, sending.num_notes, str(error))
                is_complete = False
            finally:
                sending.close()
        return Delivery(is_complete=is_complete, checksum=checksum, num_bytes=num_bytes, lost=dict(self._roster.lost))

    def close(self) -> None:
        """Close the board: receivers that still wait on it fail."""
        self._board.close()
        for buffers in self._buffers.values():
            for buffer in buffers:
                buffer.close()
        self._buffers.clear()

    def _buffers_in(self, memory: str) -> list[Buffer]:
        """Two buffers, the same ones at every attempt: a receiver that is slow to let go finds memory still there."""
        if memory not in self._buffers:
            self._buffers[memory] = [
                CudaBuffer(self._options.bucket_bytes, self._device)
                if memory == "cuda"
                else HostBuffer(self._options.bucket_bytes)
                for _ in range(2)
            ]
        return self._buffers[memory]

    def _gather(self, attempt: int) -> dict[str, Station]:
        """Wait until every worker of every engine has announced itself; an engine that is late is lost."""
        roster = self._roster
        stations: dict[str, Station] = {}
        missing = list(roster.engines)
        timeout = PolledTimeout(self._options.timeout_s)
        while missing:
            roster.take_dropped()
            for engine in [engine for engine in missing if engine not in roster.lost]:
                found = self._workers(attempt, engine)
                if found:
                    stations.update(found)
                    missing.remove(engine)
            missing = [engine for engine in missing if engine not in roster.lost]
            if missing and timeout.is_over():
                for engine in missing:
                    roster.lose(engine, f"It was not ready for weights within {self._options.timeout_s:g} s.")
            elif missing:
                time.sleep(_POLL_S)
        return {name: station for name, station in stations.items() if engine_of(name) not in roster.lost}

    def _workers(self, attempt: int, engine: str) -> dict[str, Station]:
        """Return where an engine's workers are; empty until all of them are ready."""
        stations: dict[str, Station] = {}
        rank, num_ranks = 0, 1
        while rank < num_ranks:
            announcement = self._board.announcement(attempt, f"{engine}/{rank}")
            if announcement is None:
                return {}
            num_ranks = announcement.num_ranks
            stations[f"{engine}/{rank}"] = announcement.station
            rank += 1
        return stations


def engine_of(receiver: str) -> str:
    """Return the engine of a receiver's `ReceiverName` as text."""
    return receiver.rpartition("/")[0]


@dataclass(slots=True, kw_only=True)
class _Roster:
    """The engines of a transfer."""

    engines: list[str]
    """Those that still receive the weights."""
    lost: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    """Written by another thread, one entry at a time."""

    def lose(self, engine: str, why: str) -> None:
        if engine in self.engines:
            self.engines.remove(engine)
            self.lost[engine] = why

    def take_dropped(self) -> None:
        for engine, why in list(self.dropped.items()):
            self.lose(engine, why)


class _Sending:
    """One attempt."""

    def __init__(  # noqa: PLR0917  (one call site)
        self,
        board: SenderBoard,
        attempt: int,
        roster: _Roster,
        transports: Transports,
        offer: WeightOffer,
        buffers: Sequence[Buffer],
        gpu: str | None,
    ) -> None:
        self._board = board
        self._attempt = attempt
        self._roster = roster
        self._transports = transports
        self._offer = offer
        self._backend = "nccl" if transports.memory == "cuda" else "gloo"
        self._receivers = list(transports.receivers)
        self._buffers = buffers
        self._gpu = gpu
        self._works: list[Work | None] = [None, None]
        self._group: BroadcastGroup | None = None
        self.num_notes = 0
        """Posted so far."""

    def run(self, buckets: Iterable[Bucket]) -> tuple[str, int]:
        """Send everything; returns its checksum and size. Raises `_Broken`."""
        self._open()
        checksums: list[str] = []
        num_bytes = 0
        for bucket in buckets:
            checksums.append(bucket.note.checksum)
            num_bytes += sum(piece.num_bytes for piece in bucket.note.pieces)
            self._pass_on(bucket)
        checksum = combined_checksum(checksums)
        self._post(EndNote(checksum=checksum))
        self._await_taken(self.num_notes)
        self._post(Delivered())
        return checksum, num_bytes

    def next_buffer(self) -> Buffer:
        """Wait until the buffer of the next bucket may be written."""
        self._await_taken(self.num_notes - 1)
        work, self._works[self.num_notes % 2] = self._works[self.num_notes % 2], None
        if work is not None:
            _raise_if_failed(work)
        return self._buffers[self.num_notes % len(self._buffers)]

    def close(self) -> None:
        if self._group is not None:
            self._group.abort()
        self._group = None
        self._works = [None, None]

    def _open(self) -> None:
        in_group = self._transports.in_group
        note = TransportNote(
            transports=self._transports,
            handles=tuple(tuple(buffer.handle() for buffer in self._buffers) for _ in self._transports.by_handle),
            gpu=self._gpu,
            backend=self._backend,
            lost=tuple(self._roster.lost.items()),
        )
        self._board.post_transports(self._attempt, note)
        if in_group:
            try:
                self._group = BroadcastGroup(
                    backend=self._backend,
                    store=self._board.store,
                    name=f"{self._attempt}/group",
                    rank=0,
                    size=1 + len(in_group),
                    address=self._offer.host,
                    device=self._buffers[0].data.device,
                    timeout_s=self._offer.timeout_s,
                )
            except RuntimeError as error:
                raise _Broken(f"The process group could not be formed: {error}") from error

    def _pass_on(self, bucket: Bucket) -> None:
        """Send a full bucket to all receivers."""
        index = self.num_notes
        self._post(bucket.note)
        if self._group is not None:
            try:
                self._works[index % 2] = self._group.broadcast(bucket.buffer.data[: bucket.note.num_bytes])
            except RuntimeError as error:
                raise _Broken(f"A broadcast failed: {error}") from error

    def _post(self, note: BucketNote | EndNote | Delivered) -> None:
        self._board.post(self._attempt, self.num_notes, note)
        self.num_notes += 1

    def _await_taken(self, num_notes: int) -> None:
        """Wait until every receiver has taken so many notes; raises `_Broken`."""
        timeout = PolledTimeout(self._offer.timeout_s)
        while behind := self._behind(num_notes):
            if timeout.is_over():
                self._drop(behind)
            time.sleep(_POLL_S)

    def _behind(self, num_notes: int) -> list[str]:
        """Return the receivers that have taken fewer notes; those that have failed are lost."""
        self._roster.take_dropped()
        self._forget_the_lost()
        states = self._board.states(self._attempt, self._receivers)
        for name, state in states.items():
            if state.failed:
                self._roster.lose(engine_of(name), state.failed)
        self._forget_the_lost()
        for state in states.values():
            if state.broke_off:
                raise _Broken(state.broke_off)
        for work in self._works:
            if work is not None and work.is_completed():
                _raise_if_failed(work)
        return [name for name in self._receivers if states[name].num_taken < num_notes]

    def _drop(self, slow: Sequence[str]) -> None:
        """Drop receivers that are late, unless the group holds them up: then the next attempt decides."""
        why = f"It did not take a bucket of weights within {self._offer.timeout_s:g} s."
        for name in slow:
            if name not in self._transports.in_group:
                self._roster.lose(engine_of(name), why)
        self._forget_the_lost()
        if any(name in self._transports.in_group for name in slow):
            raise _Broken(why)

    def _forget_the_lost(self) -> None:
        gone = [name for name in self._receivers if engine_of(name) in self._roster.lost]
        self._receivers = [name for name in self._receivers if name not in gone]
        if any(name in self._transports.in_group for name in gone):
            raise _Broken(f"The process group lost {', '.join(gone)}.")


def _raise_if_failed(work: Work) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise _Broken(f"A broadcast failed: {error}") from error
