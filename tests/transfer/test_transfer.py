"""Weights really travel between processes: whole, to everybody, and past those who fail."""

import time
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rollpacker.protocols.tensors import PIECE_BYTES, checksum_of_tensors, num_bytes_of_tensors
from rollpacker.transfer import polled_timeout
from rollpacker.transfer import sender as sender_module
from rollpacker.transfer.offers import SendingOptions
from rollpacker.transfer.packing import PackedPolicy
from rollpacker.transfer.sender import WeightSender
from tests.transfer.receivers import ANSWER_S, receiving, watch

TIMEOUT_S = 3.0
"""For a receiver that does not go on; a healthy one answers in milliseconds, on a loaded machine later."""

TRANSPORTS = ("broadcast", "handles")


@pytest.fixture(scope="module")
def policy():
    """Small and large tensors: some share a bucket, one needs three, some are odd or empty."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (3, 5), "b": (2 * PIECE_BYTES // 2 + 7, 1), "c": (128, 256), "d": (), "e": (0,), "f": (131, 1000)}
    tensors = {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}
    tensors["g"] = torch.arange(9, dtype=torch.int64)
    tensors["h"] = torch.randn(64, 32, generator=generator).t()  # not contiguous
    return tensors


@contextmanager
def transfer(transport, fates, *, absent=(), num_ranks=1, keeps_tensors=False, timeout_s=TIMEOUT_S):
    """A sender, and engines by what happens to them; those that are absent never come."""
    sender = WeightSender(
        engines=[*fates, *absent],
        host="127.0.0.1",
        device=torch.device("cpu"),
        options=SendingOptions(transport=transport, bucket_bytes=PIECE_BYTES, timeout_s=timeout_s, deadline_s=ANSWER_S),
    )
    with receiving(sender.offer, fates, num_ranks, keeps_tensors=keeps_tensors) as workers, closing(sender):
        yield sender, workers


def send(sender, policy):
    """Send until everybody who is left has it; also gives the number of attempts."""
    for attempt in range(1, 4):
        delivery = sender.send(iter(policy.items()))
        if delivery.is_complete:
            return delivery, attempt
    raise AssertionError("no attempt succeeded")


@pytest.mark.parametrize("keeps_tensors", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_worker_of_every_engine_gets_every_tensor(policy, transport, num_ranks, keeps_tensors):
    fates = {"engine-0": "", "engine-1": ""}
    with transfer(transport, fates, num_ranks=num_ranks, keeps_tensors=keeps_tensors) as (sender, workers):
        delivery, num_attempts = send(sender, policy)
        received = [worker.received() for worker in workers.values()]
    assert num_attempts == 1
    assert delivery.checksum == checksum_of_tensors(policy)
    assert delivery.num_bytes == num_bytes_of_tensors(policy)
    assert not delivery.lost
    assert {answer for each in received for answer in (each.answer, each.held)} == {delivery.checksum}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_policy_that_was_packed_ahead_travels_as_it_lies_and_the_next_one_takes_its_memory(policy, transport):
    ahead = PackedPolicy()
    memory = []
    for packed in ({name: tensor + 1 for name, tensor in policy.items()}, policy):
        ahead.pack(iter(packed.items()), PIECE_BYTES)
        memory.append([bucket.buffer.handle() for bucket in ahead.buckets])
        with transfer(transport, {"engine-0": "", "engine-1": ""}) as (sender, workers):
            delivery = sender.send_packed(ahead.buckets)
            received = [worker.received() for worker in workers.values()]
        assert delivery.is_complete
        assert delivery.num_bytes == num_bytes_of_tensors(packed)
        assert {each.held for each in received} == {delivery.checksum} == {checksum_of_tensors(packed)}
    assert memory[0] == memory[1]
    assert len(memory[0]) > 2


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_receiver_that_is_killed_while_it_takes_a_bucket_is_lost_and_the_others_get_the_weights(policy, transport):
    fates = {"engine-0": "", "dies": "die@2", "engine-1": ""}
    with transfer(transport, fates, timeout_s=ANSWER_S) as (sender, workers):
        watch(workers["dies/0"], lambda: sender.drop("dies", "its process died"))
        delivery, num_attempts = send(sender, policy)
        received = [workers[name].received() for name in ("engine-0/0", "engine-1/0")]
    assert delivery.lost == {"dies": "its process died"}
    assert num_attempts == (2 if transport == "broadcast" else 1)
    assert [each.held for each in received] == [checksum_of_tensors(policy)] * 2
    assert [each.num_begun for each in received] == [num_attempts] * 2


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("fate", ["die@end", "raise@end"])
def test_a_receiver_that_fails_at_the_end_takes_nobody_with_it_who_has_everything(policy, transport, fate):
    with transfer(transport, {"engine-0": "", "fails": fate, "engine-1": ""}) as (sender, workers):
        watch(workers["fails/0"], lambda: sender.drop("fails", "its process died"))
        delivery, num_attempts = send(sender, policy)
        received = [workers[name].received() for name in ("engine-0/0", "engine-1/0")]
    assert list(delivery.lost) == ["fails"]
    assert num_attempts == (2 if transport == "broadcast" else 1)
    assert [each.answer for each in received] == [delivery.checksum] * 2
    assert [each.num_begun for each in received] == [num_attempts] * 2


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_receiver_that_stops_is_done_without_after_the_timeout(policy, transport):
    with transfer(transport, {"engine-0": "", "stops": "stop@1", "engine-1": ""}) as (sender, workers):
        delivery, num_attempts = send(sender, policy)
        received = [workers[name].received() for name in ("engine-0/0", "engine-1/0")]
    assert list(delivery.lost) == ["stops"]
    assert f"within {TIMEOUT_S:g} s" in delivery.lost["stops"]
    assert num_attempts == (2 if transport == "broadcast" else 1)
    assert [each.held for each in received] == [checksum_of_tensors(policy)] * 2


def test_an_engine_that_never_comes_is_done_without(policy):
    with transfer("handles", {"engine-0": ""}, absent=["never"]) as (sender, workers):
        delivery, _ = send(sender, policy)
        assert workers["engine-0/0"].received().held == checksum_of_tensors(policy)
    assert list(delivery.lost) == ["never"]


@pytest.mark.parametrize(("machine", "look"), [(WeightSender, "_workers"), (sender_module._Sending, "_behind")])
def test_time_in_which_the_process_was_stopped_is_not_charged_to_receivers(policy, monkeypatch, machine, look):
    real, stopped_s, see = time.monotonic, 0.0, getattr(machine, look)

    def see_and_stop(*given):
        nonlocal stopped_s
        seen = see(*given)
        if bool(seen) is (look == "_behind"):  # somebody is waited for
            stopped_s = 1000.0
        return seen

    monkeypatch.setattr(machine, look, see_and_stop)
    clock = SimpleNamespace(monotonic=lambda: real() + stopped_s, sleep=time.sleep)
    monkeypatch.setattr(polled_timeout, "time", clock)
    with transfer("handles", {"engine-0": ""}) as (sender, workers):
        delivery, _ = send(sender, policy)
        assert workers["engine-0/0"].received().held == checksum_of_tensors(policy)
    assert (stopped_s, delivery.lost) == (1000.0, {})


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_a_loader_raises_costs_its_engine_and_says_why(policy, transport):
    with transfer(transport, {"engine-0": "", "raises": "raise@1"}) as (sender, workers):
        delivery, _ = send(sender, policy)
        assert workers["engine-0/0"].received().held == checksum_of_tensors(policy)
        received = workers["raises/0"].received()
    assert received.answer == "no room for this tensor"
    assert not received.maps_weights
    assert delivery.lost == {"raises": "no room for this tensor"}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_bucket_that_is_damaged_on_the_way_is_caught_before_it_is_loaded(policy, transport, monkeypatch):
    with transfer(transport, {"engine-0": ""}) as (sender, workers):
        post = sender._board.post

        def damage(attempt, index, note):
            if index == 1:
                sender._buffers["host"][1].data[17] ^= 1  # after its checksum was computed
            post(attempt, index, note)

        monkeypatch.setattr(sender._board, "post", damage)
        delivery, _ = send(sender, policy)
        answer = workers["engine-0/0"].received().answer
    assert "damaged bucket" in answer
    assert "damaged bucket" in delivery.lost["engine-0"]


def test_receivers_know_at_once_that_the_sender_is_gone():
    with transfer("handles", {"engine-0": ""}, absent=["never"]) as (sender, workers):
        sender._board.store.wait(["0/ready/engine-0/0"], timedelta(seconds=ANSWER_S))
        sender.close()
        assert "cannot reach the sender" in workers["engine-0/0"].received().answer


def test_shared_memory_has_no_name_and_is_gone_after_the_transfer_whoever_was_killed(policy):
    with transfer("handles", {"engine-0": "", "dies": "die@1"}) as (sender, workers):
        watch(workers["dies/0"], lambda: sender.drop("dies", "its process died"))
        send(sender, policy)
        handle = Path(sender._buffers["host"][0].handle())
        assert handle.readlink().name == "memfd:rollpacker-weights (deleted)"
        file = handle.stat().st_ino
        assert file in mapped_weights()
    assert not handle.exists()
    assert file not in mapped_weights()


def mapped_weights() -> set[int]:
    """Files of weights in this process's memory, of whatever transfers, by their inodes."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {int(line.split()[4]) for line in lines if "memfd:rollpacker-weights" in line}
