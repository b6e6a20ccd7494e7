"""Processes that model runs side by side.

A process starts in seconds and models a run in about as many, so runs share processes. Invariant: processes end with
the block that opened them, however it ends, and with their parent. They ignore Ctrl-C, which their parent answers.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TypeVar

from rollpacker.core.errors import WorldError

Task = TypeVar("Task")
Result = TypeVar("Result")


class Processes:
    """A fixed number of processes; each is started when there is work for it."""

    def __init__(self, pool: ProcessPoolExecutor, number: int) -> None:
        self._pool = pool
        self._number = number

    def results(
        self, work: Callable[[Task], Result], tasks: Iterable[Task], may_begin: Callable[[], bool] = lambda: True
    ) -> Iterator[tuple[Task, Result]]:
        """Carry tasks out in order, and yield results as they come; begins no more once `may_begin` says no.

        Raises:
            WorldError: A process died. What `work` raises is raised here, too.
        """
        waiting = iter(tasks)
        running: dict[Future[Result], Task] = {}
        while True:
            while len(running) < self._number and may_begin() and (task := next(waiting, None)) is not None:
                with interrupts_wait():  # a process that starts here inherits that signals are blocked
                    running[self._pool.submit(work, task)] = task
            if not running:
                return
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                try:
                    result = future.result()
                except BrokenProcessPool:
                    raise WorldError(
                        "A process that modelled runs died.",
                        "It needs up to 1 GB of memory; the system kills it, mostly for want of memory.",
                        "Give the same command with fewer processes.",
                    ) from None
                yield running.pop(future), result


@contextmanager
def open_processes(number: int) -> Iterator[Processes]:
    """Open processes; they are killed when the block ends."""
    # Spawned: the parent has threads, which a fork would cut in two.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(number, mp_context=context, initializer=_end_with_the_parent)
    try:
        yield Processes(pool, number)
    finally:
        for child in multiprocessing.active_children():
            child.kill()
        pool.shutdown(cancel_futures=True)


def end_like_ctrl_c() -> None:
    """Let SIGTERM, and SIGHUP unless it is ignored (nohup), end this process as Ctrl-C does: it cleans up.

    The exit code is 128 and the signal's number.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    """No error of ours, and none that `except Exception` catches: nothing goes on, here or in a library."""
    with suppress(OSError):
        os.write(2, f"ended by {signal.Signals(number).name}\n".encode())
    raise SystemExit(128 + number)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Answer Ctrl-C, SIGTERM and SIGHUP after the block: nothing could end a process that is half started.

    They are blocked, too, which a process that starts inherits: it must not answer a Ctrl-C of the whole terminal.
    """
    heard: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
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


def _end_with_the_parent() -> None:
    """Leave nothing that goes on writing where the parent was killed before it could end this process."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_for_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()
