"""Runs rows one after the other, each in a process of its own, and keeps every result in a file.

A row's process leads a session of its own. It has ended, or been killed with all that it started, before the next one
begins: descendants that left its session come back to this process, which becomes their parent, and are killed then.
Rows write into the folder under names that are the same in every check, so a lock keeps a second check out of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from pathlib import Path

from rollpacker.config.roots import conf_dir
from rollpacker.core.errors import ConfigError
from rollpacker.core.foreign_errors import one_line
from rollpacker.engines.vllm.installed import is_vllm_for_gpus_installed
from rollpacker.gpu_check.outcomes import Outcome
from rollpacker.gpu_check.table import Row
from rollpacker.metrics.files import storage_errors, write_atomically
from rollpacker.paths import read_text
from rollpacker.processes.lifetimes import children_of, kill_descendants, reaping
from rollpacker.runtime.job.file_lock import LOCK_FILE, held_lock
from rollpacker.runtime.placing.host import gpu_memory_now, hardware_name, visible_gpus

GRACE_S = 20.0
"""Between SIGTERM and SIGKILL: a run that ends puts Ray's processes in order."""

FREE_SHARE = 0.9
"""Of a GPU's memory, that rows need: engines take shares of all of it. A display takes less than the rest."""

_PACKAGES = ("torch", "vllm", "transformers", "megatron-core", "ray")
"""What rows run, beside this package."""

_DRIVER_VERSION = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What rows can use. In a test the GPUs may be pretended."""

    hardware: str
    num_gpus: int
    has_gpus: bool
    """Whether they are real."""


def this_machine() -> Machine:
    """This machine's GPUs, as a run counts them."""
    num_gpus = visible_gpus()
    return Machine(hardware=hardware_name(has_gpus=num_gpus > 0), num_gpus=num_gpus, has_gpus=num_gpus > 0)


def missing(row: Row, machine: Machine) -> str:
    """Say what a row lacks here; empty if it can run."""
    return next(_lacks(row, machine), "")


def _lacks(row: Row, machine: Machine) -> Iterator[str]:
    if not machine.num_gpus:
        yield "this machine has no CUDA GPU"
    if machine.has_gpus and (version := importlib.metadata.version("torch")).endswith("+cpu"):
        yield f"torch {version} is built without CUDA"
    if machine.num_gpus < row.num_gpus:
        yield f"needs {row.num_gpus} GPUs, here is {machine.num_gpus}"
    for package in row.packages:
        if not _is_installed(package):
            yield f"{package.partition('.')[0]} is not installed"
    if machine.has_gpus and "vllm" in row.packages and not is_vllm_for_gpus_installed():
        yield "the vLLM that is installed is built for processors"
    for program in row.programs:
        if shutil.which(program) is None:
            yield f"there is no program {program}"


def in_use(num_gpus: int) -> str:
    """Say which of so many GPUs, the first ones, others use now; empty if none is used."""
    for gpu, memory in enumerate(gpu_memory_now(os.environ)[:num_gpus]):
        if memory and memory.free < FREE_SHARE * memory.total:
            return f"GPU {gpu} has {memory.free / 1e9:.0f} GB free of {memory.total / 1e9:.0f}, others use it"
    return ""


def _versions() -> Iterator[str]:
    """Of the packages that are installed, and of NVIDIA's driver where there is one."""
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield f"{package} {importlib.metadata.version(package)}"
    with contextlib.suppress(OSError):
        if version := re.search(r"\d+\.[\d.]+", _DRIVER_VERSION.read_text()):
            yield f"driver {version[0]}"


def _is_installed(package: str) -> bool:
    parent = package.rpartition(".")[0]
    return (not parent or _is_installed(parent)) and importlib.util.find_spec(package) is not None


