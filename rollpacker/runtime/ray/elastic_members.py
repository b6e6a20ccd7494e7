"""Rollout workers over Ray: which of them are there, and their engines as actors on their nodes.

A worker is there when its node has joined this run's Ray and its report says what it has. It is gone when its report
says so, or its node is not in Ray any more; Ray may take 20 s to notice a machine that fell silent, so its engines'
silence is noticed first, by the driver (`elastic.silence_s`).

Invariants: no call waits longer than a deadline for a worker, and what Ray raises of one that is gone is an
`EngineFailed`; nothing of value lies on a worker's node; a worker that was told to leave is not asked anything more.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import ray

from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import EngineFailed, Preempted, RollpackerError, StorageFailed, WorldError
from rollpacker.core.events import NoticeGiven, WorkerArrived, WorkerLeft
from rollpacker.core.ids import EngineId, WorkerId, element_and_life
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.protocols.backend import BackendContext, Limit
from rollpacker.protocols.blocking import in_daemon_thread
from rollpacker.protocols.forwarding import Forwarder
from rollpacker.protocols.members import MemberEngine
from rollpacker.runtime.job.allocation import current_allocation
from rollpacker.runtime.job.elastic_folder import ElasticFolder, Lease, Order, WorkerReport, fingerprint_here
from rollpacker.runtime.placing.actors import have_engines_gpus
from rollpacker.runtime.placing.fleets import config_of
from rollpacker.runtime.ray.cluster import RayCluster
from rollpacker.runtime.ray.node import pin_of_worker
from rollpacker.runtime.ray.remote import EngineProcess, PinnedPlace, make_engine_process
from rollpacker.runtime.rollout.starts import within_or_failed

_LOOK_S = 0.5
"""Between two looks at the folder and at Ray's nodes: each costs milliseconds."""

_CLOSING_S = 3.0
"""To tell workers that the attempt ends: a file system that hangs delays no run for longer."""

_UNBOUNDED = frozenset({"collect", "increments", "load_weights", "start"})
"""Calls whose answer comes when there is one; the driver, or the fleet, bounds the wait."""

Change = WorkerArrived | NoticeGiven | WorkerLeft


@asynccontextmanager
async def open_members(config: RunConfig, cluster: RayCluster, context: BackendContext) -> AsyncIterator[RayMembers]:
    """Take workers while this is open; they wait where another attempt may follow: after a preemption, in a job a loss.

    Slurm requeues a job that lost a node. One that has ended is found gone by the workers' batch scripts.
    """
    folder = ElasticFolder(config.run.dir)
    attempt = cluster.rendezvous.folder.name
    await in_daemon_thread(folder.reopen)
    fingerprint = await in_daemon_thread(lambda: fingerprint_here(config))
    lease = Lease(
        attempt=attempt,
        head_address=cluster.address,
        token_file=cluster.rendezvous.token_file,
        fingerprint=fingerprint,
    )
    members = RayMembers(config, folder, attempt, context)
    members.watch()
    close = folder.finish
    try:
        with folder.renewed(lease):
            yield members
    except BaseException as error:
        is_loss = isinstance(error, WorldError | asyncio.CancelledError) and _can_be_requeued()
        if is_loss or isinstance(error, Preempted):
            close = folder.withdraw_lease
        raise
    finally:
        members.close()
        with suppress(StorageFailed, TimeoutError):  # workers leave a lease that nobody renews, too
            async with asyncio.timeout(_CLOSING_S):
                await in_daemon_thread(close)


def _can_be_requeued() -> bool:
    allocation = current_allocation(os.environ)
    return allocation is not None and allocation.requeue_file is not None


