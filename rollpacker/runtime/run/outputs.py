"""What a run writes and shows of each finished step: tables, event log, trackers, progress, status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollpacker.metrics.event_log import EventLogWriter
    from rollpacker.metrics.table_writer import MetricsWriter
    from rollpacker.runtime.rollout.batch import Batch
    from rollpacker.runtime.rollout.interval_log import IntervalLog
    from rollpacker.runtime.run.progress import Progress
    from rollpacker.runtime.run.recorder import StepRecorder, StepResult
    from rollpacker.runtime.run.status import StatusBoard
    from rollpacker.runtime.run.trackers import Tracker


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutputs:
    """Where the records of a run go."""

    metrics: MetricsWriter
    event_log: EventLogWriter
    trackers: Tracker
    progress: Progress
    status: StatusBoard
    interval_log: IntervalLog

    def record(self, recorder: StepRecorder, batch: Batch, result: StepResult) -> int:
        """Write a step's metrics and show them; returns the number of finished steps."""
        interval_log = self.interval_log.take()
        step_row = recorder.step_row(batch, result, interval_log)
        domain_rows = recorder.domain_rows(batch)
        self.metrics.write_step(
            step_row["step"],
            {
                "steps": [step_row],
                "domains": domain_rows,
                "responses": recorder.response_rows(batch),
                "intervals": recorder.interval_rows(batch, interval_log),
            },
        )
        self.event_log.flush()
        self.trackers.log_step(step_row, domain_rows)
        self.progress.step_finished(step_row, domain_rows)
        num_finished: int = step_row["step"] + 1
        self.status.step_finished(num_finished)
        return num_finished