@dataclass(slots=True, kw_only=True)
class Checking:
    """A check of one machine."""

    folder: Path
    machine: Machine
    model: Path | None = None
    """The user's; None: one made on the spot."""
    again: bool = False
    """Whether rows that have passed run, too."""

    @property
    def key(self) -> str:
        """What a result is of."""
        sources = hashlib.sha256()
        for file in (*sorted(Path(__file__).parents[1].rglob("*.py")), *sorted(conf_dir().rglob("*.yaml"))):
            sources.update(file.read_bytes())
        named = f"{self.model.resolve()} {_state_of(self.model)}" if self.model else "made on the spot"
        gpus = f"{self.machine.num_gpus} GPUs of {self.machine.hardware}"
        return f"{gpus}; model {named}; {', '.join(_versions())}; source code {sources.hexdigest()[:12]}"

    def run(self, rows: Sequence[Row]) -> Iterator[tuple[Row, Outcome]]:
        """Give each row's outcome as soon as it is there, an earlier pass without running it again.

        Raises:
            ConfigError: Another check runs in the folder, or its results cannot be read.
        """
        key = self.key
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with held_lock(self.folder / LOCK_FILE, self._refusal):
            for row in rows:
                if why := missing(row, self.machine):
                    yield row, Outcome(status="not possible", why=why)
                    continue
                outcome = self._kept().get(key, {}).get(row.name)
                if outcome is None or outcome.status != "passed" or self.again:
                    if self.machine.has_gpus and (why := in_use(row.most_gpus or row.num_gpus)):
                        yield row, Outcome(status="not possible", why=why)
                        continue
                    outcome = self._in_process(row)
                    self._keep(key, row, outcome)
                yield row, outcome

    def _refusal(self, holder: str) -> ConfigError:
        return ConfigError(
            f"Another check runs in out={self.folder}{holder}.",
            "Two in one folder would take each other's results for their own.",
            "Wait for it, or choose another out.",
        )

    @property
    def _file(self) -> Path:
        return self.folder / "results.json"

    def _kept(self) -> dict[str, dict[str, Outcome]]:
        """By key and row."""
        if not self._file.exists():
            return {}
        try:
            content = json.loads(read_text(self._file))
            return {
                key: {name: Outcome(**plain) for name, plain in results.items()} for key, results in content.items()
            }
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self._file} cannot be read: {error}.",
                "It holds what this command has written.",
                "Delete it, or choose another out.",
            ) from error

    def _keep(self, key: str, row: Row, outcome: Outcome) -> None:
        kept = self._kept()
        kept.setdefault(key, {})[row.name] = outcome
        plain = {key: {name: asdict(each) for name, each in results.items()} for key, results in kept.items()}
        write_atomically(self._file, (json.dumps(plain, indent=1) + "\n").encode())

    def log(self, row: Row) -> Path:
        return self.folder / "logs" / f"{row.name}.log"

    def _in_process(self, row: Row) -> Outcome:
        """Run a row; it and all that it started have ended afterwards, also after Ctrl-C."""
        answer = self.folder / "answer.json"
        answer.unlink(missing_ok=True)
        self.log(row).parent.mkdir(parents=True, exist_ok=True)
        work = {
            "function": row.function,
            "arguments": dict(row.arguments),
            "folder": str(self.folder.resolve()),
            "model": self.model and str(self.model),
            "num_gpus": self.machine.num_gpus,
            "has_gpus": self.machine.has_gpus,
            "answer": str(answer.resolve()),
        }
        others = set(children_of(os.getpid()))
        began = time.monotonic()
        has_hung = False
        with reaping():
            with self.log(row).open("wb") as log:
                process = subprocess.Popen(  # noqa: S603  # our own module
                    [sys.executable, "-P", "-m", "rollpacker.gpu_check", json.dumps(work)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            try:
                process.wait(row.deadline_s)
            except subprocess.TimeoutExpired:
                has_hung = True
            finally:
                _end(process, others)
        seconds = round(time.monotonic() - began, 1)
        if has_hung:
            return Outcome(status="failed", why=f"no result within {row.deadline_s:g} s", seconds=seconds)
        return _answered(answer, process.returncode, self.log(row), seconds)


def _state_of(model: Path) -> str:
    """A hash that changes with the files of a model: their names, sizes and times; weights are not read."""
    files = hashlib.sha256()
    for file in sorted(filter(Path.is_file, model.glob("*"))):
        status = file.stat()
        files.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return files.hexdigest()[:12]


def _answered(answer: Path, code: int, log: Path, seconds: float) -> Outcome:
    """What a row's process wrote; else how it ended, and its last words."""
    with contextlib.suppress(OSError, ValueError):
        return Outcome(**json.loads(answer.read_bytes()) | {"seconds": seconds})
    how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code} and no result"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return Outcome(status="failed", why=f"{how}: {one_line(lines[-1])}" if lines else how, seconds=seconds)


def _end(process: subprocess.Popen[bytes], others: AbstractSet[int]) -> None:
    """End a row's process group, and whatever left it and is by now a child of this process; `others` were before."""
    try:
        if process.poll() is None:
            _signal_group(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
    finally:  # a second Ctrl-C does not wait
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()
        kill_descendants(but=others)


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)
