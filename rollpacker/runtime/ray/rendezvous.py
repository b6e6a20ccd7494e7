"""The rendezvous of the ranks of one job attempt, and of its rollout workers: a folder of the run that every node sees.

    head.json      the address of Ray's head; written once, when it listens
    token          required by this attempt's Ray of every connection; only the user may read it
    node-K.json    how far rank K has come, or why it ended; written first of all
    NAME.log       the output of Ray on that node
    done           rank 0 no longer needs the other ranks

Every file but the logs is written whole by one rank and read by others, so nothing is ever locked. The folder's name is
that of one step of the job (`Allocation.key`), which has one command: the ranks of a second one know nothing in common
that the first one did not know, and are refused. A process that nobody meets has its token on its own node.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import WorldError
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

    def open(self, rank: int, node: str) -> None:
        """Create the folder, unless another rank has, and enter it.

        Raises:
            WorldError: This rank has been here, for another command of the same step.
        """
        make_private_folder(self.folder)
        if self.report_of(rank) is not None:
            raise WorldError(
                f"Rank {rank} has already run a command in this step of the job: {self.folder}",
                "In a step, the ranks of one command cannot be told from those of another, nor in a heterogeneous job "
                "from those of an earlier job with the same number.",
                "Give each command a step of its own: start it by `srun --ntasks-per-node=1`. If this is the first "
                "one, remove that folder.",
            )
        self.report(rank, NodeReport(node=node, stage="starting"))

    def create_token(self) -> None:
        with storage_errors(self.token_file):
            descriptor = os.open(self.token_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))

    def announce_head(self, address: str) -> None:
        write_atomically(self.folder / _HEAD_FILE, json.dumps({"address": address}).encode())

    def head_address(self) -> str | None:
        """The head's address; None while it does not listen."""
        return str(self._content(_HEAD_FILE)["address"]) if _HEAD_FILE in self._names() else None

    def report(self, rank: int, report: NodeReport) -> None:
        write_atomically(self.folder / f"node-{rank}.json", json.dumps(asdict(report)).encode())

    def report_of(self, rank: int) -> NodeReport | None:
        return self.reports_of([rank]).get(rank)

    def reports_of(self, ranks: Iterable[int]) -> dict[int, NodeReport]:
        """The reports of those ranks that have written one; the folder is listed once."""
        there = self._names()
        names = {rank: f"node-{rank}.json" for rank in ranks}
        return {rank: NodeReport(**self._content(name)) for rank, name in names.items() if name in there}

    def log_of(self, node: str) -> Path:
        return self.folder / f"{node}.log"

    def finish(self) -> None:
        write_atomically(self.folder / _DONE_FILE, b"")

    @property
    def is_finished(self) -> bool:
        return _DONE_FILE in self._names()

    def _content(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / name).read_text())
        return content

    def _names(self) -> list[str]:
        """List the folder: a network file system may cache that a name was missing, but reads a folder again."""
        return [path.name for path in self.folder.iterdir()]


def rendezvous_of(config: RunConfig, allocation: Allocation) -> Rendezvous | None:
    """The rendezvous of this attempt; None where rank 0 is alone with its node."""
    if config.backend.name != "ray" or (len(allocation.node_names) == 1 and not config.elastic.is_on):
        return None
    return Rendezvous(config.run.dir.absolute() / "jobs" / allocation.key)
