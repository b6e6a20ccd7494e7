"""Checkpoints: everything that a later attempt needs to go on as if nothing had happened.

    <run.dir>/checkpoints/step-000010/
        meta.json                          step, run id, fingerprint, elapsed time, sizes and checksums of the files
        scheduler.json  order.json         snapshots of the machines and of the prompt order
        rollouts.json  rollouts.npz        of an asynchronous run: responses under way, with their tokens and verdicts
        trainer/                           model (Hugging Face files), optimizer, schedule, generators
    <run.dir>/checkpoints/best -> step-000010      with run.keep_best, the one with the best held-out score
    <run.dir>/checkpoints/broken-step-000010/   one that was no longer whole when a run was resumed
    <run.dir>/checkpoints/copied-best/  what a copy of the folder that followed the link had in its place

A checkpoint is taken between steps, when no request is in flight, and holds the state after `step` finished steps. It
is written under a temporary name and renamed, so every folder was once complete. Older ones are removed only after a
newer one is on the disk. Before a run is resumed its checkpoints are checked: one that is no longer whole is kept under
another name, and the newest whole one counts. One that cannot be read now, and may be whole, stops the run before that.
A checkpoint that could be resumed is never deleted otherwise.

Slow file work runs in a thread, which renames nothing: a save that was cancelled changes no checkpoint later. What it
leaves under a temporary name is deleted when the attempt ends, or before the next checkpoint.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import FiniteFloat, NonNegativeInt, TypeAdapter, ValidationError

from rollpacker.core.errors import PolicyDiverged, RepeatedFailure, RollpackerError, WrongSampling
from rollpacker.metrics.files import (
    hide_folder,
    make_durable,
    publish_folder,
    remove_temporaries,
    storage_errors,
    sync_tree,
)
from rollpacker.metrics.read_errors import stop_unless_damaged
from rollpacker.paths import read_bytes
from rollpacker.protocols.blocking import in_daemon_thread
from rollpacker.protocols.trainer import Trainer
from rollpacker.runtime.rollout.request_book import RequestBook
from rollpacker.runtime.run.file_checksums import FileRecords, find_change, record_files
from rollpacker.runtime.run.rollouts import save_rollouts
from rollpacker.runtime.waiting.clock import SettableTime

SCHEMA_VERSION = 2
"""Of the files described above and of `run.json`; another version is refused."""

META_FILE = "meta.json"

_BEST = "best"
"""A link to the checkpoint with the best held-out score."""

_NAME = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMeta:
    """`meta.json`."""

    schema_version: int
    run_id: str
    fingerprint: str
    step: NonNegativeInt
    """Finished steps."""
    elapsed_s: FiniteFloat
    """Time of all attempts until here."""
    attempt: int
    files: FileRecords
    """All others of the checkpoint, which `CheckpointStore.save` records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Versioned:
    """What `meta.json` and `run.json` of every version say."""

    schema_version: int


_META, VERSIONED = TypeAdapter(CheckpointMeta), TypeAdapter(_Versioned)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint on the disk, its small parts loaded."""

    folder: Path
    meta: CheckpointMeta
    scheduler: dict[str, Any]
    order: dict[str, Any]

    @property
    def trainer_folder(self) -> Path:
        return self.folder / "trainer"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenCheckpoint:
    """A checkpoint on the disk that cannot be resumed."""

    folder: Path
    step: int
    problem: str
    """The missing or changed file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoints:
    """The checkpoints of a run, as far as resuming needs them."""

    newest: Checkpoint | None
    """The newest whole one."""
    broken: tuple[BrokenCheckpoint, ...]
    """Those that are newer, the newest first; older ones are not checked."""


