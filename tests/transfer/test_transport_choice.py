"""Who shares memory with the sender, who joins the group, and where buckets lie."""

import pytest

from rollpacker.core.errors import ConfigError
from rollpacker.transfer.transport_choice import Station, choose_transports

HERE = Station(node="n0", gpu="g0", visible_gpus=("g0", "g1"))
SAME_GPU = Station(node="n0", gpu="g0", visible_gpus=("g0",))
NEXT_GPU = Station(node="n0", gpu="g1", visible_gpus=("g0", "g1"))
OWN_GPU_ONLY = Station(node="n0", gpu="g1", visible_gpus=("g1",))
FAR = Station(node="n1", gpu="g8", visible_gpus=("g8",))
NO_GPU = Station(node="n0")


@pytest.mark.parametrize(
    ("transport", "sender", "receivers", "expected"),
    [
        ("auto", HERE, {"a": SAME_GPU, "b": NEXT_GPU, "c": FAR}, ("cuda", ("a", "b"), ("c",))),
        ("auto", HERE, {"a": SAME_GPU, "b": OWN_GPU_ONLY}, ("host", ("a", "b"), ())),
        ("auto", NO_GPU, {"a": NO_GPU, "b": NO_GPU}, ("host", ("a", "b"), ())),
        ("auto", HERE, {"a": NO_GPU}, ("host", ("a",), ())),
        ("handles", HERE, {"a": NEXT_GPU}, ("cuda", ("a",), ())),
        ("broadcast", HERE, {"a": OWN_GPU_ONLY, "b": FAR}, ("cuda", (), ("a", "b"))),
        ("broadcast", HERE, {"a": SAME_GPU, "b": FAR}, ("host", (), ("a", "b"))),  # NCCL takes a GPU once
        ("broadcast", HERE, {"a": FAR, "b": FAR}, ("host", (), ("a", "b"))),
        ("broadcast", NO_GPU, {"a": FAR}, ("host", (), ("a",))),
    ],
)
def test_receivers_are_seated_by_node_and_gpu(transport, sender, receivers, expected):
    transports = choose_transports(transport, sender, receivers)
    assert (transports.memory, transports.by_handle, transports.in_group) == expected
    assert set(transports.receivers) == set(receivers)


def test_handles_that_cannot_reach_a_receiver_are_the_users_mistake():
    with pytest.raises(ConfigError, match=r"transport=handles, but engine-1/0 cannot open memory"):
        choose_transports("handles", HERE, {"engine-0/0": SAME_GPU, "engine-1/0": FAR})
