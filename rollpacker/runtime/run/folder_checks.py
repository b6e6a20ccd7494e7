"""Checks that a run may write into its `run.dir`, for train, check and doctor. Nothing is created."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.config.record import CONFIG_FILE
from rollpacker.core.errors import ConfigError
from rollpacker.paths import kind_of, real_path, special_kind
from rollpacker.runtime.job.file_lock import LOCK_FILE
from rollpacker.runtime.run.run_folder import RUN_FILE
from rollpacker.runtime.run.status import STATUS_FILE

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig

_SYSTEM_FOLDERS = ("/proc", "/sys", "/dev")
"""Their files are not on a disk."""
_MEMORY = "/dev/shm"  # noqa: S108  it is a file system like any other
_FILES = (RUN_FILE, CONFIG_FILE, STATUS_FILE, LOCK_FILE)
_FOLDERS = ("checkpoints", "metrics", "evaluation", "events", "logs", "jobs", "model")
"""The names that a run creates in its folder."""
_LONGEST_NAME = 255
"""Bytes of a part of a path: NAME_MAX of Linux's file systems."""
_LONGEST_PATH = 3500
"""Bytes: PATH_MAX is 4,096, and a run's files have names of their own."""


def check_run_dir(config: RunConfig) -> None:
    """Refuse a `run.dir` that a run cannot or should not write into."""
    check_folder("run.dir", config.run.dir)
    _check_own_names(config.run.dir)
    _check_inputs(config, real_path(config.run.dir))


def check_folder(key: str, folder: Path) -> None:
    """Refuse a path that cannot be a folder that a command writes into."""
    _check_text(key, folder)
    _check_reachable(key, folder)
    kind = special_kind(folder) if not folder.is_dir() else ""
    if kind or folder.is_file():
        raise ConfigError(
            f"{key}={folder} is {kind or 'a file'}.",
            "It is a folder, which is made if need be.",
            f"Choose another {key}.",
        )
    resolved = real_path(folder)
    inside = next((name for name in _SYSTEM_FOLDERS if resolved.is_relative_to(name)), None)
    if resolved == Path("/") or (inside and not resolved.is_relative_to(_MEMORY)):
        raise ConfigError(
            f"{key}={folder} is in {inside}." if inside else f"{key}={folder} is the root of all files.",
            "It is a folder of its own on a disk.",
            f"Choose another {key}, such as {key}=runs/NAME.",
        )
    check_creatable(key, folder)


def check_creatable(key: str, path: Path) -> None:
    """Check the nearest existing part of a path: a folder in which this process may create what is missing.

    A file is replaced by another one of its folder, so that both must be writable.
    """
    _check_reachable(key, path)
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if existing != path and not existing.is_dir():
        raise ConfigError(
            f"{key}={path} cannot be created: {existing} is a file.",
            "Above it are only folders.",
            f"Choose another {key}.",
        )
    folder = real_path(existing).parent if existing.is_file() else existing
    for part, needed in ((existing, os.W_OK), (folder, os.W_OK | os.X_OK)):
        if not os.access(part, needed, effective_ids=True):
            raise ConfigError(
                f"{key}={path} cannot be written: {part} does not let you.",
                "The nearest part of the path that exists must be writable, and of a file its folder.",
                f"Choose another {key}, or change the permissions.",
            )


def _check_reachable(key: str, path: Path) -> None:
    """Refuse a path behind a folder that this process may not enter."""
    for folder in reversed(path.absolute().parents):
        if os.path.isdir(folder) and not os.access(folder, os.X_OK, effective_ids=True):  # noqa: PTH112  never raises
            raise ConfigError(
                f"{key}={path} cannot be reached: {folder} does not let you in.",
                "Every folder above it may be entered.",
                f"Choose another {key}, or change the permissions.",
            )


def _check_text(key: str, folder: Path) -> None:
    text = str(folder)
    if not text.isprintable():
        raise ConfigError(
            f"{key}={text!r} holds characters that cannot be printed.",
            "A path in letters, digits and signs; line breaks and escape codes would garble every message about it.",
            f"Choose another {key}.",
        )
    if text.startswith("~") or re.search(r"\$\w|\$\{", text):
        raise ConfigError(
            f"{key}={text} would be taken literally: no shell has replaced `~` or `$NAME` in it.",
            "A path as it is on the disk.",
            "Write it without single quotes and with $HOME for `~`, or name a variable as ${oc.env:HOME}.",
        )
    if len(os.fsencode(text)) > _LONGEST_PATH or any(len(os.fsencode(part)) > _LONGEST_NAME for part in folder.parts):
        raise ConfigError(
            f"{key}={text[:60]}... is too long: {len(os.fsencode(text)):,} bytes.",
            f"A path has at most {_LONGEST_PATH:,} bytes, and each name in it {_LONGEST_NAME}.",
            f"Choose a shorter {key}.",
        )


def _check_own_names(run_dir: Path) -> None:
    """Refuse a wrong kind of file at a name that the run writes: otherwise it fails after the first step."""
    for names, is_right, wanted in ((_FILES, Path.is_file, "file"), (_FOLDERS, Path.is_dir, "folder")):
        for path in (run_dir / name for name in names):
            if not (path.exists() or path.is_symlink()) or is_right(path):
                continue
            is_there = real_path(path).exists()
            kind = kind_of(path.stat().st_mode) if is_there else "a link to nothing"
            raise ConfigError(
                f"{path} is {kind}.",
                f"A run writes a {wanted} of this name into its run.dir.",
                "Move it away, or choose another run.dir.",
            )


def _check_inputs(config: RunConfig, resolved: Path) -> None:
    sections = {"model.path": config.model, "reward.judge.model.path": config.reward.judge.model}
    models = {key: section.directory for key, section in sections.items() if section.path is not None}
    for key, model in models.items():
        if (model / "config.json").is_file() and resolved.is_relative_to(real_path(model)):
            raise ConfigError(
                f"run.dir={config.run.dir} is in {key}={model}.",
                "A model's folder holds nothing but the model.",
                "Choose another run.dir, such as runs/NAME.",
            )
    if (resolved / RUN_FILE).exists():
        return  # a run's own folder: its checkpoint may be the model of the next run, but not of this one
    for key, path in _inputs(config):
        if path.exists() and real_path(path).is_relative_to(resolved):
            raise ConfigError(
                f"run.dir={config.run.dir} holds {key}={path}.",
                "A run has a folder of its own, which may be deleted as a whole.",
                f"Choose another run.dir, such as {config.run.dir / 'runs' / 'NAME'}.",
            )


def _inputs(config: RunConfig) -> Iterator[tuple[str, Path]]:
    for file in config.data.files:
        yield "data.path", file.location
    for held_out in config.evaluation.files:
        yield "evaluation.path", held_out.location
    if config.model.path is not None and (config.model.directory / "config.json").is_file():
        yield "model.path", config.model.directory
