"""The rendezvous of the ranks of one job attempt: a folder of the run that every node sees.

    head.json      the address of Ray's head; written once, when it listens
    token          required by this attempt's Ray of every connection; only the user may read it
    node-K.json    how far rank K has come, or why it ended
    NAME.log       the output of Ray on that node
    done           rank 0 no longer needs the other ranks

Every file but the logs is written whole by one rank and read by others, so nothing is ever locked. The folder's name is
unique to the attempt: files of an earlier attempt are never read.
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
    """How far a rank has come."""

    node: str
    stage: str
    failure: str = ""
    """Why the rank ended; empty while it serves."""


class Rendezvous:
    """Reads and writes the folder."""

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
        """The head's address; None while it does not listen."""
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
        """List the folder: a network file system may cache that a name was missing, but reads a folder again."""
        return [path.name for path in self.folder.iterdir()]


def rendezvous_of(run_dir: Path, allocation: Allocation) -> Rendezvous:
    """The rendezvous of this attempt."""
    return Rendezvous(run_dir.absolute() / "jobs" / allocation.key)
