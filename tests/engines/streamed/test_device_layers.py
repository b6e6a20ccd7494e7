"""Slots and their hazards, on a device that writes down its orders and plays them back in any order that they allow."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollpacker.core.errors import InvariantViolated
from rollpacker.engines.streamed.device_layers import DeviceLayers
from rollpacker.engines.streamed.residency import streamed_layers, waiting_s
from tests.engines.streamed.recording import RecordingDevice


def make_layers(device: RecordingDevice, num_layers: int, num_slots: int = 2) -> DeviceLayers:
    sources = [torch.full((1 + layer % 3,), layer, dtype=torch.uint8) for layer in range(num_layers)]
    return DeviceLayers(device, sources, num_slots)


def compute(device: RecordingDevice, layers: DeviceLayers, num_layers: int) -> None:
    for layer in range(num_layers):
        buffer, _ = layers.enter(layer)
        device.read(buffer, layer)
        layers.leave(layer)


@settings(max_examples=150)
@given(data=st.data())
def test_compute_finds_each_layers_weights_in_whatever_order_the_streams_run(data: st.DataObject) -> None:
    num_layers = data.draw(st.integers(1, 9), label="layers")
    num_slots = data.draw(st.integers(1, 3), label="slots")
    device = RecordingDevice()
    layers = make_layers(device, num_layers, num_slots)
    shares = st.integers(0, num_layers).filter(lambda num: num in {0, num_layers} or num < num_layers - num_slots)
    for _ in range(data.draw(st.integers(1, 4), label="rounds")):
        num_resident = data.draw(shares, label="resident")
        if 0 < num_layers - num_resident <= num_slots:
            num_resident = num_layers
        layers.place(streamed_layers(num_layers, num_resident))
        assert layers.num_resident == num_resident
        for _ in range(data.draw(st.integers(0, 2), label="passes")):
            compute(device, layers, num_layers)
        broken_off_at = data.draw(st.integers(0, num_layers), label="broken off")
        compute(device, layers, broken_off_at)
        if data.draw(st.booleans(), label="sleep"):
            layers.release()
            assert layers.num_bytes == 0
    layers.release()
    device.play(random.Random(data.draw(st.integers(0, 2**32), label="schedule")))


@pytest.mark.parametrize("num_resident", [0, 1, 4, 9, 15])
@pytest.mark.parametrize("copy_s", [0.5, 1.0, 1.4, 2.0, 5.0])
def test_the_orders_take_as_long_as_the_planner_says(num_resident: int, copy_s: float) -> None:
    device = RecordingDevice()
    layers = make_layers(device, 18)
    streamed = streamed_layers(18, num_resident)
    layers.place(streamed)
    for _ in range(4):
        compute(device, layers, 18)
    planned = waiting_s(streamed, 18, copy_s=copy_s, compute_s=1.0, num_slots=2)
    # without the copies of resident layers, which come first and only once
    assert device.waited(copy_s, 1.0, num_reads=18) == pytest.approx(planned, abs=copy_s * num_resident * 1e-9)


def test_a_pass_copies_the_streamed_layers_once_and_no_others() -> None:
    device = RecordingDevice()
    layers = make_layers(device, 8)
    layers.place(streamed_layers(8, 4))
    compute(device, layers, 8)
    num_before = len(device.copies)
    compute(device, layers, 8)
    assert [copy.layer for copy in device.copies[num_before:]] == [5, 7, 1, 3]


def test_layers_that_stay_in_their_place_are_not_copied_again() -> None:
    device = RecordingDevice()
    layers = make_layers(device, 8)
    layers.place(streamed_layers(8, 4))
    compute(device, layers, 8)
    num_before = len(device.copies)
    layers.place(streamed_layers(8, 4))
    assert len(device.copies) == num_before


def test_a_layer_out_of_order_is_refused() -> None:
    layers = make_layers(RecordingDevice(), 8)
    layers.place(streamed_layers(8, 0))
    with pytest.raises(InvariantViolated):
        layers.enter(1)
    layers.enter(0)
    with pytest.raises(InvariantViolated):
        layers.leave(1)


def test_layers_that_would_never_leave_their_slots_are_refused() -> None:
    with pytest.raises(InvariantViolated):
        make_layers(RecordingDevice(), 8).place((3, 7))
