"""Which run a folder belongs to, and whether a configuration may go on with it.

    <run.dir>/run.json                     which run this is: id, fingerprint, schema version; and checksums of
                                           the user's code
    <run.dir>/replaced-001/                what a run before it left there: events, held-out scores, curves, logs, jobs;
                                           or tables of this run's steps that no checkpoint covers

Invariant: a folder belongs to the run whose steps it holds. As long as it holds none (after a start that failed or was
interrupted, or an evaluation), any configuration may begin there; then the records of the run before are set aside, and
none of them counts as the new run's. Of a run that only evaluates, the section `evaluation` says which run it is, too.
A run without a checkpoint begins again, and keeps its tables there, too. A `run.json` that is lost is restored from a
checkpoint, which holds the same facts, but for the checksums.
"""

from __future__ import annotations

import itertools
import json
import os
import uuid
from collections.abc import Mapping  # pydantic reads it
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from rollpacker.config.fingerprint import Difference, config_fingerprint, differences
from rollpacker.config.keys import section_of
from rollpacker.config.record import read_record
from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.base import NotInFingerprint
from rollpacker.config.words import counted
from rollpacker.core.errors import CheckpointError, ConfigError, DataError
from rollpacker.metrics.files import storage_errors, write_atomically
from rollpacker.paths import read_bytes
from rollpacker.runtime.job.allocation import current_allocation
from rollpacker.runtime.job.attempts import JOBS_FOLDER
from rollpacker.runtime.run.checkpoints import SCHEMA_VERSION, VERSIONED, CheckpointStore, FoundCheckpoints
from rollpacker.runtime.run.own_code import checksums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

RUN_FILE = "run.json"

_TABLES, _EVALUATION, _MANIFEST = "metrics", "evaluation", "manifest.json"
_ENDS = ("steps", "intervals")
"""The tables that are written first and last. All as `rollpacker.metrics.tables` names them, which loads pyarrow: too
slow for a look."""

_RECORDS = (
    *("config.yaml", "accounts", _EVALUATION, "events", "logs/attempt-*"),
    *("tensorboard", "tracker.jsonl", "wandb"),
)
"""What a run leaves, and another one would add to or be taken for; of `jobs` all but that of this process. Not
`elastic`: workers of the next run may have claimed their names there already, and a report names its attempt."""

MAX_DIFFERENCES = 8
"""Keys that a message names; more of them make another run."""

