"""The process of a rollout worker on its node: it waits for a run that takes workers, joins its Ray, and leaves.

    no lease ──renewed──> compare ──equal──> joining ──Ray started──> in the run ──order, notice over, run over──> gone
       ^                     └──unequal──> refused <──Ray ended──┘         │ head silent for 10 s
       └───────────────────────────────────────────────────────────────────┘

It joins an attempt whose lease it has seen renewed. It reads the run's record then: an attempt writes its own before
that, and what lies there earlier is of the job before. It alone ends Ray here: when the head falls silent, nothing of
Ray survives as a zombie. Slurm's signals become a notice in its report; Ray and the engines are shielded from them
(`guardian.py`). From a shell, and by Ctrl-C, the first signal gives notice, and the second one ends it at once.
"""

from __future__ import annotations

import math
import os
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
from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.config.sections.elastic_job import LEAVES_BEFORE_LIMIT_S
from rollpacker.core.errors import DataError, RollpackerError, StorageFailed
from rollpacker.runtime.job.allocation import Allocation
from rollpacker.runtime.job.elastic_folder import (
    ElasticFolder,
    Lease,
    Order,
    WorkerReport,
    fingerprint_here,
    versions_here,
)
from rollpacker.runtime.job.signals import ALL_SIGNALS, UNKNOWN_GRACE_S, meaning_of
from rollpacker.runtime.ray.node import RayNode, log_tail, node_here
from rollpacker.runtime.ray.node_address import is_listening

_POLL_S = 0.2
_HEAD_SILENCE_S = 10.0
"""As of a node of the run's own job (`node_service`)."""
_RUN_LEFT_WAIT_S = 30.0
"""A worker waits so long for the next attempt of a run that has left it. A cancelled job is over by then, unless its
KillWait is longer (30 s by default); one that is requeued comes back later (cred_expire, 120 s by default)."""
_STARTED = "Ray runtime started."
"""In the log of `ray start` (Ray 2.60) once the head lists the node."""


class Outcome(IntEnum):
    """Exit codes of the process; the batch script acts upon them."""

    ENDS = 0
    """It is not needed any more, or unfit."""
    MAY_RETURN = 10
    """Its element should queue again, if the run's job still exists: it was told to leave, or is taken away."""
    NO_RUN = 75
    """No run has taken it for as long as its patience; the script looks whether the run's job still exists, and begins
    it again so often."""
    RUN_LEFT = 76
    """No run has taken it since one had; the script looks at once whether that was the end of the run's job."""
    NOT_JOINED = 77
    """Its Ray ended before it had joined the run's; the script begins it again a few times."""


