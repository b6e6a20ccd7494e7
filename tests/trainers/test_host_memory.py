"""Storages go to the host and come back whole, and the host's memory is taken once."""

from __future__ import annotations

import torch

from rollpacker.trainers.host_memory import HostCopies


def test_every_view_of_a_storage_is_whole_again_and_can_be_read_while_it_is_away() -> None:
    whole = torch.arange(12.0)
    view = whole[2:8].view(2, 3)
    expected = view.clone()
    away = HostCopies()
    away.take([whole, view])
    assert whole.untyped_storage().nbytes() == 0
    assert torch.equal(away.readable(view), expected)
    away.put_back()
    assert torch.equal(view, expected)
    assert not away.is_away


def test_the_next_sleep_takes_the_memory_of_the_one_before() -> None:
    away = HostCopies()
    places = []
    for _ in range(2):
        tensors = [torch.ones(1000), torch.ones(1000), torch.ones(7)]
        away.take(tensors)
        places.append({away.readable(tensor).data_ptr() for tensor in tensors})
        away.put_back()
    assert len(places[0]) == 3
    assert places[0] == places[1]