_LISTED = ("run", "model", "system", "backend")
"""Sections whose free keys a message names one by one; those of the others are many, and all alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """Which run a folder belongs to."""

    schema_version: int
    run_id: str
    """Given once; trackers keep it over all attempts."""
    fingerprint: str
    """Of the configuration, as far as it defines the result."""
    own_code: Mapping[str, int] = field(default_factory=dict)
    """Of the last attempt, as `rollpacker.runtime.run.own_code` gives it; empty where a checkpoint gave the rest."""


_IDENTITY = TypeAdapter(RunIdentity)


def find_resumable(config: RunConfig) -> FoundCheckpoints:
    """Find the checkpoints that this configuration goes on from; creates and changes nothing.

    Raises:
        ConfigError: A new run was asked for, and the folder holds one.
        CheckpointError: The folder holds another run, or checkpoints of which none is whole.
    """
    run_dir = config.run.dir
    store = CheckpointStore(run_dir, keep=config.run.keep_checkpoints)
    if not has_trained(run_dir):
        return FoundCheckpoints(newest=None, broken=())
    identity = _read_identity(run_dir)
    _check_same_run(config, identity)
    steps = store.steps()
    if config.run.resume != "auto":
        done = f"with a checkpoint after step {steps[-1]}" if steps else "without a checkpoint yet"
        raise ConfigError(
            f"run.dir={run_dir} already holds this run, {done}.",
            "A new run starts in a folder of its own.",
            "Continue it with run.resume=auto, or choose another run.dir.",
        )
    found = store.find(fingerprint=identity.fingerprint)
    if found.broken and found.newest is None:
        listed = "\n".join(f"  {broken.folder}: {broken.problem}" for broken in found.broken)
        raise CheckpointError(
            f"No checkpoint of run.dir={run_dir} is whole:\n{listed}",
            "A checkpoint is complete when it is written, so something else changed these files.",
            "Restore one of them from a copy, or begin a new run in another run.dir.",
        )
    return found


def identify_run(config: RunConfig, note: Callable[[str], None]) -> RunIdentity:
    """Read the identity of a run's folder, or give it one; for the only process in it, after `find_resumable`.

    `note` is told where the records of another run are then, and which code of the run was edited.
    """
    run_dir, fingerprint = config.run.dir, config_fingerprint(config)
    identity = _read_identity(run_dir) if has_trained(run_dir) else _parse(run_dir / RUN_FILE)
    if _is_new_evaluation(config) or not isinstance(identity, RunIdentity) or identity.fingerprint != fingerprint:
        what = _what_began(run_dir)
        kept = _set_aside(run_dir, [*_records(run_dir), *_other_jobs(run_dir)])
        if kept is not None:
            note(f"{what} Its records are kept in {kept}.")
        identity = RunIdentity(schema_version=SCHEMA_VERSION, run_id=uuid.uuid4().hex[:12], fingerprint=fingerprint)
    own_code = checksums(config)
    edited = [place for place, checksum in own_code.items() if identity.own_code.get(place, checksum) != checksum]
    if edited and has_trained(run_dir):
        note(
            f"Edited since the last attempt of this run: {', '.join(edited)}. If rewards come from it, scores from "
            "before and after are not comparable."
        )
    identity = replace(identity, own_code=own_code)
    write_atomically(run_dir / RUN_FILE, _IDENTITY.dump_json(identity, indent=1) + b"\n")
    return identity


def set_steps_aside(run_dir: Path, note: Callable[[str], None]) -> None:
    """Keep the tables of a run that begins again, since no checkpoint is there; `note` is told what is done again."""
    if num_steps := _num_steps(run_dir / _TABLES):
        kept = _set_aside(run_dir, [run_dir / _TABLES, *run_dir.glob(_EVALUATION)])
        note(
            f"{run_dir} holds no checkpoint, so the run begins again. Done again: {counted(num_steps, 'step')}. "
            f"Their tables are kept in {kept}."
        )


def has_trained(run_dir: Path) -> bool:
    """True when the folder holds a step, in a checkpoint or in the tables."""
    return bool(CheckpointStore(run_dir, keep=1).steps()) or _num_steps(run_dir / _TABLES) > 0


def _records(run_dir: Path) -> list[Path]:
    return [path for pattern in _RECORDS for path in sorted(run_dir.glob(pattern))]


def _set_aside(run_dir: Path, records: Sequence[Path]) -> Path | None:
    """Move files and folders of a run; gives where to, or None where there is nothing to move."""
    names = (run_dir / f"replaced-{number:03d}" for number in itertools.count(1))
    aside = next(path for path in names if not path.exists())
    with storage_errors(aside):
        for record in records:
            kept = aside / record.relative_to(run_dir)
            kept.parent.mkdir(parents=True, exist_ok=True)
            record.rename(kept)
    return aside if records else None


def _other_jobs(run_dir: Path) -> list[Path]:
    """Files and folders of the jobs that the run before was in; each begins with the number of its job."""
    allocation = current_allocation(os.environ)
    own = None if allocation is None else allocation.job_id
    return sorted(path for path in run_dir.glob(f"{JOBS_FOLDER}/*") if path.name.partition(".")[0] != own)


def _has_evaluated(run_dir: Path) -> bool:
    return any((run_dir / _EVALUATION).glob("evaluations/step*.parquet"))


def _is_new_evaluation(config: RunConfig) -> bool:
    """Whether scores that the folder holds are of another evaluation; one that Slurm requeues has the same section."""
    run_dir = config.run.dir
    if has_trained(run_dir) or not _has_evaluated(run_dir):
        return False
    if config.run.resume != "auto":
        return True
    recorded = (_read_record(run_dir) or {}).get("evaluation")
    return not config.trains and recorded != config.evaluation.model_dump(mode="json")


def _what_began(run_dir: Path) -> str:
    """Say what a folder without steps holds."""
    recorded = (_read_record(run_dir) or {}).get("run") or {}
    if _has_evaluated(run_dir) and recorded.get("num_steps") == 0:
        return f"{run_dir} held an earlier evaluation."
    return f"Another run began in {run_dir} and finished no step."


def _num_steps(tables: Path) -> int:
    """Steps that the manifest names; where it is lost, those of which the first and the last table have a part."""
    try:
        lasts = [int(last) for _, last in json.loads(read_bytes(tables / _MANIFEST))["parts"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        first, last = ({path.stem for path in (tables / table).glob("step*.parquet")} for table in _ENDS)
        numbers = [name.rpartition("-")[2] for name in first & last]
        lasts = [int(number) for number in numbers if number.isdecimal()]
    return max(lasts, default=-1) + 1


def _read_identity(run_dir: Path) -> RunIdentity:
    """Read the identity of a folder that holds steps; without a legible `run.json`, that of its newest checkpoint."""
    file = run_dir / RUN_FILE
    identity = _parse(file)
    if isinstance(identity, str):
        newest = CheckpointStore(run_dir, keep=1).find().newest
        if newest is None:
            raise CheckpointError(
                f"{file} {identity}, and no whole checkpoint says which run this is.",
                "A folder that holds steps of a run holds its run.json.",
                "Restore the file from a copy, or choose another run.dir.",
            )
        meta = newest.meta
        identity = RunIdentity(schema_version=meta.schema_version, run_id=meta.run_id, fingerprint=meta.fingerprint)
    if identity.schema_version != SCHEMA_VERSION:
        raise CheckpointError(
            f"{file} has schema version {identity.schema_version}.",
            f"This version of rollpacker reads schema version {SCHEMA_VERSION}.",
            "Resume with the version that wrote it, or choose another run.dir.",
        )
    return identity


def _parse(file: Path) -> RunIdentity | str:
    """Read `run.json`, or only its schema version if that is another one; gives what is wrong if it cannot be read."""
    try:
        content = read_bytes(file)
        version = VERSIONED.validate_json(content, strict=True).schema_version
        if version == SCHEMA_VERSION:
            return _IDENTITY.validate_json(content, strict=True)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValidationError as error:
        return f"is damaged: {error.errors()[0]['msg']}"
    return RunIdentity(schema_version=version, run_id="", fingerprint="")


def _read_record(run_dir: Path) -> dict[str, Any] | None:
    """The configuration of the folder's run; None where it is not recorded, or cannot be read."""
    try:
        return read_record(run_dir)
    except DataError:
        return None


