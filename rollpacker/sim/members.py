"""Modelled rollout workers: nodes that come and go, and engines there that pull their weights.

    up ──arrives──> a worker ──start_engine──> its engine ──load_weights: a pull──> generates
    down, or dismissed ──> no worker; its place has another one `requeue_s` after that, when it is up

Invariants: a place has one worker at a time, and its workers' names count up, so that a name is never used again. No
more workers arrive than are wished for; a wish takes none away. An engine of a worker that is gone either fails at
every call, or answers none, as the settings say.

Pulls share the link of the trainer's node. A pull goes bucket by bucket, each at the rate of the moment that it begins:

    rate = min(worker's link / buckets under way to it, source's link / buckets under way from it)

A bucket comes to a worker once, for all of its engines, as to the node's object store: the others wait for it. The
source is the trainer's node; with `relay` any node that has the bucket, each as likely, which is how Ray chooses.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rollpacker.core.errors import EngineFailed
from rollpacker.core.events import NoticeGiven, WorkerArrived, WorkerLeft
from rollpacker.core.ids import EngineId, RequestId, WorkerId, worker_of
from rollpacker.engines.checks import NO_VERSION
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.protocols.rollout import TokenIncrement
from rollpacker.protocols.tasks import end_tasks
from rollpacker.protocols.weights import first_bucket
from rollpacker.sim.availability import PlaceChanged, availability_of
from rollpacker.sim.costs import GIGA
from rollpacker.sim.engine import blank_logprobs, blank_tokens

if TYPE_CHECKING:
    from rollpacker.config.sections.elastic import ElasticSection
    from rollpacker.config.sections.modelled_workers import LossSection, ModelledWorkersSection
    from rollpacker.core.commands import DraftRule
    from rollpacker.core.events import EngineProgress
    from rollpacker.protocols.engine import EngineStats
    from rollpacker.protocols.rollout import GenerationRequest, Response
    from rollpacker.protocols.weights import Weights
    from rollpacker.sim.engine import ModelledEngine

MakeEngine = Callable[[EngineId], "ModelledEngine"]

_TRAINER = WorkerId("trainer")
"""Its node, as a source."""

_LEAST_AWAY_S = 1.0
"""After a dismissal, however short `requeue_s` is: a worker that is not taken would come again at the same moment of
virtual time, without end."""


class Network:
    """The links of the trainer's node, from which workers pull, and of theirs."""

    def __init__(self, section: ModelledWorkersSection, bucket_bytes: int) -> None:
        self._worker_rate = section.network_gb_per_s * GIGA
        self._trainer_rate = section.trainer_network_gb_per_s * GIGA
        self._bucket_bytes = bucket_bytes
        self._relays = section.relay
        self._chance = np.random.default_rng(section.seed)
        self._policy_version = NO_VERSION
        """That is pulled now."""
        self._holders: dict[int, list[WorkerId]] = {}
        """Of its buckets, beside the trainer's node."""
        self._bringing: dict[tuple[WorkerId, int, int], asyncio.Lock] = {}
        """Held while an engine of this worker brings, of this policy version, this bucket."""
        self._gone: set[WorkerId] = set()
        """They pull no more, and nobody pulls from them."""
        self._num_uploads: dict[WorkerId, int] = {}
        """Buckets under way from each source."""
        self._num_downloads: dict[WorkerId, int] = {}
        """Buckets under way to each worker."""

    async def pull(self, num_bytes: int, puller: EngineId, policy_version: int) -> None:
        """Take the time of a pull; that of a worker that leaves ends early."""
        if policy_version > self._policy_version:
            self._policy_version, self._holders, self._bringing = policy_version, {}, {}
        worker = worker_of(puller)
        assert worker is not None
        num_buckets = math.ceil(num_bytes / self._bucket_bytes)
        first = first_bucket(puller, num_buckets) if self._relays else 0
        for bucket in (*range(first, num_buckets), *range(first)):
            is_last = bucket == num_buckets - 1
            size = num_bytes - bucket * self._bucket_bytes if is_last else self._bucket_bytes
            async with self._bringing.setdefault((worker, policy_version, bucket), asyncio.Lock()):
                if worker in self._gone:
                    return
                if policy_version == self._policy_version and worker in self._holders.get(bucket, ()):
                    continue
                await self._bring(bucket, size, worker)
                if policy_version == self._policy_version:
                    self._holders.setdefault(bucket, []).append(worker)

    async def _bring(self, bucket: int, num_bytes: int, worker: WorkerId) -> None:
        holders = self._holders.get(bucket, ()) if self._relays else ()
        sources = [_TRAINER, *(holder for holder in holders if holder not in self._gone)]
        source = sources[self._chance.integers(len(sources))]
        self._num_uploads[source] = num_uploads = self._num_uploads.get(source, 0) + 1
        self._num_downloads[worker] = num_downloads = self._num_downloads.get(worker, 0) + 1
        source_rate = self._trainer_rate if source == _TRAINER else self._worker_rate
        try:
            await asyncio.sleep(num_bytes / min(self._worker_rate / num_downloads, source_rate / num_uploads))
        finally:
            self._num_uploads[source] -= 1
            self._num_downloads[worker] -= 1

    def leave(self, worker: WorkerId) -> None:
        """What a worker had is gone with it."""
        self._gone.add(worker)