class CheckpointStore:
    """The checkpoints of one run. One writer at a time."""

    def __init__(self, run_dir: Path, *, keep: int) -> None:
        self._root = run_dir / "checkpoints"
        self._best = self._root / _BEST
        self._keep = keep

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending; raises `StorageFailed` where they cannot be listed now."""
        try:
            names = [_NAME.fullmatch(path.name) for path in self._root.iterdir()]
        except OSError as error:
            stop_unless_damaged(self._root, error)
            return []
        return sorted(int(name[1]) for name in names if name)

    def find(self, *, fingerprint: str | None = None) -> FoundCheckpoints:
        """Find the newest checkpoint that is whole.

        Args:
            fingerprint: Of the run that they belong to; None takes those of any run.

        Raises:
            StorageFailed: One cannot be read now, and may be whole.
        """
        broken: list[BrokenCheckpoint] = []
        for step in reversed(self.steps()):
            folder = self.folder(step)
            try:
                return FoundCheckpoints(newest=self.load(step, fingerprint=fingerprint), broken=tuple(broken))
            except ValueError as error:
                broken.append(BrokenCheckpoint(folder=folder, step=step, problem=str(error)))
        return FoundCheckpoints(newest=None, broken=tuple(broken))

    def load(self, step: int, *, fingerprint: str | None = None) -> Checkpoint:
        """Load the checkpoint after so many steps.

        Raises:
            ValueError: It is not whole; the message says what is wrong with it.
            StorageFailed: It cannot be read now, and may be whole.
        """
        return _load(self.folder(step), step, fingerprint)

    def set_aside(self, broken: BrokenCheckpoint) -> Path:
        """Rename a broken checkpoint, so that it is not found again; returns its new folder. It is no more the best."""
        kept = self._free_name(f"broken-{broken.folder.name}")
        if self.best_step() == broken.step:
            with storage_errors(self._best):
                self._best.unlink()
        with storage_errors(kept):
            broken.folder.rename(kept)
        return kept

    def relink_best(self) -> Path | None:
        """Make `best` a link again, where copying the run made it a folder; returns that one's new name, or None."""
        if self._best.is_symlink() or not self._best.exists():
            return None
        step, kept = self.best_step(), self._free_name(f"copied-{_BEST}")
        with storage_errors(kept):
            self._best.rename(kept)
        if step is not None and step in self.steps():
            self._link_best(step)
        return kept

    def _free_name(self, name: str) -> Path:
        more = (f"{name}-{number}" for number in itertools.count(2))
        return next(path for each in itertools.chain([name], more) if not (path := self._root / each).exists())

    def remove_unfinished(self) -> None:
        """Delete checkpoints that were not completely written, and those that `hide_old` found too old."""
        remove_temporaries(self._root)

    async def save(
        self,
        meta: CheckpointMeta,
        *,
        scheduler: Mapping[str, Any],
        order: Mapping[str, Any],
        rollouts: RequestBook | None = None,
        trainer: Trainer,
    ) -> None:
        """Write a checkpoint, then remove those that are too old; `rollouts` are an asynchronous run's."""
        final = self.folder(meta.step)
        await in_thread(self.remove_unfinished)
        with publish_folder(final) as folder:
            with storage_errors(final):
                (folder / "trainer").mkdir()
            await trainer.save(folder / "trainer")
            with storage_errors(final):
                await in_thread(lambda: _complete(folder, meta, scheduler, order, rollouts))
        await in_thread(lambda: make_durable([final]))
        self.hide_old()
        await in_thread(self.remove_unfinished)

    def mark_best(self, step: int) -> None:
        """Point the link `best` at the checkpoint of a step, if there is one, and keep it until another is better."""
        if step not in self.steps():
            return
        self._link_best(step)
        self.hide_old()

    def _link_best(self, step: int) -> None:
        fresh = self._root / f"{_BEST}-{step}"
        with storage_errors(self._best):
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(self.folder(step).name)
            fresh.replace(self._best)

    def best_step(self) -> int | None:
        """The step of the checkpoint with the best held-out score; None where none is marked."""
        if self._best.is_symlink():
            name = _NAME.fullmatch(self._best.readlink().name)
            return int(name[1]) if name else None
        try:
            return _read_meta(self._best).step  # the run was copied, and the link followed
        except ValueError:
            return None

    def hide_old(self) -> None:
        """Take the name of checkpoints that are too old; `remove_unfinished` deletes them."""
        best = self.best_step()
        for step in self.steps()[: -self._keep]:
            if step != best:
                hide_folder(self.folder(step))

    def folder(self, step: int) -> Path:
        """Where the checkpoint after so many steps is, or would be."""
        return self._root / f"step-{step:06d}"

    def model_folder(self, step: int) -> Path:
        """Where its model is, or would be: a Hugging Face folder, in float32; a modelled run has none."""
        return self.folder(step) / "trainer" / "model"


