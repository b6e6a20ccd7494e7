"""Where Ray's nodes talk."""

import socket

import pytest

from rollpacker.core.errors import ConfigError
from rollpacker.runtime.node_address import free_port, is_listening, node_address


def test_a_machine_alone_talks_to_itself_whatever_its_name_stands_for():
    assert node_address("no-such-host.invalid", None, is_alone=True) == "127.0.0.1"


def test_an_interface_has_its_own_address():
    assert node_address("whatever", "lo", is_alone=False) == "127.0.0.1"


@pytest.mark.parametrize(
    ("name", "interface", "said"),
    [
        ("localhost", None, "stands for 127.0.0.1, which other nodes cannot reach"),
        ("no-such-host.invalid", None, "no-such-host.invalid has no address here"),
        ("node1", "ib9", "cluster.network_interface=ib9 has no IPv4 address"),
    ],
)
def test_an_address_that_others_cannot_reach_is_refused(name, interface, said):
    with pytest.raises(ConfigError) as raised:
        node_address(name, interface, is_alone=False)
    assert said in str(raised.value)
    assert "network_interface" in str(raised.value)


def test_a_free_port_is_one_where_nobody_listens_yet():
    port = free_port("127.0.0.1")
    assert not is_listening(f"127.0.0.1:{port}")
    with socket.create_server(("127.0.0.1", port)):
        assert is_listening(f"127.0.0.1:{port}")
