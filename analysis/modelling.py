"""Models many runs side by side: a few processes, each of which models one run after the other.

A process starts in seconds and models a run in about as many, so runs share processes. Invariant: the processes end
with the call, however it ends; they hear no Ctrl-C, which is their parent's to answer. A run that was stopped is begun
anew by the next call, and one that failed does not keep the others from being modelled.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rollpacker.core.errors import RollpackerError, WorldError
from rollpacker.whatif.workers import interrupts_wait

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig


def model_runs(configs: Iterable[RunConfig], num_processes: int) -> Iterator[tuple[RunConfig, str]]:
    """Model runs, and yield each as it ends, with what it failed of; empty when it did not.

    Raises:
        WorldError: A process died.
    """
    with _processes(num_processes) as pool:
        with interrupts_wait():  # the processes start here, and inherit that signals are blocked
            futures = {pool.submit(_model, config): config for config in configs}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            raise WorldError(
                "A process that modelled runs died.",
                "It needs up to 1 GB of memory; the system kills it, mostly for want of memory.",
                "Give the same command with --jobs 1: what is finished is left alone.",
            ) from None


@contextmanager
def _processes(number: int) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(number, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        for child in multiprocessing.active_children():
            child.kill()
        pool.shutdown(cancel_futures=True)


def _model(config: RunConfig) -> str:
    from rollpacker import pipeline
    from rollpacker.cli.prospects import prospect_of
    from rollpacker.runtime.preflight import judge

    try:
        judge(config, prospect_of)
        pipeline.run(config)
    except RollpackerError as error:
        return str(error)
    return ""
