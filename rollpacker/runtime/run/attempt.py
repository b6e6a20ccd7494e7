"""One attempt at a run: the locked folder, its number, and the checkpoint that it resumes."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rollpacker.config.record import CONFIG_FILE, to_record
from rollpacker.config.words import counted
from rollpacker.core.errors import ConfigError, Interrupted
from rollpacker.metrics.event_log import EVENTS_FOLDER, attempt_paths
from rollpacker.metrics.files import make_private_folder, remove_temporaries, storage_errors, write_atomically
from rollpacker.runtime.job.allocation import current_allocation
from rollpacker.runtime.job.file_lock import LOCK_FILE, FileLock
from rollpacker.runtime.job.preemption import SHELL_SIGNALS, how_to_go_on
from rollpacker.runtime.job.signals import signals_handled
from rollpacker.runtime.run.checkpoints import Checkpoint, CheckpointStore
from rollpacker.runtime.run.exporting import MODEL_FOLDER
from rollpacker.runtime.run.run_folder import RUN_FILE, RunIdentity, find_resumable, identify_run, set_steps_aside
from rollpacker.runtime.run.status import STATUS_FILE

if TYPE_CHECKING:
    from types import FrameType

    from rollpacker.config.schema import RunConfig


_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of a file system that has no locks, such as Lustre mounted without `flock`."""

_MOMENT_S = 1.0
"""`rollpacker jobs` takes the lock for much less, to see whether a run holds it."""
_PATIENCE_S = 120.0
"""An NFSv4 server keeps the locks of a node that died for a lease, usually 90 s. The other ranks wait longer than this
for the first one, unless `backend.deadlines.start_s` is set to less than its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAttempt:
    """What an attempt finds in the run's folder."""

    number: int
    """Of the run's attempts; it names the attempt's files."""
    identity: RunIdentity
    checkpoints: CheckpointStore
    checkpoint: Checkpoint | None
    """The one that it resumes."""
    logs: Path
    """A folder of its own; it need not exist yet."""

    @property
    def first_step(self) -> int:
        return self.checkpoint.meta.step if self.checkpoint else 0

    @property
    def elapsed_s(self) -> float:
        """Time of the attempts before it, up to the checkpoint."""
        return self.checkpoint.meta.elapsed_s if self.checkpoint else 0.0


@contextmanager
def locked_folder(run_dir: Path) -> Iterator[None]:
    """Make the run's folder and hold its lock: two processes in one folder would overwrite each other's files.

    In a job it is waited for, `_PATIENCE_S` at most: the attempt before may have died without giving it back. A person
    can end the wait; Slurm's signals are handled after it, since the run may have to be requeued.

    Raises:
        ConfigError: Another process holds it, or the file system has no locks.
        Interrupted: Ctrl-C or SIGHUP ended the wait.
    """
    make_private_folder(run_dir)
    with FileLock(run_dir / LOCK_FILE) as lock:
        with storage_errors(run_dir):
            _lock(lock, run_dir)
        yield


def _lock(lock: FileLock, run_dir: Path) -> None:
    try:
        is_ours = lock.take(_MOMENT_S)
        if not is_ours and current_allocation(os.environ) is not None:
            sys.stderr.write(
                f"Another process holds the lock of {run_dir}{lock.holder}: "
                f"waiting for it, {_PATIENCE_S:.0f} s at most.\n"
            )
            with _ended_by_a_person(run_dir):
                is_ours = lock.take(_PATIENCE_S)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise ConfigError(
            f"run.dir={run_dir} cannot be locked: {error.strerror}.",
            "A run locks its folder, so that two processes never overwrite each other's checkpoints and tables.",
            "Ask for locks (Lustre: mount option flock), or choose a run.dir on another file system.",
        ) from None
    if not is_ours:
        raise ConfigError(
            f"Another process is running in run.dir={run_dir}{lock.holder}.",
            "A run's folder belongs to one process at a time.",
            "Wait for it, or choose another run.dir.",
        )


@contextmanager
def _ended_by_a_person(run_dir: Path) -> Iterator[None]:
    """Let Ctrl-C and SIGHUP end what blocks the event loop, which cannot handle them meanwhile."""

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        heard = signal.Signals(number)
        problem = f"{SHELL_SIGNALS[heard]} ended the wait for the lock of {run_dir}."
        raise Interrupted(problem, "Nothing is lost.", how_to_go_on(str(run_dir)), heard)

    with signals_handled((signal.SIGINT, signal.SIGHUP), leave):
        yield


def begin_attempt(config: RunConfig, note: Callable[[str], None]) -> RunAttempt:
    """Find what to resume in a locked folder, and record the configuration there; `note` reports what is set aside."""
    run_dir = config.run.dir
    found = find_resumable(config)
    _remove_temporaries(run_dir)
    identity = identify_run(config, note)
    if found.newest is None:
        set_steps_aside(run_dir, note)
    write_atomically(run_dir / CONFIG_FILE, to_record(config).encode())
    checkpoints = CheckpointStore(run_dir, keep=config.run.keep_checkpoints)
    if copied := checkpoints.relink_best():
        note(f"The run was copied, and its link to the best checkpoint followed: that copy is kept as {copied}.")
    for broken in found.broken:
        kept = checkpoints.set_aside(broken)
        note(f"The checkpoint of step {broken.step} is broken: {broken.problem}. It is kept as {kept}.")
    checkpoints.hide_old()  # an attempt that was killed before it did so may have made the last one
    number = _next_attempt(run_dir)
    attempt = RunAttempt(
        number=number,
        identity=identity,
        checkpoints=checkpoints,
        checkpoint=found.newest,
        logs=run_dir / "logs" / f"attempt-{number:03d}",
    )
    if found.broken:
        again = counted(found.broken[0].step - attempt.first_step, "step")
        note(f"The run goes on from the checkpoint of step {attempt.first_step}. Done again: {again}.")
    return attempt


def _remove_temporaries(run_dir: Path) -> None:
    """Delete what a killed attempt left; reports, exports and the launcher write into the run's folder, too."""
    remove_temporaries(run_dir, RUN_FILE, CONFIG_FILE, STATUS_FILE, MODEL_FOLDER)
    remove_temporaries(run_dir / EVENTS_FOLDER)


def _next_attempt(run_dir: Path) -> int:
    """Number the attempt; one that ended before its event log began has logs only."""
    names = [path.stem for path in attempt_paths(run_dir)]
    names += [folder.name for folder in (run_dir / "logs").glob("attempt-*")]
    numbers = [name.removeprefix("attempt-") for name in names]
    return max((int(number) for number in numbers if number.isdecimal()), default=-1) + 1
