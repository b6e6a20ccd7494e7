"""Where Ray's nodes talk."""

import socket
from contextlib import suppress

import pytest

from rollpacker.core.errors import ConfigError
from rollpacker.runtime.ray.node_address import free_port, is_listening, node_address


@pytest.mark.parametrize("interface", [None, "lo", "ib0"])
def test_a_node_alone_talks_to_itself_whatever_its_name_and_its_network(interface):
    assert node_address("no-such-host.invalid", interface, is_alone=True) == "127.0.0.1"


@pytest.mark.skipif(len(socket.if_nameindex()) < 2, reason="this machine has no network but the loopback")
def test_an_interface_has_its_own_address():
    addresses = []
    for _, interface in socket.if_nameindex():
        with suppress(ConfigError):  # one without an address
            addresses.append(node_address("whatever", interface, is_alone=False))
    assert addresses
    for address in addresses:
        socket.create_server((address, 0)).close()


@pytest.mark.parametrize(
    ("name", "interface", "said"),
    [
        ("localhost", None, "stands for 127.0.0.1, which other nodes cannot reach"),
        ("no-such-host.invalid", None, "no-such-host.invalid has no address here"),
        ("node1", "lo", "cluster.network_interface=lo is 127.0.0.1, which other nodes cannot reach"),
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


def test_a_free_port_is_none_that_an_outgoing_connection_or_a_worker_of_ray_takes(monkeypatch, tmp_path):
    (tmp_path / "ip_local_port_range").write_text("32768\t60999\n")
    monkeypatch.setattr("rollpacker.runtime.ray.node_address._OUTGOING_PORTS", tmp_path / "ip_local_port_range")
    assert all(19_999 < free_port("127.0.0.1") < 32_768 for _ in range(200))


@pytest.mark.parametrize("ranges", ["1024\t65535\n", None])
def test_where_all_ports_are_for_outgoing_connections_it_is_still_none_of_a_worker_of_ray(
    monkeypatch, tmp_path, ranges
):
    known = tmp_path / "ip_local_port_range"
    if ranges is not None:
        known.write_text(ranges)
    monkeypatch.setattr("rollpacker.runtime.ray.node_address._OUTGOING_PORTS", known)
    ports = [free_port("127.0.0.1") for _ in range(200)]
    assert 20_000 <= min(ports) < 32_768 < max(ports)


def test_an_address_of_another_machine_has_no_port_here():
    with pytest.raises(OSError, match="Cannot assign"):
        free_port("192.0.2.1")