def _check_same_run(config: RunConfig, identity: RunIdentity) -> None:
    if identity.fingerprint == config_fingerprint(config):
        return
    run_dir = config.run.dir
    raise CheckpointError(
        f"run.dir={run_dir} holds another run: {_told(differences(config, _read_record(run_dir)))}",
        free_keys(),
        "Give the keys that differ the values of the run, or choose another run.dir.",
    )


def free_keys() -> str:
    """Say which keys the schema marks as not in the fingerprint."""
    free = [*_marked(RunConfig)]
    for name in _LISTED:
        section = section_of(RunConfig.model_fields[name])
        assert section is not None
        free += [f"{name}.{key}" for key in _marked(section)]
    return (
        f"Free to differ when a run is resumed: {', '.join(free)}; run.num_steps under a constant learning rate; of "
        "engine, trainer, reward, environment, hardware and workload what changes only where or how fast the result is "
        "reached: the number of engines and workers, their degrees, memory and limits."
    )


def _marked(section: type[BaseModel]) -> Iterator[str]:
    for name, each in section.model_fields.items():
        for mark in each.metadata:
            if isinstance(mark, NotInFingerprint):
                yield from [f"{name}.{key}" for key in mark.keys] or [name]


def _told(found: list[Difference] | None) -> str:
    if not found:
        return (
            "its config.yaml cannot be compared."
            if found is None
            else "its config.yaml names the same values, so another version of rollpacker began it, or it began in "
            "another folder with a relative model.path or data.path."
        )
    lines = [f"  {each.key}: {each.here} here, {each.there} in the run" for each in found[:MAX_DIFFERENCES]]
    if len(found) > MAX_DIFFERENCES:
        lines.append(f"  and {counted(len(found) - MAX_DIFFERENCES, 'key')} more")
    return "\n".join(["its configuration differs in what changes the result.", *lines])