class MemberEngine:
    """An engine of a worker; implements `protocols.engine.Engine`."""

    def __init__(self, name: EngineId, engine: ModelledEngine, network: Network, report_interval_s: float) -> None:
        self._name = name
        self._engine = engine
        self._network = network
        self._report_interval_s = report_interval_s
        self._policy_version = NO_VERSION
        self._reported: dict[RequestId, int] = {}
        """Tokens of each request in flight that the driver has."""
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_silent = False

    async def lose(self, *, silently: bool) -> None:
        """The worker is gone: fail, or answer no more."""
        if not self._gone.done():
            self._is_silent = silently
            self._gone.set_result(None)
            await self._engine.close()

    async def _here(self) -> None:
        """Go on only while the worker is there."""
        if self._gone.done():
            if self._is_silent:
                await asyncio.get_running_loop().create_future()
            raise EngineFailed(f"{self._name} is gone with its worker.")

    async def generate(self, requests: Sequence[GenerationRequest]) -> None:
        await self._here()
        for request in requests:
            self._reported[request.request] = request.begun.num_tokens if request.begun else 0
        await self._engine.generate(requests)

    async def abort(self, requests: Sequence[RequestId]) -> None:
        await self._here()
        await self._engine.abort(requests)

    async def collect(self) -> Sequence[Response]:
        await self._here()
        responses = await self._engine.collect()
        await self._here()
        for response in responses:
            self._reported.pop(response.request, None)
        return responses

    async def increments(self) -> Sequence[TokenIncrement]:
        """What was generated since the last answer, once in every interval."""
        await asyncio.wait([self._gone], timeout=self._report_interval_s)
        await self._here()
        return [
            TokenIncrement(
                request=request,
                first_index=reported,
                token_ids=blank_tokens(num_generated - reported),
                logprobs=blank_logprobs(num_generated - reported),
                policy_version=self._policy_version,
            )
            for request, reported, num_generated in self._take_progress()
        ]

    def _take_progress(self) -> list[tuple[RequestId, int, int]]:
        news = [
            (request, self._reported[request], num_generated)
            for request, num_generated in self._engine.unfinished()
            if num_generated > self._reported.get(request, num_generated)
        ]
        self._reported.update((request, num_generated) for request, _, num_generated in news)
        return news

    async def progress(self) -> EngineProgress:
        await self._here()
        return await self._engine.progress()

    async def use_draft_lengths(self, rules: Sequence[DraftRule]) -> None:
        await self._here()
        await self._engine.use_draft_lengths(rules)

    async def load_weights(self, weights: Weights) -> str:
        """Pull them, then load them."""
        await self._here()
        self._policy_version = NO_VERSION
        await self._network.pull(weights.num_bytes, self._name, weights.policy_version)
        await self._here()
        checksum = await self._engine.load_weights(weights)
        await self._here()
        self._policy_version = weights.policy_version
        return checksum

    async def sleep(self) -> None:
        await self._here()
        await self._engine.sleep()

    async def stand_by(self) -> None:
        await self._here()
        await self._engine.stand_by()

    async def wake(self) -> None:
        await self._here()
        await self._engine.wake()

    async def stats(self) -> EngineStats:
        await self._here()
        return await self._engine.stats()

    async def close(self) -> None:
        await self.lose(silently=False)


@dataclass(slots=True, kw_only=True)
class _Place:
    """A node, or where one may be."""

    number: int
    is_up: bool = False
    life: int = -1
    """Of its worker, or of the last one."""
    worker: WorkerId | None = None
    is_leaving: bool = False
    """Its worker is being preempted."""
    engines: list[MemberEngine] = field(default_factory=list)
    """Of its worker."""
    free_at_s: float = 0.0
    """No worker comes before."""


