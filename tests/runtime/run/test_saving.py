"""What the event loop does while a checkpoint is saved."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rollpacker.runtime.job.preemption import Preemption
from rollpacker.runtime.run.checkpoints import CheckpointStore
from rollpacker.runtime.run.saving import Moment, RunSaver
from rollpacker.runtime.waiting.watchdog import Watchdog
from tests.runtime.driving import until
from tests.runtime.run.test_checkpoints import WritingTrainer
from tests.sim.composed import config_of
from tests.sim.test_systems import SMALL


async def test_tables_that_a_slow_disk_takes_before_a_checkpoint_do_not_block_the_event_loop(tmp_path: Path) -> None:
    is_asked, may_write, store = threading.Event(), threading.Event(), CheckpointStore(tmp_path, keep=1)

    def make_durable() -> None:
        is_asked.set()
        assert may_write.wait(10), "the event loop is blocked"

    nowhere: Any = None
    outputs: Any = SimpleNamespace(
        event_log=SimpleNamespace(flush=lambda: None),
        make_durable=make_durable,
        progress=SimpleNamespace(stage=lambda _: None),
        callbacks=SimpleNamespace(on_checkpoint=lambda _: None),
    )
    attempt: Any = SimpleNamespace(identity=SimpleNamespace(run_id="a", fingerprint="f"), number=0, checkpoints=store)
    trainer: Any = WritingTrainer()
    saver = RunSaver(
        config_of(tmp_path, [*SMALL, "system=verl"], num_steps=1),
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
    saving = asyncio.create_task(saver.save(4, Moment(elapsed_s=1.0, scheduler={}, order={}, rollouts=None)))
    await until(is_asked.is_set)
    assert store.steps() == []
    may_write.set()
    await saving
    assert store.steps() == [4]
