"""The addresses of Ray's nodes, which other nodes can reach, and free ports."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import struct
from pathlib import Path

from rollpacker.core.errors import ConfigError

_GET_INTERFACE_ADDRESS = 0x8915
"""SIOCGIFADDR of Linux, see netdevice(7)."""
LOOPBACK = "127.0.0.1"
JOINABLE_LOOPBACK = "127.0.0.2"
"""Of a run on this machine alone that takes rollout workers: Ray lets no second node join a head at `LOOPBACK`."""
_ONLY_FROM_HERE = (LOOPBACK, "127.0.1.1")
"""Many distributions resolve a machine's own name to one of these."""
_FIRST_PORT = 20_000
"""Above 10002 to 19999, which Ray gives to its workers: it refuses to start on a port of that range."""
_ABOVE_RAYS = range(_FIRST_PORT, 1 << 16)
_OUTGOING_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_MOST_TRIES = 100


def node_address(name: str, interface: str | None, *, is_alone: bool) -> str:
    """Find this node's IPv4 address: of a network interface, or else of the node's name.

    A single node uses the loopback, which no other machine can reach.

    Raises:
        ConfigError: There is no such interface, or the name does not resolve to an address that other nodes can reach.
    """
    if is_alone:
        return LOOPBACK
    if interface is not None:
        return _address_of_interface(interface)
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        raise _unreachable(f"{name} has no address here ({error}).") from error
    if address in _ONLY_FROM_HERE:
        raise _unreachable(f"On {name} itself, its name stands for {address}, which other nodes cannot reach.")
    return address


def free_port(address: str) -> int:
    """Choose an unused port, one that no outgoing connection can take before its server does where there are such.

    Raises:
        OSError: Each one that was tried is in use, or the address is none of this node's.
    """
    chance = random.SystemRandom()  # a run seeds the other generator, which would give its ports again
    refusal = OSError()
    for ports in (range(_FIRST_PORT, _first_outgoing_port()), _ABOVE_RAYS):
        for port in chance.sample(ports, min(_MOST_TRIES, len(ports))):
            with socket.socket() as probe:
                try:
                    probe.bind((address, port))
                except OSError as error:
                    refusal = error
                else:
                    return port
    raise refusal


def _first_outgoing_port() -> int:
    try:
        return int(_OUTGOING_PORTS.read_text().split()[0])
    except OSError:  # a container that hides it
        return _FIRST_PORT


def is_listening(address: str) -> bool:
    """True when a server accepts connections at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def _address_of_interface(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", os.fsencode(interface)[:15])
        try:
            answer = fcntl.ioctl(probe, _GET_INTERFACE_ADDRESS, request)
        except OSError as error:
            names = ", ".join(name for _, name in socket.if_nameindex())
            raise ConfigError(
                f"cluster.network_interface={interface} has no IPv4 address on {socket.gethostname()} "
                f"({error.strerror}).",
                f"Its interfaces are {names}.",
                "Choose one that all nodes have, or leave it out: then the addresses of the nodes' names are taken.",
            ) from error
    address = socket.inet_ntoa(answer[20:24])
    if address in _ONLY_FROM_HERE:
        raise _unreachable(f"cluster.network_interface={interface} is {address}, which other nodes cannot reach.")
    return address


def _unreachable(problem: str) -> ConfigError:
    return ConfigError(
        problem,
        "Ray's nodes talk to each other over an address that each one has and the others reach.",
        "Name the network by cluster.network_interface, such as cluster.network_interface=ib0.",
    )
