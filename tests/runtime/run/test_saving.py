"""What the event loop does while a checkpoint is saved, and what is said of one that is not saved in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollpacker.core.errors import DeadlineExceeded
from rollpacker.runtime.job.preemption import Preemption
from rollpacker.runtime.run.checkpoints import CheckpointStore
from rollpacker.runtime.run.saving import Moment, RunSaver
from rollpacker.runtime.waiting.watchdog import Watchdog
from tests.runtime.driving import until
from tests.runtime.run.test_checkpoints import WritingTrainer
from tests.sim.composed import config_of
from tests.sim.test_systems import SMALL

MOMENT = Moment(elapsed_s=1.0, scheduler={}, order={}, rollouts=None)


def saver_of(tmp_path: Path, store: CheckpointStore, make_durable: Callable[[], None], *keys: str) -> RunSaver:
    """One whose tables are written as the test says."""
    nowhere: Any = None
    outputs: Any = SimpleNamespace(
        event_log=SimpleNamespace(flush=lambda: None),
        make_durable=make_durable,
        progress=SimpleNamespace(stage=lambda _: None),
        callbacks=SimpleNamespace(on_checkpoint=lambda _: None),
    )
    attempt: Any = SimpleNamespace(identity=SimpleNamespace(run_id="a", fingerprint="f"), number=0, checkpoints=store)
    trainer: Any = WritingTrainer()
    return RunSaver(
        config_of(tmp_path, [*SMALL, "system=verl", *keys], num_steps=1),
        attempt,
        scheduler=nowhere,
        driver=nowhere,
        order=nowhere,
        trainer=trainer,
        clock=nowhere,
        outputs=outputs,
        watchdog=Watchdog(tmp_path / "stall.txt", 60),
        preemption=Preemption(),
    )


async def test_tables_that_a_slow_disk_takes_before_a_checkpoint_do_not_block_the_event_loop(tmp_path: Path) -> None:
    is_asked, may_write, store = threading.Event(), threading.Event(), CheckpointStore(tmp_path, keep=1)

    def make_durable() -> None:
        is_asked.set()
        assert may_write.wait(10), "the event loop is blocked"

    saving = asyncio.create_task(saver_of(tmp_path, store, make_durable).save(4, MOMENT))
    await until(is_asked.is_set)
    assert store.steps() == []
    may_write.set()
    await saving
    assert store.steps() == [4]


async def test_tables_that_are_not_written_in_time_are_not_said_to_be_the_trainers(tmp_path: Path) -> None:
    may_write, store = threading.Event(), CheckpointStore(tmp_path, keep=1)
    saver = saver_of(tmp_path, store, may_write.wait, "backend.deadlines.checkpoint_s=0.01")
    with pytest.raises(DeadlineExceeded, match=r"Waited 0\.01 s for the checkpoint, in vain"):
        await saver.save(4, MOMENT)
    may_write.set()
