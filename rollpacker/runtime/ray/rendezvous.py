"""Where the ranks of one job attempt meet: a folder of the run that every node sees.

    head.json      where Ray's head listens; written once, when it does
    token          what this attempt's Ray asks of everyone who connects; only the user may read it
    node-K.json    how far rank K has come, or why it ended
    NAME.log       what Ray said on that node
    done           rank 0 needs the other ranks no longer

Every file but the logs is written whole by one rank and read by others, so nothing is ever locked. The folder's name is
the attempt's own: what an attempt before it left behind is never met.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollpacker.metrics.files import make_private_folder, storage_errors, write_atomically
from rollpacker.runtime.job.allocation import Allocation

_HEAD_FILE = "head.json"
_DONE_FILE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What a rank says of itself."""

    node: str
    stage: str
    """What it does now."""
    failure: str = ""
    """Why it ended; empty while it serves."""


class Rendezvous:
    """The folder and what may be said in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token_file = folder / "token"

    def open(self) -> None:
        """Create the folder, unless another rank has."""
        make_private_folder(self.folder)

    def create_token(self) -> None:
        with storage_errors(self.token_file):
            descriptor = os.open(self.token_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))

    def announce_head(self, address: str) -> None:
        write_atomically(self.folder / _HEAD_FILE, json.dumps({"address": address}).encode())

    def head_address(self) -> str | None:
        """Where the head listens; None while it does not."""
        found = self._read(_HEAD_FILE)
        return str(found["address"]) if found else None

    def report(self, rank: int, report: NodeReport) -> None:
        write_atomically(self.folder / f"node-{rank}.json", json.dumps(asdict(report)).encode())

    def report_of(self, rank: int) -> NodeReport | None:
        found = self._read(f"node-{rank}.json")
        return NodeReport(**found) if found else None

    def log_of(self, node: str) -> Path:
        return self.folder / f"{node}.log"

    def finish(self) -> None:
        write_atomically(self.folder / _DONE_FILE, b"")

    @property
    def is_finished(self) -> bool:
        return _DONE_FILE in self._names()

    def _read(self, name: str) -> dict[str, Any] | None:
        if name not in self._names():
            return None
        content: dict[str, Any] = json.loads((self.folder / name).read_text())
        return content

    def _names(self) -> list[str]:
        """List the folder: a network file system may remember that a name was missing, but looks anew into a folder."""
        return [path.name for path in self.folder.iterdir()]


def rendezvous_of(run_dir: Path, allocation: Allocation) -> Rendezvous:
    """Where the ranks of this attempt meet."""
    return Rendezvous(run_dir.absolute() / "jobs" / allocation.key)
