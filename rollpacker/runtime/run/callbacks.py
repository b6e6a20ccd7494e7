"""Tells classes of the user's what happened in a run: `run.callbacks`.

Invariant: a callback only receives. It gets copies, as JSON, in a process of its own, from a thread of its own here:
whatever it does, the run neither waits for it nor changes. Its first failure is shown, the others are in its log only.
One that raises goes on being called; one that takes longer than `CALL_LIMIT_S` for a call, or whose process ends, gets
nothing more. Only the end of a run waits: for the calls that are still queued, of all callbacks at once, at most
`CALL_LIMIT_S`, and `EARLY_LIMIT_S` when the run ends early. Signals are heard meanwhile; who cancels the wait ends it.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import threading
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from rollpacker.config.mistakes import raise_mistakes
from rollpacker.core.errors import ConfigError, EngineFailed, RollpackerError, UserError
from rollpacker.metrics.files import storage_errors
from rollpacker.processes.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

CALL_LIMIT_S = 60.0
"""To post a message to a slow server, or to copy a small model."""

EARLY_LIMIT_S = 5.0
"""A run that was interrupted or preempted has little time left."""

_LISTEN_EVERY_S = 0.05
"""Between two looks for signals, while the start or the end of a run waits."""

_PROCESS = "rollpacker.runtime.run.callback_process"


def check_callbacks(sources: Sequence[str], run_dir: Path) -> None:
    """Import each class and look at its methods, in processes of their own; nothing of them is called.

    Raises:
        ConfigError: One of them cannot be imported, or is no callback.
    """
    processes = _started(sources, run_dir, [""] * len(sources))
    _check(sources, processes, [process.start_failure() for process in processes])
    _end_all(processes)


@asynccontextmanager
async def open_callbacks(
    sources: Sequence[str],
    run_dir: Path,
    logs: Path,
    note: Callable[[str], None],
    *,
    call_limit_s: float = CALL_LIMIT_S,
) -> AsyncIterator[Callbacks]:
    """Make an instance of each class for a run, and tell it the run's end.

    Args:
        sources: The classes, as `run.callbacks` names them.
        run_dir: Of the run.
        logs: A folder for what they print.
        note: Shows a person a line; from any thread.
        call_limit_s: How long a call may take.

    Raises:
        ConfigError: One of them cannot be made.
    """
    files = _log_files(logs, len(sources))
    processes = _started(sources, run_dir, list(map(str, files)))
    _check(sources, processes, await _start_failures(processes))
    callbacks = Callbacks(
        [
            _Callback(source, process, file, note, call_limit_s)
            for source, process, file in zip(sources, processes, files, strict=True)
        ]
    )
    try:
        yield callbacks
    except BaseException as error:
        problem = error.problem if isinstance(error, RollpackerError) else f"{type(error).__name__}: {error}"
        await callbacks.end(problem, min(call_limit_s, EARLY_LIMIT_S))
        raise
    await callbacks.end(None, call_limit_s)


class Callbacks:
    """All callbacks of a run. Every call but `end` returns at once."""

    def __init__(self, callbacks: Sequence[_Callback] = ()) -> None:
        self._callbacks = callbacks

    def on_step(self, row: Mapping[str, Any]) -> None:
        """Tell the row of `steps` of a finished step."""
        self._tell("on_step", row)

    def on_evaluation(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Tell the rows of `evaluations` of one evaluation."""
        self._tell("on_evaluation", rows)

    def on_checkpoint(self, path: Path) -> None:
        """Tell the folder of a checkpoint that is complete."""
        self._tell("on_checkpoint", str(path))

    async def end(self, error: str | None, limit_s: float) -> None:
        """Tell the end of the run, and end the processes when their calls are over, or after `limit_s`.

        When it is cancelled they end at once.
        """
        self._tell("on_end", error)
        threads = [threading.Thread(target=each.finish, args=(limit_s,), daemon=True) for each in self._callbacks]
        for thread in threads:
            thread.start()
        try:
            await _join(threads)
        except BaseException:
            for callback in self._callbacks:
                callback.kill()
            for thread in threads:
                thread.join()
            raise

    def _tell(self, method: str, argument: object) -> None:
        for callback in self._callbacks:
            callback.tell(method, argument)


