"""How long a receiver waits, by a clock of the test's; the sender's part is the test's, and NCCL's a stand-in's."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed import DistStoreError

from rollpacker.core.errors import EngineFailed
from rollpacker.transfer import polled_timeout, receiver
from rollpacker.transfer.board import BucketNote, ReceiverBoard, SenderBoard, TransportNote
from rollpacker.transfer.offers import ReceiverName, WeightOffer
from rollpacker.transfer.transport_choice import Transports
from tests.transfer.receivers import ANSWER_S, Shelf

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

DEADLINE_S = 100.0
NAME = ReceiverName(engine="engine-0", rank=0, num_ranks=1)


@dataclass
class Clock:
    """Stands still but in `sleep`."""

    calls: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    """Each with its time, ascending."""
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _: float) -> None:
        self.now += 1.0
        while self.calls and self.now >= self.calls[0][0]:
            self.calls.pop(0)[1]()


class Silent:
    """Like NCCL's group, whose broadcasts do not end while the sender does not send."""

    Options = type("Options", (), {})

    def __init__(self, *_: Any) -> None:
        """Meet nobody."""

    def broadcast(self, *_: Any) -> Silent:
        return self

    def is_completed(self) -> bool:
        return False

    def abort(self) -> None:
        """End nothing."""


@pytest.mark.parametrize("given_up_s", [None, 60.0])
def test_a_sender_that_falls_silent_is_given_up_at_the_deadline_of_the_whole_transfer(
    given_up_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Silent, raising=False)
    for module in (polled_timeout, receiver):
        monkeypatch.setattr(module, "time", clock)
    sender = SenderBoard("127.0.0.1", ANSWER_S)
    transports = Transports(memory="host", by_handle=(), in_group=(str(NAME),))
    for attempt in range(2):
        note = TransportNote(transports=transports, handles=(), gpu=None, backend="nccl", lost=())
        sender.post_transports(attempt, note)
        sender.post(attempt, 0, BucketNote(pieces=(), num_bytes=8, checksum=""))
    if given_up_s is not None:
        clock.calls.append((given_up_s, lambda: sender.give_up(0, 1, "another engine was lost")))
    offer = WeightOffer(host="127.0.0.1", port=sender.port, timeout_s=ANSWER_S, deadline_s=DEADLINE_S)
    with pytest.raises(EngineFailed, match="waited too long for a broadcast"):
        receiver.receive_weights(offer, NAME, Shelf("", keeps_tensors=False), torch.device("cpu"))
    assert DEADLINE_S <= clock.now <= DEADLINE_S + 2
    assert not clock.calls
    sender.close()


def test_time_in_which_a_receiver_was_stopped_is_not_charged_to_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stopped_s = Clock(), 1000.0
    monkeypatch.setattr(polled_timeout, "time", clock)
    sender = SenderBoard("127.0.0.1", ANSWER_S)
    offer = WeightOffer(host="127.0.0.1", port=sender.port, timeout_s=ANSWER_S, deadline_s=DEADLINE_S)

    def wait(_: list[str], timeout: timedelta) -> None:
        clock.now += timeout.total_seconds() if clock.now else stopped_s
        raise DistStoreError("no such key yet")

    waiting = ReceiverBoard(offer, NAME)
    monkeypatch.setattr(waiting, "store", SimpleNamespace(wait=wait))
    with pytest.raises(EngineFailed, match="waited too long for weights"):
        waiting.transports(0)
    assert 0.9 * DEADLINE_S <= clock.now - stopped_s <= DEADLINE_S
    sender.close()
