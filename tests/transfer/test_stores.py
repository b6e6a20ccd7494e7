"""Stores listen where they are told, and nowhere else."""

import errno
import socket

import pytest
from torch.distributed import DistError

from rollpacker.transfer.board import SenderBoard
from rollpacker.transfer.stores import open_store, reach_store

HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
"""Two addresses of every Linux machine."""


def is_met(address, port):
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def test_a_store_listens_on_its_own_address_alone():
    store = open_store(HERE, 0, timeout_s=60)
    assert is_met(HERE, store.port)
    assert not is_met(ELSEWHERE, store.port)
    reached = reach_store(HERE, store.port, timeout_s=60)
    reached.set("key", "value")
    assert store.get("key") == b"value"


def test_the_board_of_a_transfer_listens_on_its_own_address_alone():
    board = SenderBoard(HERE, timeout_s=60)
    assert is_met(HERE, board.port)
    assert not is_met(ELSEWHERE, board.port)
    board.close()


def test_a_port_that_is_taken_is_said():
    with socket.create_server((HERE, 0)) as server, pytest.raises(OSError, match="in use") as raised:
        open_store(HERE, server.getsockname()[1], timeout_s=60)
    assert raised.value.errno == errno.EADDRINUSE


def test_a_member_that_does_not_come_is_not_waited_for_for_ever():
    with pytest.raises(DistError):
        open_store(HERE, 0, timeout_s=0.1, num_members=2)
