"""What Ray needs of a node."""

import socket
import tempfile

import pytest

from rollpacker.core.errors import ConfigError, WorldError
from rollpacker.runtime.node_place import (
    LONGEST_SCRATCH_BYTES,
    free_port,
    is_listening,
    node_address,
    private_folder,
)


def test_the_first_folder_that_is_set_short_and_writable_is_taken():
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as short:
        environment = {"LONG": "/" + "x" * LONGEST_SCRATCH_BYTES, "SHORT": short}
        folder = private_folder(("$SLURM_TMPDIR", "$LONG", "/proc", "$SHORT", "."), environment)
        assert folder.parent.as_posix() == short
        assert folder.is_dir()


def test_the_sockets_of_ray_fit_below_the_longest_folder():
    session = "/rp-12345678/session_2026-01-01_00-00-00_123456_4194304/sockets/plasma_store"
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(FileNotFoundError):
        probe.connect("/" + "x" * (LONGEST_SCRATCH_BYTES - 1) + session)
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(OSError, match="path too long"):
        probe.connect("/" + "x" * (LONGEST_SCRATCH_BYTES - 1) + session + "x")


def test_without_a_fit_folder_every_candidate_is_explained():
    with pytest.raises(WorldError) as raised:
        private_folder(("$UNSET", "/" + "x" * 99, "/proc"), {})
    message = str(raised.value)
    assert "$UNSET is not set" in message
    assert f"is longer than {LONGEST_SCRATCH_BYTES} bytes" in message
    assert "/proc is not writable" in message
    assert "cluster.scratch=[/tmp]" in message


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