def serve_worker(run_dir: Path, allocation: Allocation | None, element: str, patience_s: float) -> Outcome:
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
        self._patience_s = self._lease_wait_s = patience_s
        limit = allocation.end_time if allocation else None
        self._end_time = None if limit is None else limit - LEAVES_BEFORE_LIMIT_S
        """When it leaves at the latest."""
        self._has_notice = False
        self._is_over_stale = True
        """Whether the folder has said since the beginning that the run is over: then another attempt may come."""
        self._cluster = ClusterSection(name="slurm")
        """What the job asked for, once the run's record says it."""
        self._last_said = ""
        for number in ALL_SIGNALS:
            signal.signal(number, self._hear)

    def run(self) -> Outcome:
        alone, deadline, said = Outcome.NO_RUN, math.inf, ""
        while True:
            lease = self._wait_for_lease()
            if lease is None:
                return self._end_alone(alone)
            alone = Outcome.RUN_LEFT
            try:
                config, report = self._begin_life(lease)
                node = None if config is None or report.mismatch else self._join(lease, config, report)
            except (OSError, StorageFailed, DataError) as error:  # DataError: the record cannot be read
                if str(error) != said:
                    said = str(error)
                    self._say(f"It is tried again: {said}")
                deadline = min(deadline, time.monotonic() + self._patience_s)
                if time.monotonic() >= deadline:
                    raise
                continue  # with a lease that is renewed then
            if node is None:
                return Outcome.ENDS
            deadline, outcome = math.inf, None
            try:
                outcome = self._serve(node, lease, report)
            finally:
                never = f"Ray ended on {report.node} before it had joined that of the run."
                self._leave(node, report, mismatch=never if outcome is Outcome.NOT_JOINED else "")
            if outcome is not None:
                return outcome
            if math.isfinite(self._patience_s):
                self._lease_wait_s = min(self._patience_s, _RUN_LEFT_WAIT_S)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        """Slurm takes the node away, at the end of the grace time or of the job; or a person does."""
        name, now = signal.Signals(number), time.time()
        if self._allocation is not None and name is not signal.SIGINT:  # which a person sends, not Slurm
            reason, end = meaning_of(self._allocation, self._cluster, name, now)
        elif self._has_notice:
            reason, end = f"{name.name} came again", now
        else:
            reason = f"{name.name} came, with {UNKNOWN_GRACE_S:.0f} s to leave; once more leaves at once"
            end = now + UNKNOWN_GRACE_S
        if not self._has_notice:
            self._say(f"{reason}.")
        self._end_time = end if self._end_time is None else min(self._end_time, end)
        self._has_notice = True

    def _end_alone(self, alone: Outcome) -> Outcome:
        """Say why it waits no longer for a run, and give its exit code; `alone` is that of its patience."""
        if self._is_over():
            self._say("The run has ended.")
            return Outcome.ENDS
        if self._is_leaving():
            self._say("No run has taken this worker: it leaves at once.")
            return Outcome.MAY_RETURN
        self._say(f"No run has taken this worker for {self._lease_wait_s:g} s.")
        return alone

    def _wait_for_lease(self) -> Lease | None:
        """That of an attempt which is alive: it has written since this began to look.

        One that comes where there was none may be an old one that could not be read.
        """
        is_there = os.access(self._run_dir, os.F_OK)
        unseen = "" if is_there else " No such folder can be seen yet."
        self._say(f"Waiting for a run in {self._run_dir} that takes workers.{unseen}")
        deadline = time.monotonic() + self._lease_wait_s
        before: Lease | None = None
        while time.monotonic() < deadline and not (self._is_leaving() or self._is_over()):
            lease = self._lease()
            if lease is not None and before not in (None, lease) and is_listening(lease.head_address):
                return lease
            before = lease
            time.sleep(_POLL_S)
        return None

    def _is_leaving(self) -> bool:
        """Whether it joins no run any more: it has a notice, or its time is over though it heard none."""
        return self._has_notice or self._is_time_over()

    def _is_time_over(self) -> bool:
        return self._end_time is not None and time.time() >= self._end_time

    def _lease(self) -> Lease | None:
        """That of the attempt that takes workers; None where none can be read."""
        try:
            return self._folder.lease()
        except OSError:
            return None

    def _is_over(self) -> bool:
        """Whether the run is known to have ended since this worker began."""
        try:
            is_over = self._folder.is_over()
        except OSError:
            return False
        self._is_over_stale &= is_over
        return is_over and not self._is_over_stale

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
        self._report(report)
        return config, report

    def _report(self, report: WorkerReport) -> None:
        self._folder.report(report)
        if report.mismatch:
            self._say(f"{report.worker} does not join the run: {report.mismatch}")

    def _join(self, lease: Lease, config: RunConfig, report: WorkerReport) -> RayNode | None:
        """Start Ray here, in the run's cluster; None where this node is unfit, which is reported then.

        Raises:
            OSError: Ray's log cannot be written.
        """
        log = self._folder.path / "workers" / f"{report.worker}.log"
        try:
            node = node_here(config, self._allocation, log, report.worker)
        except RollpackerError as error:  # it lacks the network's interface, or room for Ray's session
            self._report(replace(report, mismatch=str(error).replace("\n", " ")))
            return None
        try:
            node.join(lease.head_address, lease.token_file)
        except BaseException:
            self._leave(node, report)
            raise
        return node

    def _leave(self, node: RayNode, report: WorkerReport, *, mismatch: str = "") -> None:
        """End Ray here, and say so."""
        node.stop()
        with suppress(StorageFailed):  # its engines' silence says so, too
            self._report(replace(report, stage="gone", has_left=True, mismatch=mismatch))

    def _config(self) -> RunConfig:
        """What the run's record says now; the folder may be mounted elsewhere here."""
        record = read_record(self._run_dir)
        if record is None:
            raise FileNotFoundError(f"{self._run_dir / CONFIG_FILE} is not there.")
        config = RunConfig.model_validate(record)
        self._cluster = config.cluster or self._cluster
        return config.model_copy(update={"run": config.run.model_copy(update={"dir": self._run_dir})})

    def _serve(self, node: RayNode, lease: Lease, report: WorkerReport) -> Outcome | None:
        """Be in one attempt of the run; None where it has ended and another one may come.

        Ray that ends by itself is `NOT_JOINED` before it has joined the run's, and `MAY_RETURN` afterwards.
        """
        last_answer = last_look = time.monotonic()
        has_joined = has_left = had_left = False
        while True:
            has_joined = has_joined or _has_started(node.log)
            try:
                report = self._report_stay(report, has_joined=has_joined)
                order = self._folder.order_of(report.worker)
                if order is not None:
                    return self._told(order)
                if self._folder.is_over():
                    self._say("The run has ended.")
                    return Outcome.ENDS
                now = self._folder.lease()
                had_left, has_left = has_left, now is None or now.attempt != lease.attempt
                if has_left and had_left:  # not at the first look: None may be a lease that could not be read
                    return None
                last_look = time.monotonic()
            except (OSError, StorageFailed):
                if time.monotonic() - last_look > self._patience_s:
                    raise
            outcome = self._ended_here(node, has_joined=has_joined)
            if outcome is not None:
                return outcome
            if is_listening(lease.head_address):
                last_answer = time.monotonic()
            elif time.monotonic() - last_answer > _HEAD_SILENCE_S:
                self._say(f"Nobody answers at {lease.head_address}.")
                return None
            time.sleep(_POLL_S)

    def _ended_here(self, node: RayNode, *, has_joined: bool) -> Outcome | None:
        """What ends the stay whatever the run does: the end of Ray, or of the worker's time."""
        if not node.is_running:
            self._say(f"Ray has ended on {node.offer.name}.\n{log_tail(node.log)}")
            return Outcome.MAY_RETURN if has_joined or self._has_notice else Outcome.NOT_JOINED
        if self._is_time_over():
            self._say("The time to leave is over.")
            return Outcome.MAY_RETURN
        return None

    def _report_stay(self, report: WorkerReport, *, has_joined: bool) -> WorkerReport:
        """Report how far the worker is, and until when it stays, unless its last report says so."""
        current = replace(report, stage="in the run" if has_joined else report.stage, end_time=self._end_time)
        if current != report:
            self._report(current)
        return current

    def _told(self, order: Order) -> Outcome | None:
        self._say(f"The run lets this worker go: {order.reason}.")
        if self._has_notice:
            return Outcome.MAY_RETURN
        return Outcome.MAY_RETURN if order.may_return else Outcome.ENDS

    def _say(self, text: str) -> None:
        """Tell a person, unless it was the last thing said."""
        if text != self._last_said:
            sys.stderr.write(f"{text}\n")
        self._last_said = text


def _has_started(log: Path) -> bool:
    """Whether Ray here is part of the run's."""
    try:
        return _STARTED in log.read_text(errors="replace")
    except OSError:
        return False
