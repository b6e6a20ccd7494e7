"""Processes that try modelled runs side by side.

Invariant: workers end with the block that opened them. They hear no Ctrl-C, which is their parent's to answer, and are
killed by their own pid; a parent that dies closes its pipes, which ends them after the run at hand. Whatever they write
lies in one scratch folder that goes with the block.
"""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.core.errors import InternalError, RollpackerError, WorldError

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.whatif.outcomes import Outcome
    from rollpacker.whatif.trials import Trial

Task = tuple["RunConfig", "Trial"]
"""A run and the trial that it is of; the run's folder is chosen by the worker."""


def try_run(config: RunConfig, trial: Trial, folder: Path) -> Outcome:
    """Try one run in this process; leaves nothing in `folder`."""
    from rollpacker import pipeline
    from rollpacker.metrics.tables import read_frame
    from rollpacker.whatif.outcomes import outcome_of
    from rollpacker.whatif.trials import cluster_of, run_of

    run_dir = folder / "run"
    run = run_of(config, trial, run_dir)
    try:
        pipeline.run(run)
        steps, responses = read_frame(run_dir, "steps"), read_frame(run_dir, "responses")
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)
    cluster = cluster_of(run)
    capacities = {trial.setting.tensor_parallel: cluster.kv_tokens_per_engine}
    for other in set(steps["tensor_parallel"]) - set(capacities):  # a planner chose it
        engine = run.engine.model_copy(update={"tensor_parallel": int(other)})
        capacities[int(other)] = cluster_of(run.model_copy(update={"engine": engine})).kv_tokens_per_engine
    return outcome_of(trial, steps, responses, kv_tokens_by_degree=capacities, num_all_gpus=cluster.num_gpus)


class Workers:
    """A fixed number of processes that wait for tasks."""

    def __init__(self, processes: Sequence[tuple[BaseProcess, Connection]]) -> None:
        self._processes = processes

    def outcomes(self, tasks: Sequence[Task], may_begin: Callable[[], bool]) -> Iterator[Outcome]:
        """Try tasks in order, and yield outcomes as they come; begins no more once `may_begin` says no.

        Raises:
            RollpackerError: What a run raised; or a worker died.
        """
        waiting = iter(tasks)
        busy: dict[Connection, BaseProcess] = {}
        for process, pipe in self._processes:
            self._give(process, pipe, waiting, may_begin, busy)
        while busy:
            sentinels = {process.sentinel: process for process in busy.values()}
            for ready in wait([*busy, *sentinels]):
                if isinstance(ready, Connection) and ready in busy:
                    process = busy.pop(ready)
                    yield _answer(process, ready)
                    self._give(process, ready, waiting, may_begin, busy)
                elif ready in sentinels and sentinels[ready] in busy.values():
                    raise _died(sentinels[ready])

    def _give(
        self,
        process: BaseProcess,
        pipe: Connection,
        waiting: Iterator[Task],
        may_begin: Callable[[], bool],
        busy: dict[Connection, BaseProcess],
    ) -> None:
        if may_begin() and (task := next(waiting, None)) is not None:
            pipe.send(task)
            busy[pipe] = process


@contextmanager
def open_workers(num_workers: int) -> Iterator[Workers]:
    """Start workers; they and their scratch folder are gone when the block ends, however it ends."""
    context: SpawnContext = multiprocessing.get_context(
        "spawn"
    )  # the parent has threads, which a fork would cut in two
    processes: list[tuple[BaseProcess, Connection]] = []
    with tempfile.TemporaryDirectory(prefix="rollpacker-plan-", ignore_cleanup_errors=True) as scratch:
        try:
            for index in range(num_workers):
                own, its = context.Pipe()
                folder = Path(scratch) / f"worker-{index}"
                folder.mkdir()
                process = context.Process(target=_work, args=(its, folder), name=f"plan-worker-{index}", daemon=True)
                with interrupts_wait():
                    process.start()
                    processes.append((process, own))
                its.close()
            yield Workers(processes)
        finally:
            for worker, _ in processes:
                worker.kill()
            for worker, pipe in processes:
                worker.join()
                pipe.close()


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Answer Ctrl-C and SIGTERM after the block: nobody could end a process that is half started.

    They are blocked, too, which a process that starts inherits: it must not answer a Ctrl-C of the whole terminal.
    """
    heard: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda heard_number, _: heard.append(heard_number)) for number in numbers}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
        for number, handler in before.items():
            signal.signal(number, handler)
    if heard:
        signal.raise_signal(heard[0])


def _work(pipe: Connection, folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    while True:
        try:
            config, trial = pipe.recv()
        except EOFError:
            return
        answer: Outcome | RollpackerError
        try:
            answer = try_run(config, trial, folder)
        except RollpackerError as error:
            answer = error
        except Exception as error:  # noqa: BLE001 - the process boundary: the parent raises it
            answer = InternalError(f"{type(error).__name__}: {error} in {trial}\n{traceback.format_exc()}")
        try:
            pipe.send(answer)
        except BrokenPipeError:
            return


def _answer(process: BaseProcess, pipe: Connection) -> Outcome:
    try:
        answer: Outcome | RollpackerError = pipe.recv()
    except EOFError:
        raise _died(process) from None
    if isinstance(answer, RollpackerError):
        raise answer
    return answer


def _died(process: BaseProcess) -> WorldError:
    process.join(1)
    return WorldError(
        f"A worker of the plan (pid {process.pid}) died with exit code {process.exitcode}.",
        "It needs about 300 MB of memory; -9 means that the system killed it, mostly for want of memory.",
        "Write workers=1, or free some memory.",
    )
