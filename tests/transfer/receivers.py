"""Receivers of weights in processes of their own, and what happens to them on the way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from rollpacker.core.errors import EngineFailed
from rollpacker.protocols.tensors import checksum_of_tensors
from rollpacker.transfer.offers import ReceiverName, WeightOffer
from rollpacker.transfer.receiver import receive_weights

ANSWER_S = 60
"""How long a test waits for a process; the machine may be loaded."""


MEANWHILE_S = 0.5
"""In which the other receivers come to the end."""


class Shelf:
    """A loader that copies what comes, and does what a test wants at its n-th call of `load`, or `@end` at `finish`."""

    def __init__(self, fate: str, keeps_tensors: bool):
        self.keeps_tensors = keeps_tensors
        self.tensors: dict[str, torch.Tensor] = {}
        self.num_begun = 0
        self._fate, _, self._at = fate.partition("@")
        self._num_loads = 0

    def begin(self) -> None:
        self.tensors = {}
        self.num_begun += 1

    def load(self, tensors) -> None:
        if str(self._num_loads) == self._at:
            self._meet_fate()
        self._num_loads += 1
        self.tensors.update((name, tensor if self.keeps_tensors else tensor.clone()) for name, tensor in tensors)

    def finish(self) -> None:
        if self._at == "end":
            time.sleep(MEANWHILE_S)
            self._meet_fate()

    def _meet_fate(self) -> None:
        match self._fate:
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "raise":
                raise ValueError("no room for this tensor")


@dataclass
class Received:
    """What a receiver's process answers."""

    answer: str
    """The checksum that `receive_weights` returned, or why it failed."""
    held: str = ""
    """The checksum of what it has."""
    num_begun: int = 0
    maps_weights: bool = False
    """Whether the sender's memory is still mapped where an error is at hand."""


def _receive(connection, offer: WeightOffer, name: ReceiverName, fate: str, keeps_tensors: bool) -> None:
    torch.set_num_threads(1)
    shelf = Shelf(fate, keeps_tensors)
    try:
        answer = receive_weights(offer, name, shelf, torch.device("cpu"))
        connection.send(Received(answer, checksum_of_tensors(shelf.tensors), shelf.num_begun))
    except (EngineFailed, ValueError) as error:
        maps_weights = "rollpacker-weights" in Path("/proc/self/maps").read_text()
        connection.send(Received(str(error), maps_weights=maps_weights))


class ReceiverProcess:
    """One worker of an engine."""

    def __init__(self, offer: WeightOffer, name: ReceiverName, fate: str = "", *, keeps_tensors: bool = False):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.transfer.receivers"])
        self._answers, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_receive, args=(theirs, offer, name, fate, keeps_tensors), daemon=True)
        self.process.start()
        theirs.close()

    def received(self) -> Received:
        assert self._answers.poll(ANSWER_S), "a receiver did not answer"
        return self._answers.recv()

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self._answers.close()


@contextmanager
def receiving(offer: WeightOffer, fates: dict[str, str], num_ranks: int = 1, *, keeps_tensors: bool = False):
    """Engines by name, each with what happens to its first worker; gives every worker by `engine/rank`."""
    workers = {
        f"{engine}/{rank}": ReceiverProcess(
            offer,
            ReceiverName(engine=engine, rank=rank, num_ranks=num_ranks),
            fate if rank == 0 else "",
            keeps_tensors=keeps_tensors,
        )
        for engine, fate in fates.items()
        for rank in range(num_ranks)
    }
    try:
        yield workers
    finally:
        for worker in workers.values():
            worker.end()


def watch(worker: ReceiverProcess, on_end) -> None:
    """Call something when a worker's process has ended, as the driver does."""

    def wait() -> None:
        worker.process.join(ANSWER_S)
        on_end()

    threading.Thread(target=wait, daemon=True).start()