async def in_thread(work: Callable[[], object]) -> None:
    """Do what may take minutes on a slow disk; meanwhile the event loop handles signals and deadlines.

    In virtual time it is done at once: the clock would jump past a thread, and a modelled run's files are small.
    """
    if isinstance(asyncio.get_running_loop(), SettableTime):
        work()
    else:
        await in_daemon_thread(work)


def _complete(
    folder: Path,
    meta: CheckpointMeta,
    scheduler: Mapping[str, Any],
    order: Mapping[str, Any],
    rollouts: RequestBook | None,
) -> None:
    """Add to what the trainer has written, record the files of the checkpoint, and write all through to the disk."""
    (folder / "scheduler.json").write_bytes(_to_json(scheduler))
    (folder / "order.json").write_bytes(_to_json(order))
    if rollouts is not None:
        save_rollouts(folder, rollouts)
    meta = replace(meta, files=record_files(folder))
    (folder / META_FILE).write_bytes(_to_json(asdict(meta)))
    sync_tree(folder)


def _load(folder: Path, step: int, fingerprint: str | None) -> Checkpoint:
    """As `CheckpointStore.load`."""
    meta = _read_meta(folder)
    if meta.step != step:
        raise ValueError(f"{META_FILE} says that it is of step {meta.step}")
    if fingerprint is not None and meta.fingerprint != fingerprint:
        raise ValueError("it belongs to another run")
    if problem := find_change(folder, meta.files):
        raise ValueError(problem)
    scheduler, order = _read_object(folder / "scheduler.json"), _read_object(folder / "order.json")
    return Checkpoint(folder=folder, meta=meta, scheduler=scheduler, order=order)


def _read_meta(folder: Path) -> CheckpointMeta:
    try:
        content = read_bytes(folder / META_FILE)
        version = VERSIONED.validate_json(content, strict=True).schema_version
        if version == SCHEMA_VERSION:
            return _META.validate_json(content, strict=True)
    except FileNotFoundError:
        raise ValueError(f"{META_FILE} is missing") from None
    except OSError as error:
        stop_unless_damaged(folder / META_FILE, error)
        raise ValueError(f"{META_FILE} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{META_FILE} is damaged: {where or 'it'}: {first['msg']}") from error
    raise ValueError(f"{META_FILE} has schema version {version}, not {SCHEMA_VERSION}")


def _to_json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def _read_object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_bytes(file))
    except FileNotFoundError:
        raise ValueError(f"{file.name} is missing") from None
    except OSError as error:
        stop_unless_damaged(file, error)
        raise ValueError(f"{file.name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file.name} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file.name} is damaged: it is no JSON object")  # noqa: TRY004  what a file holds
    return content


def with_way_back(
    error: PolicyDiverged | RepeatedFailure | WrongSampling, checkpoints: CheckpointStore, policy_version: int
) -> RollpackerError:
    """Name the checkpoint to go on from when the policy is unusable.

    Weights that the trainer refuses, or that learned from wrong samples, are not saved. Engines that fail in the same
    way may fail because of their weights, which a checkpoint may hold, too. Other settings make another run, which
    takes the model alone.
    """
    steps = checkpoints.steps()
    sound = [step for step in steps if not isinstance(error, RepeatedFailure) or step < policy_version]
    suspect = [str(checkpoints.folder(step)) for step in steps if step not in sound]
    way = [f"The weights that failed are in {' and '.join(suspect)}."] if suspect else []
    if sound:
        model = checkpoints.model_folder(sound[-1])
        way.append(f"The last ones before are in {model}: give it as model.path to a run in another run.dir.")
    else:
        way.append("There is no checkpoint of earlier ones: start again in another run.dir.")
    return type(error)(error.problem, error.allowed, "\n".join([error.remedy, *way]).strip())
