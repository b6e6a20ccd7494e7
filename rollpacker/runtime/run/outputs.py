"""What a run writes and shows of each finished step: tables, event log, trackers, callbacks, progress, status."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollpacker.config.words import counted
from rollpacker.runtime.run.failures import EnvironmentFailures, RewardFailures
from rollpacker.runtime.run.texts import TextKeeper, with_texts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollpacker.metrics.event_log import EventLogWriter
    from rollpacker.metrics.table_writer import MetricsWriter
    from rollpacker.runtime.rollout.batch import Batch
    from rollpacker.runtime.rollout.evaluation_record import EvaluationRecord
    from rollpacker.runtime.rollout.interval_log import IntervalLog
    from rollpacker.runtime.rollout.request_book import RequestRecord
    from rollpacker.runtime.run.callbacks import Callbacks
    from rollpacker.runtime.run.evaluations import Evaluations
    from rollpacker.runtime.run.progress import Progress
    from rollpacker.runtime.run.recorder import StepRecorder, StepResult
    from rollpacker.runtime.run.status import StatusBoard
    from rollpacker.runtime.run.trackers import Tracker


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutputs:
    """Where the records of a run go."""

    metrics: MetricsWriter
    evaluations: Evaluations | None
    """None where nothing is held out."""
    texts: TextKeeper
    event_log: EventLogWriter
    trackers: Tracker
    callbacks: Callbacks
    progress: Progress
    status: StatusBoard
    interval_log: IntervalLog
    reward_failures: RewardFailures = field(default_factory=RewardFailures)
    environment_failures: EnvironmentFailures = field(default_factory=EnvironmentFailures)

    def record(self, recorder: StepRecorder, batch: Batch, result: StepResult) -> int:
        """Write a step's metrics and show them; returns the number of finished steps."""
        self.progress.stage("recording")
        interval_log = self.interval_log.take()
        step_row = recorder.step_row(batch, result, interval_log)
        domain_rows = recorder.domain_rows(batch)
        response_rows = recorder.response_rows(batch, self.texts.of_batch(batch))
        self.metrics.write_step(
            step_row["step"],
            {
                "steps": [step_row],
                "domains": domain_rows,
                "responses": response_rows,
                "intervals": recorder.interval_rows(batch, interval_log),
            },
        )
        self.event_log.flush()
        self.trackers.log_step(step_row, domain_rows, with_texts(response_rows))
        self.callbacks.on_step(step_row)
        self.progress.step_finished(step_row, domain_rows)
        num_finished: int = step_row["step"] + 1
        where = f"step {num_finished}"
        self._note_failures(where, batch.requests.values(), self.environment_failures.of_step(where, batch))
        self.status.step_finished(num_finished)
        return num_finished

    def evaluated(self, record: EvaluationRecord) -> bool:
        """Write an evaluation and show it; tells whether no earlier one of the run was as good."""
        assert self.evaluations is not None
        self.progress.stage("recording")
        rows, responses, is_best = self.evaluations.record(record)
        self.event_log.flush()
        self.trackers.log_evaluation(rows, with_texts(responses))
        self.callbacks.on_evaluation(rows)
        step = record.begin.step
        where = f"the evaluation after {counted(step, 'step')}" if step else "the first evaluation"
        of_environments = self.environment_failures.of_evaluation(where, record)
        self._note_failures(where, record.requests.values(), of_environments)
        return is_best

    def _note_failures(self, where: str, requests: Iterable[RequestRecord], of_environments: str) -> None:
        verdicts = (request.verdict for request in requests if request.verdict)
        for text in filter(None, (self.reward_failures.describe(where, verdicts), of_environments)):
            self.progress.note(text)

    def make_durable(self) -> None:
        """Write all tables through to the disk, ahead of a checkpoint; no step may be recorded meanwhile."""
        self.metrics.make_durable()
        if self.evaluations is not None:
            self.evaluations.make_durable()
