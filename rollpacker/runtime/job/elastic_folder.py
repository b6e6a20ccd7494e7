"""Where a run and its rollout workers find each other: `elastic` in the run's folder, which every node sees.

    lease.json      of the attempt that takes workers: its Ray's address and token file, and what an engine must equal
    workers/NAME.json     a worker's life: what it has, how far it is; written by the worker alone
    orders/NAME.json      it is to leave, and why
    workers/NAME.claim    this life's name is taken, also in later attempts
    earlier/        what workers of earlier attempts left in `workers`
    wish.json       how many workers the run would use; read by the porter of its batch script
    slurm.txt       that porter's last look at the queue
    over            the run has ended: nobody takes workers any more

Invariants: only the user may enter the folder, and a lease that another user owns is not read; files are written whole,
by one process each, so nothing is locked; no file holds a secret, the token is named by its path. A lease counts while
it is renewed: a head that died leaves its own behind, and whoever listens at that address by now would get the token.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rollpacker.config.fingerprint import config_fingerprint
from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import StorageFailed
from rollpacker.core.ids import WorkerId
from rollpacker.metrics.files import (
    TEMPORARY_PREFIX,
    make_private_folder,
    remove_temporaries,
    storage_errors,
    write_atomically,
)

RENEWAL_S = 2.0
"""Between two writes of a lease: a worker waits for one, at most, before it joins."""

LEASE_WAIT_S = 120.0
"""A worker waits so long for a run; then its batch script, outside any container, looks whether that job exists."""

QUEUE_FILE = "slurm.txt"
"""The number of the workers' array, then a line of id, state, reason and expected start for each element that is in the
queue."""

_CLOSING_S = 3.0
"""For a renewal in progress to end: a file system that hangs delays no run for longer."""

_LEASE_FILE = "lease.json"
_WISH_FILE = "wish.json"
_OVER_FILE = "over"
_SUFFIX = ".json"
_CLAIM_SUFFIX = ".claim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What must be equal where engines of one run work; each field is text for people, too."""

    code: str
    """Of the package's Python files."""
    python: str
    ray: str
    """Ray refuses other versions of itself and of Python by itself, but in many more words."""
    run: str
    """Of all values that define the run's result."""
    engine: str
    """Of what an engine is made from."""

    def difference(self, other: Fingerprint) -> str:
        """Say what another one has otherwise, as a sentence; empty where nothing."""
        mine = {field.name: getattr(self, field.name) for field in fields(self)}
        theirs = {name: getattr(other, name) for name in mine}
        unlike = [f"{name} {theirs[name]} (the run has {own})" for name, own in mine.items() if own != theirs[name]]
        return f"The worker has another {', '.join(unlike)}." if unlike else ""


def versions_here() -> dict[str, str]:
    """What of a fingerprint needs no configuration: another version of the package may not understand a run's."""
    package = Path(__file__).parents[2]
    code = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        code.update(str(file.relative_to(package)).encode())
        code.update(file.read_bytes())
    return {"code": code.hexdigest()[:16], "python": platform.python_version(), "ray": version("ray")}