class _Callback:
    """One process, and the thread that calls it."""

    def __init__(
        self, source: str, process: ServerProcess, log: Path, note: Callable[[str], None], call_limit_s: float
    ) -> None:
        self._source = source
        self._process = process
        self._log = log
        self._note = note
        self._call_limit_s = call_limit_s
        self._has_failed = False
        self._calls: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"callback {source}", daemon=True)
        self._thread.start()

    def tell(self, method: str, argument: object) -> None:
        if self._thread.is_alive():
            self._calls.put(json.dumps({"method": method, "argument": argument}))

    def finish(self, limit_s: float) -> None:
        self._calls.put(None)
        self._thread.join(limit_s)
        if self._thread.is_alive():
            self._fail(f"its calls were not over {limit_s:g} s after the end of the run")
            self.kill()
        self._process.close()

    def kill(self) -> None:
        """End the process in the middle of a call; that is no failure of the callback."""
        self._has_failed = True
        _kill(self._process)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                problem = self._process.ask(call, self._call_limit_s)["problem"]
            except EngineFailed:
                self._fail(f"a call took longer than {self._call_limit_s:g} s, or its process ended: it gets no more")
                return
            if problem:
                self._fail(problem)

    def _fail(self, problem: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._note(f"The callback {self._source} failed: {problem}. The run goes on; more is in {self._log}.")


def _log_files(folder: Path, number: int) -> list[Path]:
    if number:
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
    return [folder / f"callback-{index}.log" for index in range(number)]


def _started(sources: Sequence[str], run_dir: Path, logs: Sequence[str]) -> list[ServerProcess]:
    """Start a process for each class. They end with the thread that does this, so it has to be the run's own."""
    return [
        ServerProcess(_PROCESS, [source, str(run_dir.absolute()), log], role="callback process")
        for source, log in zip(sources, logs, strict=True)
    ]


async def _start_failures(processes: Sequence[ServerProcess]) -> list[str | None]:
    """Wait until each process has imported its class, which may take a minute; when cancelled, end them."""
    failures: list[str | None] = []
    thread = threading.Thread(
        target=lambda: failures.extend(process.start_failure() for process in processes), daemon=True
    )
    thread.start()
    try:
        await _join([thread])
    except BaseException:
        for process in processes:
            _kill(process)
        thread.join()
        _end_all(processes)
        raise
    return failures


async def _join(threads: Sequence[threading.Thread]) -> None:
    """Wait for threads, and let the event loop run between short waits: a modelled run's clock would jump past them."""
    for thread in threads:
        while thread.is_alive():
            thread.join(_LISTEN_EVERY_S)
            await asyncio.sleep(0)


def _check(sources: Sequence[str], processes: Sequence[ServerProcess], failures: Sequence[str | None]) -> None:
    """Raise `ConfigError`, with no process left, unless all of them can be used."""
    mistakes: list[UserError] = []
    for source, failure in zip(sources, failures, strict=True):
        if failure:
            mistakes.append(
                ConfigError(
                    f"run.callbacks: {source} cannot be used: {failure}.",
                    "It names a class FILE.py:NAME or PACKAGE.MODULE:NAME with on_step(row), on_evaluation(rows), "
                    "on_checkpoint(path) or on_end(error).",
                    "Correct the name or the class, or leave it out.",
                )
            )
    if mistakes:
        _end_all(processes)
    raise_mistakes(mistakes)


def _kill(process: ServerProcess) -> None:
    if not process.has_died:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def _end_all(processes: Sequence[ServerProcess]) -> None:
    for process in processes:
        process.close()
