"""The process of a rollout worker on its node: it waits for a run that takes workers, joins its Ray, and leaves.

    no lease ──renewed──> compare ──equal──> joined ──order, notice over, run over──> gone
       ^                     └──unequal──> refused (ends)   │ head silent for 10 s
       └────────────────────────────────────────────────────┘

It joins an attempt whose lease it has seen renewed. It reads the run's record then: an attempt writes its own before
that, and what lies there earlier is of the job before. It alone ends Ray here: when the head falls silent, nothing of
Ray survives as a zombie. Slurm's signals become a notice in its report; Ray and the engines are shielded from them
(`guardian.py`).
"""

from __future__ import annotations

import math
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from types import FrameType

from rollpacker.config.record import CONFIG_FILE, read_record
from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import DataError, StorageFailed
from rollpacker.runtime.job.allocation import Allocation
from rollpacker.runtime.job.elastic_folder import (
    LEASE_WAIT_S,
    ElasticFolder,
    Lease,
    Order,
    WorkerReport,
    fingerprint_here,
    versions_here,
)
from rollpacker.runtime.job.signals import ALL_SIGNALS, UNKNOWN_GRACE_S
from rollpacker.runtime.ray.node import RayNode, log_tail, node_here
from rollpacker.runtime.ray.node_address import is_listening

_POLL_S = 0.2
_HEAD_SILENCE_S = 10.0
"""As of a node of the run's own job (`node_service`)."""


class Outcome(IntEnum):
    """Exit codes of the process; the batch script acts upon them."""

    ENDS = 0
    """It is not needed any more, or unfit."""
    MAY_RETURN = 10
    """Its element should queue again, if the run's job still exists: it was told to leave, or is taken away."""
    NO_RUN = 75
    """No run has taken it for as long as its patience; the script looks whether the run's job still exists."""
    RUN_LEFT = 76
    """The same, since one had taken it."""


def serve_worker(
    run_dir: Path, allocation: Allocation | None, element: str, patience_s: float = LEASE_WAIT_S
) -> Outcome:
    """Be a worker until it is not needed, is told to leave, or no run takes it. In the main thread.

    Args:
        run_dir: Of the run; where it waits.
        allocation: Of this job; None on this machine alone.
        element: Of the job array: the worker's name without its life.
        patience_s: How long it waits for a run; and, in one, for a folder that it can read and write.
    """
    return _Worker(run_dir, allocation, element, patience_s).run()