class ModelledMembers:
    """Implements `rollpacker.protocols.members.Members`.

    Args:
        elastic: The workers.
        make_engine: Makes an engine of theirs; its weights take only as long as a node needs to load what it has.
    """

    def __init__(self, elastic: ElasticSection, make_engine: MakeEngine) -> None:
        self._elastic = elastic
        self._section = section = elastic.modelled
        self._availability = availability_of(section)
        self._make_engine = make_engine
        self._loop = asyncio.get_running_loop()
        self._network = Network(section, elastic.bucket_mb << 20)
        self._places: dict[int, _Place] = {}
        self._limit = elastic.max_workers
        self._has_started = asyncio.Event()
        """The run's clock is set: nothing may wait for a time before."""
        self._changes: Arrivals[WorkerArrived | NoticeGiven | WorkerLeft] = Arrivals()
        self._losses = list(section.losses)
        """Those that have not come yet."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """End all work."""
        await end_tasks(*self._tasks)
        for place in self._places.values():
            for engine in place.engines:
                await engine.close()
        self._changes.close()

    # What the driver asks

    async def changes(self) -> Sequence[WorkerArrived | NoticeGiven | WorkerLeft]:
        if not self._has_started.is_set():  # the run's clock is set before it listens
            self._has_started.set()
            self._begin(self._follow(self._availability))
        return await self._changes.collect()

    async def start_engine(self, worker: WorkerId, engine: EngineId) -> MemberEngine:
        await asyncio.sleep(self._section.start_s)
        place = next((place for place in self._places.values() if place.worker == worker), None)
        if place is None:
            raise EngineFailed(f"{worker} was gone before {engine} had started.")
        made = MemberEngine(engine, self._make_engine(engine), self._network, self._elastic.report_interval_s)
        place.engines.append(made)
        return made

    async def dismiss(self, worker: WorkerId, reason: str, *, may_return: bool) -> None:
        del reason
        for place in self._places.values():
            if place.worker == worker:
                away_s = max(self._section.requeue_s, _LEAST_AWAY_S) if may_return else float("inf")
                self._keep_empty(place, away_s)
                await self._end(place, silently=False)

    async def wish(self, num_workers: int) -> None:
        self._limit = num_workers
        self._fill()

    # Losses that the settings order

    def policy_published(self, step: int) -> None:
        """The policy of a step lies ready to be pulled."""
        self._order_losses(step, "publication")

    def engines_lent(self, step: int) -> None:
        """Local engines leave for the trainer."""
        self._order_losses(step, "lending")

    def _order_losses(self, step: int, after: str) -> None:
        due = [loss for loss in self._losses if (loss.step, loss.after) == (step, after)]
        for loss in due:
            self._losses.remove(loss)
            self._begin(self._lose_some(loss))

    async def _lose_some(self, loss: LossSection) -> None:
        await self._has_started.wait()
        await asyncio.sleep(loss.delay_s)
        there = [place for place in self._places.values() if place.worker is not None and not place.is_leaving]
        for place in there[: loss.num_workers]:
            self._keep_empty(place, float("inf") if loss.away_s is None else loss.away_s)
            self._preempt(place)

    # Nodes that come and go

    async def _follow(self, changes: Iterator[PlaceChanged]) -> None:
        """Carry out what changes; of the time before the run, or before it was resumed, only what is left of it."""
        for change in changes:
            if change.at_s > self._loop.time():
                self._fill()
                await asyncio.sleep(change.at_s - self._loop.time())
            place = self._places.setdefault(change.place, _Place(number=change.place))
            place.is_up = change.is_up
            if not change.is_up and place.worker is not None:
                self._keep_empty(place, self._section.requeue_s)
                self._preempt(place)
        self._fill()

    def _fill(self) -> None:
        """Let workers arrive where there is a place for one."""
        num_there = sum(place.worker is not None for place in self._places.values())
        now = self._loop.time()  # the run's, in virtual time
        for place in self._places.values():
            if place.is_up and place.worker is None and place.free_at_s <= now and num_there < self._limit:
                num_there += 1
                self._arrive(place)

    def _keep_empty(self, place: _Place, duration_s: float) -> None:
        """Let no worker come for so long, nor before a time that was set earlier."""
        place.free_at_s = max(place.free_at_s, self._loop.time() + duration_s)
        if place.free_at_s < float("inf"):
            self._loop.call_at(place.free_at_s, self._fill)

    def _arrive(self, place: _Place) -> None:
        place.life += 1
        place.worker = WorkerId(f"e0_{place.number}-r{place.life}")
        limit_s = self._section.time_limit_s
        num_engines = self._elastic.engines_per_worker
        self._changes.put([WorkerArrived(worker=place.worker, num_engines=num_engines, leaves_in_s=limit_s)])
        if limit_s is not None:
            self._begin(self._end_later(place, place.worker, limit_s))

    def _preempt(self, place: _Place) -> None:
        """Take a node with a worker away, after the grace that it has."""
        worker, grace_s = place.worker, self._section.grace_s
        assert worker is not None
        place.is_leaving = True
        if grace_s > 0:
            self._changes.put([NoticeGiven(worker=worker, leaves_in_s=grace_s)])
        self._begin(self._end_later(place, worker, grace_s))

    async def _end_later(self, place: _Place, worker: WorkerId, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        if place.worker == worker:
            await self._end(place, silently=self._section.loses_silently)

    async def _end(self, place: _Place, *, silently: bool) -> None:
        worker, place.worker = place.worker, None
        engines, place.engines = place.engines, []
        place.is_leaving = False
        assert worker is not None
        self._network.leave(worker)
        for engine in engines:
            await engine.lose(silently=silently)
        if not silently:
            self._changes.put([WorkerLeft(worker=worker)])
        self._fill()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
