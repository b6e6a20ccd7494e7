"""Where Ray would live on this node: its address, a port, and a folder for its sockets.

Tried by what a run itself calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.core.errors import RollpackerError
from rollpacker.launch.doctor.findings import Finding, fine, problem, problem_of
from rollpacker.runtime.node_address import free_port, node_address
from rollpacker.runtime.private_folder import LONGEST_SCRATCH_BYTES, private_folder


def check_network(
    node: str, cluster: ClusterSection, environment: Mapping[str, str], *, is_alone: bool
) -> Iterator[Finding]:
    """Judge this node, which is alone or has to be reached by others."""
    try:
        address = node_address(node, cluster.network_interface, is_alone=is_alone)
    except RollpackerError as error:
        yield problem_of("address", error)
    else:
        yield fine("address", f"{node} is {address}")
        yield check_port(address)
    yield check_scratch(cluster, environment)


def check_port(address: str) -> Finding:
    """Judge whether the system gives out a port."""
    try:
        port = free_port(address)
    except OSError as error:
        return problem(
            "ports",
            f"none on {address} ({error.strerror})",
            "Look at net.ipv4.ip_local_port_range, and at what holds so many (`ss -s`).",
        )
    return fine("ports", f"the system gives out free ones, such as {port}")


def check_scratch(cluster: ClusterSection, environment: Mapping[str, str]) -> Finding:
    """Judge the folders for Ray's sockets; the one that is made is removed."""
    try:
        folder = private_folder(cluster.scratch, environment)
    except RollpackerError as error:
        return problem_of("scratch", error)
    folder.remove()
    return fine("scratch", f"{folder.path.parent}, short enough for sockets (at most {LONGEST_SCRATCH_BYTES} bytes)")
