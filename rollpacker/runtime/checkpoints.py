"""Checkpoints: everything that a later attempt needs to go on as if nothing had happened.

    <run.dir>/run.json                     which run this is: id, fingerprint, schema version
    <run.dir>/checkpoints/step-000010/
        meta.json                          step, run id, fingerprint, elapsed time
        scheduler.json  order.json         snapshots of the machines and of the prompt order
        trainer/                           model (Hugging Face files), optimizer, schedule, generators

A checkpoint is taken between steps, when no request is in flight, and holds the state after `step` finished steps. It
is written under a temporary name and renamed, so a folder that is there is complete. Older ones go only after a newer
one is on the disk.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollpacker.core.errors import CheckpointError
from rollpacker.metrics.files import publish_folder, remove_folder, remove_temporaries, write_atomically
from rollpacker.protocols.trainer import Trainer

SCHEMA_VERSION = 1
"""Of the files described above; another version is refused."""

RUN_FILE = "run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """Which run a folder belongs to."""

    schema_version: int
    run_id: str
    """Given once; trackers keep it over all attempts."""
    fingerprint: str
    """Of the configuration, as far as it defines the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMeta:
    """`meta.json`."""

    schema_version: int
    run_id: str
    fingerprint: str
    step: int
    """Finished steps."""
    elapsed_s: float
    """Time of all attempts until here."""
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint on the disk, its small parts loaded."""

    folder: Path
    meta: CheckpointMeta
    scheduler: dict[str, Any]
    order: dict[str, Any]

    @property
    def trainer_folder(self) -> Path:
        return self.folder / "trainer"


def identify_run(run_dir: Path, fingerprint: str) -> RunIdentity:
    """Read the identity of a run's folder, or give it one."""
    file = run_dir / RUN_FILE
    if file.exists():
        return RunIdentity(**_read_json(file))
    identity = RunIdentity(schema_version=SCHEMA_VERSION, run_id=uuid.uuid4().hex[:12], fingerprint=fingerprint)
    write_atomically(file, _to_json(asdict(identity)))
    return identity


class CheckpointStore:
    """The checkpoints of one run. One writer at a time."""

    def __init__(self, run_dir: Path, *, keep: int) -> None:
        self._root = run_dir / "checkpoints"
        self._keep = keep

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending."""
        return sorted(int(folder.name.removeprefix("step-")) for folder in self._root.glob("step-*"))

    def latest(self) -> Checkpoint | None:
        """Load the newest checkpoint, None when there is none."""
        steps = self.steps()
        if not steps:
            return None
        folder = self._folder(steps[-1])
        return Checkpoint(
            folder=folder,
            meta=CheckpointMeta(**_read_json(folder / "meta.json")),
            scheduler=_read_json(folder / "scheduler.json"),
            order=_read_json(folder / "order.json"),
        )

    async def save(
        self, meta: CheckpointMeta, *, scheduler: Mapping[str, Any], order: Mapping[str, Any], trainer: Trainer
    ) -> None:
        """Write a checkpoint, then remove those that are too old."""
        remove_temporaries(self._root)
        with publish_folder(self._folder(meta.step), durable=True) as folder:
            (folder / "trainer").mkdir()
            await trainer.save(folder / "trainer")
            (folder / "scheduler.json").write_bytes(_to_json(scheduler))
            (folder / "order.json").write_bytes(_to_json(order))
            (folder / "meta.json").write_bytes(_to_json(asdict(meta)))
        for step in self.steps()[: -self._keep]:
            remove_folder(self._folder(step))

    def _folder(self, step: int) -> Path:
        return self._root / f"step-{step:06d}"


def _to_json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{file} cannot be read: {error}.",
            "A checkpoint is complete or absent, so something else changed this file.",
            "Remove this checkpoint folder to resume from an older one.",
        ) from error
    return content