class RayMembers:
    """Implements `rollpacker.protocols.members.Members`.

    Args:
        config: Of the run.
        folder: Where workers report; open.
        attempt: Whose workers count.
        context: Gets the logs of engines, and their stacks; shows a person when workers cannot be seen.
    """

    def __init__(self, config: RunConfig, folder: ElasticFolder, attempt: str, context: BackendContext) -> None:
        self._config = config
        self._folder = folder
        self._attempt = attempt
        self._context = context
        self._changes: Arrivals[Change] = Arrivals()
        self._present: dict[WorkerId, WorkerReport] = {}
        """Those that have arrived and not left, with what they last reported."""
        self._past: set[WorkerId] = set()
        """Those that have left, and those of other attempts: their reports are not read again."""
        self._engines: dict[WorkerId, list[EngineProcess]] = {}
        self._watcher: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Look for workers from now on."""
        self._watcher = asyncio.create_task(self._watch(), name="rollout workers")

    def close(self) -> None:
        """Look no more; workers leave by themselves when the attempt's lease is gone."""
        if self._watcher is not None:
            self._watcher.cancel()

    async def changes(self) -> Sequence[Change]:
        return await self._changes.collect()

    async def start_engine(self, worker: WorkerId, engine: EngineId) -> MemberEngine:
        if worker not in self._present:
            raise EngineFailed(f"{engine} cannot start: its worker is gone.")
        degree = self._degree
        number = int(engine.rpartition(".")[2])
        place = PinnedPlace(
            pin=pin_of_worker(worker),
            gpus=tuple(range(number * degree, (number + 1) * degree)) if have_engines_gpus(self._config) else (),
            log=self._context.logs.absolute() / f"{engine}.log",
        )
        process = make_engine_process(engine, place)
        self._engines.setdefault(worker, []).append(process)
        try:
            start = process.start(engine, config_of(self._config, degree))
            limit, start_s = self._context.limit, self._config.elastic.start_s
            await within_or_failed(limit, start_s, f"{engine} to start", start, setting="elastic.start_s")
        except BaseException:
            _kill(process)
            raise
        element, _ = element_and_life(worker)
        self._context.add_stack_source(f"{element}.{number}", process.stacks)  # in place of its last life's
        return cast("MemberEngine", _Bounded(process, engine, limit, self._config.elastic.silence_s))

    async def dismiss(self, worker: WorkerId, reason: str, *, may_return: bool) -> None:
        order = Order(reason=reason, may_return=may_return)
        await in_daemon_thread(lambda: self._folder.order(worker, order))
        self._lose(worker)

    async def wish(self, num_workers: int) -> None:
        await in_daemon_thread(lambda: self._folder.wish(num_workers))

    @property
    def _degree(self) -> int:
        return self._config.elastic.tensor_parallel or self._config.engine.tensor_parallel

    async def _watch(self) -> None:
        can_see = True
        while True:
            try:
                async with asyncio.timeout(self._config.elastic.silence_s):
                    reports, nodes = await in_daemon_thread(self._look)
            except OSError as error:  # a file system may be away for a while
                if can_see:
                    self._context.note(f"Rollout workers come and go unseen: {self._why_unseen(error)}.")
                can_see = False
            else:
                can_see = True
                self._take(reports, nodes)
            await asyncio.sleep(_LOOK_S)

    def _why_unseen(self, error: OSError) -> str:
        if isinstance(error, TimeoutError):
            silence_s = self._config.elastic.silence_s
            return f"a look at {self._folder.path} and at Ray's nodes takes longer than elastic.silence_s={silence_s:g}"
        return f"{self._folder.path} cannot be read: {error.strerror}"

    def _look(self) -> tuple[Sequence[WorkerReport], frozenset[str]]:
        reports = list(self._folder.current_reports(but=self._past))
        pins = {name for node in ray.nodes() if node["Alive"] for name in node["Resources"]}
        return reports, frozenset(pins)

    def _take(self, reports: Sequence[WorkerReport], pins: frozenset[str]) -> None:
        """Tell what has changed since the last look."""
        now = time.time()
        for report in reports:
            worker, has_node = report.worker, pin_of_worker(report.worker) in pins
            known = self._present.get(worker)
            remaining_s = None if report.end_time is None else max(report.end_time - now, 0.0)
            if worker in self._past or report.attempt != self._attempt:
                self._past.add(worker)
            elif known is None:
                if report.has_left and not report.mismatch:
                    self._past.add(worker)
                elif report.mismatch or has_node:
                    self._present[worker] = report
                    self._tell(
                        WorkerArrived(
                            worker=worker,
                            num_engines=report.num_engines,
                            leaves_in_s=remaining_s,
                            mismatch=report.mismatch,
                        )
                    )
            elif not known.mismatch and (report.has_left or not has_node):
                self._lose(worker)
            elif remaining_s is not None and report.end_time != known.end_time:
                self._present[worker] = report
                self._tell(NoticeGiven(worker=worker, leaves_in_s=remaining_s))

    def _lose(self, worker: WorkerId) -> None:
        """A worker is gone, or as good as gone; its engines end, wherever they are."""
        if self._present.pop(worker, None) is None:
            return
        self._past.add(worker)
        for process in self._engines.pop(worker, []):
            _kill(process)
        self._tell(WorkerLeft(worker=worker))

    def _tell(self, change: Change) -> None:
        self._changes.put([change])


class _Bounded(Forwarder):
    """An engine of a worker, whose answers are not waited for longer than it may be silent."""

    def __init__(self, process: EngineProcess, engine: EngineId, limit: Limit, silence_s: float) -> None:
        super().__init__(MemberEngine)
        self._process = process
        self._engine = engine
        self._limit = limit
        self._silence_s = silence_s

    async def _call(self, method: str, *arguments: Any) -> Any:
        answer = getattr(self._process, method)(*arguments)
        if method in _UNBOUNDED:
            return await answer
        what = f"{method}() of {self._engine}"
        return await within_or_failed(self._limit, self._silence_s, what, answer, setting="elastic.silence_s")


def _kill(process: EngineProcess) -> None:
    """End an actor without waiting: its node may be gone."""

    async def kill() -> None:
        with suppress(RollpackerError, TimeoutError):
            async with asyncio.timeout(_KILL_S):
                await process.kill()

    task = asyncio.ensure_future(kill())
    task.add_done_callback(_report_failure)


_KILL_S = 30.0
"""Ray carries out a kill at once where it can."""


def _report_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        sys.stderr.write(f"An engine of a rollout worker could not be ended: {error}\n")
