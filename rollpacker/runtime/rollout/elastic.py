"""What the driver does only for rollout workers: their commands, lent engines that come back, and what is measured."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from rollpacker.core.commands import (
    DismissWorker,
    FetchPolicy,
    ReclaimEngines,
    StartMember,
    WishWorkers,
)
from rollpacker.core.events import EnginesReturned, Event, PolicyPublished
from rollpacker.runtime.rollout.elastic_times import elastic_times, num_moved

if TYPE_CHECKING:
    from rollpacker.protocols.weights import WeightSync
    from rollpacker.runtime.rollout.aside import Aside
    from rollpacker.runtime.rollout.batch import Batch
    from rollpacker.runtime.rollout.engines import Engines
    from rollpacker.runtime.rollout.members import MemberEngines
    from rollpacker.runtime.rollout.request_book import RequestBook
    from rollpacker.runtime.waiting.clock import RunClock

ElasticCommand = StartMember | FetchPolicy | DismissWorker | WishWorkers | ReclaimEngines


class Elastic:
    """Carries out the commands that only a run with workers has.

    Args:
        engines: Of the trainer's allocation.
        members: Of workers.
        aside: Carries out what takes time.
        report: Tells the scheduler.
        on_reclaim: Awaited until the trainer has left GPUs that were lent to it.
        clock: The run's.
        under_way: Gives the requests that outlive a step.
    """

    def __init__(
        self,
        engines: Engines,
        members: MemberEngines,
        *,
        aside: Aside,
        report: Callable[[Event], None],
        on_reclaim: Callable[[], Awaitable[None]],
        clock: RunClock,
        under_way: Callable[[], RequestBook],
    ) -> None:
        self._engines = engines
        self._members = members
        self._aside = aside
        self._report = report
        self._on_reclaim = on_reclaim
        self._clock = clock
        self._under_way = under_way
        self._has_started = False
        self._num_wished = self._num_reclaims = 0
        """The latter since the last step."""
        self._reported_at_s = 0.0
        """When the last step was."""

    def start(self) -> None:
        """Listen to workers; the policy that engines hold lies ready for theirs."""
        self._has_started = True
        self._reported_at_s = self._clock.now()
        if self._members.are_any_expected:
            self._report(PolicyPublished(policy_version=self._engines.policy_version))
            self._members.start()

    async def publish(self, sync: WeightSync) -> None:
        """Lay out the trainer's policy for the engines of workers, before the others get it; nobody waits for them."""
        if self._members.are_any_expected:
            policy_version = await self._members.lay_out(sync)
            if self._has_started and policy_version is not None:  # else `start` reports it, or it lay there before
                self._report(PolicyPublished(policy_version=policy_version))

    def carry_out(self, command: ElasticCommand) -> None:
        """Carry out one command."""
        match command:
            case StartMember():
                self._members.start_member(command)
            case FetchPolicy():
                self._members.fetch(command)
            case DismissWorker():
                self._members.dismiss(command)
            case WishWorkers():
                self._num_wished = command.num_workers
                self._members.wish(command.num_workers)
            case ReclaimEngines():
                self._num_reclaims += 1
                self._aside.begin_in_turn(self._reclaim(command), "lent engines to come back")

    async def _reclaim(self, command: ReclaimEngines) -> None:
        await self._on_reclaim()
        returned = await self._engines.take_back(command.engines)
        self._report(EnginesReturned(round=command.round, engines=returned))

    def report_step(
        self, batch: Batch, *, local_share: float, train_s: float, trainer_idle_s: float
    ) -> Mapping[str, float | None]:
        """A step is over: tell where its time went; gives columns of its row, none in a run without workers.

        Arguments as of `elastic_times`.
        """
        if not self._members.are_any_expected:
            return {}
        now, under_way = self._clock.now(), self._under_way()
        times = elastic_times(
            batch,
            under_way,
            local_share=local_share,
            began_at_s=self._reported_at_s,
            ended_at_s=now,
            train_s=train_s,
            trainer_idle_s=trainer_idle_s,
        )
        self._report(times)
        num_lost, served_s = self._members.take_turnover()
        passed_s, self._reported_at_s = now - self._reported_at_s, now
        num_reclaims, self._num_reclaims = self._num_reclaims, 0
        lent_at_s = batch.lent_at_s
        return {
            "num_members_mean": served_s / passed_s if passed_s else 0.0,
            "num_workers_wished": self._num_wished,
            "num_members_lost": num_lost,
            "tokens_of_members": times.member_tokens,
            "tokens_saved": batch.book.num_tokens_saved,
            "num_requests_moved": num_moved(batch, under_way),
            "seeding_s": None if lent_at_s is None else lent_at_s - batch.began_at_s,
            "num_reclaims": num_reclaims,
            "member_idle_s": None if batch.max_staleness else times.fleet_idle_s,
            "trainer_idle_s": trainer_idle_s,
        }
