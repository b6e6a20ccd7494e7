"""The facts of one node of an allocation. `python -m rollpacker.launch.doctor.node_report FOLDER` prints it as JSON.

`nodes.py` starts it on every node; that it runs shows that the node has this Python at this path.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from rollpacker import __version__
from rollpacker.launch.doctor.node import Gpus, Limits, gather_gpus, gather_limits

PROOF = "proof"
"""A file in the folder that every node should see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """One node."""

    node: str
    version: str
    """Of RollPacker."""
    time: float
    """Its clock, in seconds since the epoch."""
    proof: str
    """What it reads in the shared file; empty when it does not see it."""
    can_write: bool
    """Into the shared folder."""
    limits: Limits
    gpus: Gpus

    def to_json(self) -> str:
        return TypeAdapter(NodeReport).dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> NodeReport:
        return TypeAdapter(NodeReport).validate_json(text)


def report(folder: Path) -> NodeReport:
    """Gather the facts of this node."""
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    try:
        proof = (folder / PROOF).read_text()
    except OSError:
        proof = ""
    try:
        (folder / f"seen-by-{node}").write_text(node)
    except OSError:
        can_write = False
    else:
        can_write = True
    return NodeReport(
        node=node,
        version=__version__,
        time=time.time(),
        proof=proof,
        can_write=can_write,
        limits=gather_limits(os.environ),
        gpus=gather_gpus(os.environ),
    )


if __name__ == "__main__":
    sys.stdout.write(report(Path(sys.argv[1])).to_json() + "\n")