class _Worker:
    def __init__(self, run_dir: Path, allocation: Allocation | None, element: str, patience_s: float) -> None:
        self._run_dir = run_dir.absolute()
        self._allocation = allocation
        self._element = element
        self._folder = ElasticFolder(run_dir)
        self._patience_s = patience_s
        self._end_time = allocation.end_time if allocation else None
        self._has_notice = False
        for number in ALL_SIGNALS:
            signal.signal(number, self._hear)

    def run(self) -> Outcome:
        alone, deadline = Outcome.NO_RUN, math.inf
        while True:
            lease = self._wait_for_lease()
            if lease is None and self._is_over():
                return Outcome.ENDS
            if lease is None:
                return Outcome.MAY_RETURN if self._has_notice else alone
            alone = Outcome.RUN_LEFT
            try:
                config, report = self._begin_life(lease)
                if config is None or report.mismatch:
                    sys.stderr.write(f"{report.worker} does not join the run: {report.mismatch}\n")
                    return Outcome.ENDS
                node = self._join(lease, config, report)
            except (OSError, StorageFailed, DataError):  # DataError: the record cannot be read
                deadline = min(deadline, time.monotonic() + self._patience_s)
                if time.monotonic() >= deadline:
                    raise
                continue  # with a lease that is renewed then
            deadline = math.inf
            try:
                outcome = self._serve(node, lease, replace(report, stage="joined"))
            finally:
                self._leave(node, report)
            if outcome is not None:
                return outcome

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        """Slurm takes the node away: at the end of the grace time, or of the job."""
        grace_s = (self._allocation.grace_s if self._allocation else None) or UNKNOWN_GRACE_S
        end = time.time() + grace_s
        self._end_time = end if self._end_time is None else min(self._end_time, end)
        if not self._has_notice:
            remaining_s = self._end_time - time.time()
            sys.stderr.write(f"{signal.Signals(number).name} came, with {remaining_s:.0f} s to leave.\n")
        self._has_notice = True

    def _wait_for_lease(self) -> Lease | None:
        """That of an attempt which is alive: it has written since this began to look.

        One that comes where there was none may be an old one that could not be read.
        """
        deadline = time.monotonic() + self._patience_s
        before: Lease | None = None
        while time.monotonic() < deadline and not (self._has_notice or self._is_over()):
            lease = self._lease()
            if lease is not None and before not in (None, lease) and is_listening(lease.head_address):
                return lease
            before = lease
            time.sleep(_POLL_S)
        return None

    def _lease(self) -> Lease | None:
        """That of the attempt that takes workers; None where none can be read."""
        try:
            return self._folder.lease()
        except OSError:
            return None

    def _is_over(self) -> bool:
        """Whether the run is known to take no workers any more."""
        try:
            return self._folder.is_over()
        except OSError:
            return False

    def _begin_life(self, lease: Lease) -> tuple[RunConfig | None, WorkerReport]:
        """Compare this worker with an attempt, and report it there.

        Returns:
            The run's configuration, None where another version of the package made it; and the report.
        """
        config = None
        mismatch = lease.fingerprint.difference(replace(lease.fingerprint, **versions_here()))
        if not mismatch:
            config = self._config()
            mismatch = lease.fingerprint.difference(fingerprint_here(config))
        report = WorkerReport(
            worker=self._folder.claim_life(self._element),
            attempt=lease.attempt,
            node=self._allocation.node_name if self._allocation else socket.gethostname(),
            stage="joining",
            num_engines=config.elastic.engines_per_worker if config else 1,
            end_time=self._end_time,
            mismatch=mismatch,
        )
        self._folder.report(report)
        return config, report

    def _join(self, lease: Lease, config: RunConfig, report: WorkerReport) -> RayNode:
        """Start Ray here, in the run's cluster; raises `OSError` where its log cannot be written."""
        log = self._folder.path / "workers" / f"{report.worker}.log"
        node = node_here(config, self._allocation, log, report.worker)
        try:
            node.join(lease.head_address, lease.token_file)
        except BaseException:
            self._leave(node, report)
            raise
        return node

    def _leave(self, node: RayNode, report: WorkerReport) -> None:
        """End Ray here, and say so."""
        node.stop()
        with suppress(StorageFailed):  # its engines' silence says so, too
            self._folder.report(replace(report, stage="gone", has_left=True))

    def _config(self) -> RunConfig:
        """What the run's record says now; the folder may be mounted elsewhere here."""
        record = read_record(self._run_dir)
        if record is None:
            raise FileNotFoundError(f"{self._run_dir / CONFIG_FILE} is not there.")
        config = RunConfig.model_validate(record)
        return config.model_copy(update={"run": config.run.model_copy(update={"dir": self._run_dir})})

    def _serve(self, node: RayNode, lease: Lease, report: WorkerReport) -> Outcome | None:
        """Be in one attempt of the run; None where it has ended and another one may come."""
        last_answer = last_look = time.monotonic()
        has_left = had_left = False
        while True:
            try:
                report = self._report_stay(report)
                order = self._folder.order_of(report.worker)
                if order is not None:
                    return self._told(order)
                if self._folder.is_over():
                    return Outcome.ENDS
                now = self._folder.lease()
                had_left, has_left = has_left, now is None or now.attempt != lease.attempt
                if has_left and had_left:  # not at the first look: None may be a lease that could not be read
                    return None
                last_look = time.monotonic()
            except (OSError, StorageFailed):
                if time.monotonic() - last_look > self._patience_s:
                    raise
            if not node.is_running:
                sys.stderr.write(f"Ray has ended on {node.offer.name}.\n{log_tail(node.log)}\n")
                return Outcome.MAY_RETURN
            if is_listening(lease.head_address):
                last_answer = time.monotonic()
            elif time.monotonic() - last_answer > _HEAD_SILENCE_S:
                sys.stderr.write(f"Nobody answers at {lease.head_address}: waiting for the run's next attempt.\n")
                return None
            time.sleep(_POLL_S)

    def _report_stay(self, report: WorkerReport) -> WorkerReport:
        """Report that the worker is in the run, and until when, unless its last report says so."""
        current = replace(report, stage="in the run", end_time=self._end_time)
        if current != report:
            self._folder.report(current)
        return current

    def _told(self, order: Order) -> Outcome | None:
        sys.stderr.write(f"The run lets this worker go: {order.reason}.\n")
        if self._has_notice:
            return Outcome.MAY_RETURN
        return Outcome.MAY_RETURN if order.may_return else Outcome.ENDS