def fingerprint_here(config: RunConfig) -> Fingerprint:
    """What this process would make engines from."""
    engine = config.engine.model_dump_json(exclude={"num_engines", "resources"}) + config.model.dtype
    return Fingerprint(
        **versions_here(),
        run=config_fingerprint(config),
        engine=hashlib.sha256(engine.encode()).hexdigest()[:16],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The attempt of a run that takes workers."""

    attempt: str
    """Key of the attempt; `Allocation.key` in a job."""
    head_address: str
    """host:port of its Ray."""
    token_file: Path
    fingerprint: Fingerprint
    num_renewals: int = 0
    """Tells those who wait that the attempt is alive: clocks and times of files differ between nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """How far a worker is, in one of its lives."""

    worker: WorkerId
    attempt: str
    """That it joins, or joined."""
    node: str
    stage: str
    num_engines: int
    end_time: float | None = None
    """When it leaves, in seconds since the epoch: shortly before its job's time limit, or sooner after a notice."""
    mismatch: str = ""
    """Why it does not join, as a sentence."""
    has_left: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A worker is to leave."""

    reason: str
    may_return: bool


_LEASE, _REPORT, _ORDER = TypeAdapter(Lease), TypeAdapter(WorkerReport), TypeAdapter(Order)
_WISH = TypeAdapter(dict[str, int])


class ElasticFolder:
    """Reads and writes the folder of a run."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir.absolute() / "elastic"
        self._workers, self._orders, self._earlier = (self.path / name for name in ("workers", "orders", "earlier"))

    def open(self) -> None:
        """Create it, unless somebody has."""
        for folder in (self.path, self._workers, self._orders, self._earlier):
            make_private_folder(folder)

    # -- the run --

    def give_lease(self, lease: Lease) -> None:
        self._write(self.path / _LEASE_FILE, lease)

    @contextmanager
    def renewed(self, lease: Lease) -> Iterator[None]:
        """Give a lease, and renew it for as long as this is open, whatever else the process does."""
        is_over = threading.Event()
        self.give_lease(lease)

        def renew() -> None:
            for number in count(1):
                if is_over.wait(RENEWAL_S):
                    return
                with suppress(StorageFailed):  # a file system may be away for a while
                    self.give_lease(replace(lease, num_renewals=number))

        renewal = threading.Thread(target=renew, name="renewal of the lease", daemon=True)
        renewal.start()
        try:
            yield
        finally:
            is_over.set()
            renewal.join(_CLOSING_S)

    def withdraw_lease(self) -> None:
        with storage_errors(self.path):
            (self.path / _LEASE_FILE).unlink(missing_ok=True)

    def current_reports(self, *, but: Collection[str] = ()) -> Iterator[WorkerReport]:
        """What workers have reported since `reopen`, without those of `but`; some may be of the attempt before."""
        return _reports(self._workers, but)

    def reports(self) -> Iterator[WorkerReport]:
        """What workers of any attempt report, as far as this user may read it."""
        for folder in (self._earlier, self._workers):
            with suppress(PermissionError):
                yield from _reports(folder)

    def order(self, worker: WorkerId, order: Order) -> None:
        self._write(self._orders / f"{worker}{_SUFFIX}", order)

    def wish(self, num_workers: int) -> None:
        write_atomically(self.path / _WISH_FILE, json.dumps({"num_workers": num_workers}).encode())

    def finish(self) -> None:
        """No attempt of the run will take workers any more."""
        self.withdraw_lease()
        write_atomically(self.path / _OVER_FILE, b"")

    def reopen(self) -> None:
        """Another attempt begins: what the last one said counts no more, and what its workers left goes aside."""
        self.open()
        own = (_LEASE_FILE, _WISH_FILE, _OVER_FILE)
        remove_temporaries(self.path, *own)
        with storage_errors(self.path):
            for path in (*(self.path / name for name in (*own, QUEUE_FILE)), *self._orders.iterdir()):
                path.unlink(missing_ok=True)
            for name in _names(self._workers):
                if not name.endswith(_CLAIM_SUFFIX):
                    (self._workers / name).rename(self._earlier / name)

    # -- whoever looks --

    def wished(self) -> int | None:
        """How many workers the run would use; None before it has said so."""
        wish = _read(self.path / _WISH_FILE, _WISH)
        return None if wish is None else int(wish["num_workers"])

    # -- a worker --

    def lease(self) -> Lease | None:
        """That of the attempt that takes workers; None while there is none."""
        return _read(self.path / _LEASE_FILE, _LEASE) if _LEASE_FILE in _names(self.path) else None

    def is_over(self) -> bool:
        return _OVER_FILE in _names(self.path)

    def claim_life(self, element: str) -> WorkerId:
        """Give an element of the array the name of its next life."""
        lives = [
            int(name.removesuffix(_CLAIM_SUFFIX).rpartition("-r")[2])
            for name in _names(self._workers)
            if name.startswith(f"{element}-r") and name.endswith(_CLAIM_SUFFIX)
        ]
        life = max(lives, default=-1) + 1
        with storage_errors(self._workers):
            while True:
                worker = WorkerId(f"{element}-r{life}")
                try:  # a listing may be older than the file
                    (self._workers / f"{worker}{_CLAIM_SUFFIX}").touch(mode=0o600, exist_ok=False)
                except FileExistsError:
                    life += 1
                else:
                    return worker

    def report(self, report: WorkerReport) -> None:
        self._write(self._workers / f"{report.worker}{_SUFFIX}", report)

    def order_of(self, worker: WorkerId) -> Order | None:
        """What it was told; None as long as it may stay."""
        name = f"{worker}{_SUFFIX}"
        return _read(self._orders / name, _ORDER) if name in _names(self._orders) else None

    def _write(self, file: Path, content: Lease | WorkerReport | Order) -> None:
        write_atomically(file, json.dumps(asdict(content), default=str).encode())


def _names(folder: Path) -> list[str]:
    """List the files of a folder that are whole.

    A network file system may cache that a name was missing, but reads a folder again.
    """
    names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
    return [name for name in names if not name.startswith(TEMPORARY_PREFIX)]


def _reports(folder: Path, but: Collection[str] = ()) -> Iterator[WorkerReport]:
    for name in sorted(_names(folder)):
        if name.endswith(_SUFFIX) and name.removesuffix(_SUFFIX) not in but:
            report = _read(folder / name, _REPORT)
            if report is not None:
                yield report


def _read(file: Path, kind: TypeAdapter[Any]) -> Any:
    """Read a file of ours; None for one that has just gone, that another user owns, or that is not whole."""
    try:
        if file.stat().st_uid != os.geteuid():
            return None
        return kind.validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None
