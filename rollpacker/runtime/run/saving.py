"""Saves and restores a run between two steps.

Invariant: a checkpoint is taken when all records of the last step are on the disk and no request is in flight; it holds
the run as it was at one `Moment`, and the trainer has not been updated since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollpacker.protocols.blocking import in_daemon_thread
from rollpacker.runtime.run.checkpoints import SCHEMA_VERSION, CheckpointMeta, in_thread
from rollpacker.runtime.run.exporting import MODEL_FOLDER, export_checkpoint

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.core.scheduler import Scheduler
    from rollpacker.data.order import PromptOrder
    from rollpacker.protocols.trainer import Trainer
    from rollpacker.runtime.job.preemption import Preemption
    from rollpacker.runtime.rollout.driver import Driver
    from rollpacker.runtime.rollout.request_book import RequestBook
    from rollpacker.runtime.run.attempt import RunAttempt
    from rollpacker.runtime.run.outputs import RunOutputs
    from rollpacker.runtime.waiting.clock import RunClock
    from rollpacker.runtime.waiting.watchdog import Watchdog


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The run between two steps: all that a checkpoint holds beside the trainer."""

    elapsed_s: float
    scheduler: Mapping[str, Any]
    order: Mapping[str, Any]
    rollouts: RequestBook | None
    """Responses under way, in an asynchronous run."""


class RunSaver:
    """Writes the checkpoints of one attempt."""

    def __init__(
        self,
        config: RunConfig,
        attempt: RunAttempt,
        *,
        scheduler: Scheduler,
        driver: Driver,
        order: PromptOrder,
        trainer: Trainer,
        clock: RunClock,
        outputs: RunOutputs,
        watchdog: Watchdog,
        preemption: Preemption,
    ) -> None:
        self._every_steps = config.run.checkpoint_every_steps
        self._deadline_s = config.backend.deadlines.checkpoint_s
        self._export_dtype = config.model.export_dtype
        self._run_dir = config.run.dir
        self._attempt = attempt
        self._scheduler = scheduler
        self._driver = driver
        self._order = order
        self._trainer = trainer
        self._clock = clock
        self._outputs = outputs
        self._watchdog = watchdog
        self._preemption = preemption

    def is_due(self, step: int) -> bool:
        """True when `step` is the first of another `run.checkpoint_every_steps` steps."""
        return self._every_steps > 0 and step % self._every_steps == 0

    def is_saved(self, num_finished_steps: int) -> bool:
        """True when the newest checkpoint holds these steps."""
        return num_finished_steps == self._preemption.saved_steps

    def moment(self) -> Moment:
        """Describe the run as it is now; between two steps."""
        return Moment(
            elapsed_s=self._clock.now(),
            scheduler=self._scheduler.snapshot(),
            order=self._order.snapshot(),
            rollouts=self._driver.rollouts(),
        )

    async def save(self, num_finished_steps: int, moment: Moment) -> None:
        """Write the checkpoint of a moment, unless the newest one holds it; the trainer is awake."""
        if self.is_saved(num_finished_steps):
            return
        self._outputs.progress.stage("checkpoint")
        identity = self._attempt.identity
        meta = CheckpointMeta(
            schema_version=SCHEMA_VERSION,
            run_id=identity.run_id,
            fingerprint=identity.fingerprint,
            step=num_finished_steps,
            elapsed_s=moment.elapsed_s,
            attempt=self._attempt.number,
            files={},
        )
        with self._preemption.deadline.timing_checkpoint():
            await self._watchdog.within(self._deadline_s, "the checkpoint", self._write(meta, moment))
        self._preemption.saved_steps = num_finished_steps
        self._outputs.callbacks.on_checkpoint(self._attempt.checkpoints.folder(num_finished_steps))

    async def _write(self, meta: CheckpointMeta, moment: Moment) -> None:
        self._outputs.event_log.flush()
        await in_thread(self._outputs.make_durable)
        await self._attempt.checkpoints.save(
            meta,
            scheduler=moment.scheduler,
            order=moment.order,
            rollouts=moment.rollouts,
            trainer=self._trainer,
        )

    def mark_best(self, step: int) -> None:
        """Keep the checkpoint of a step as the best one."""
        self._attempt.checkpoints.mark_best(step)

    async def export(self) -> None:
        """Write the model of the newest checkpoint as `run.dir/model`, and say so; a run without steps has none."""
        dtype, run_dir = self._export_dtype, self._run_dir
        steps = self._attempt.checkpoints.steps()
        if dtype is None or not steps:
            return
        self._outputs.progress.stage("export")
        export = in_daemon_thread(lambda: export_checkpoint(run_dir, steps[-1], run_dir / MODEL_FOLDER, dtype))
        await self._watchdog.within(self._deadline_s, "the export of the model", export)
        self._outputs.progress.note(f"The trained model is in {run_dir / MODEL_FOLDER} ({dtype}).")

    async def load_trainer(self) -> None:
        """Restore the trainer from the checkpoint that the attempt resumes; nothing to do without one."""
        if self._attempt.checkpoint is not None:
            load = self._trainer.load(self._attempt.checkpoint.trainer_folder)
            await self._watchdog.within(self._deadline_s, "the trainer to load its checkpoint", load)
