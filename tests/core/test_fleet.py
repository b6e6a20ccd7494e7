"""Examples of workers: two may come, start in 10 s, fetch in 5 s, and drain from 4 s to 1 s before their end."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rollpacker.core.commands import (
    Command,
    DismissWorker,
    Evict,
    FetchPolicy,
    Launch,
    SetTimer,
    StartMember,
    WishWorkers,
)
from rollpacker.core.elastic_settings import BalanceSettings, ElasticSettings
from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.events import (
    EngineJoined,
    EngineLost,
    EngineStarted,
    EngineStartFailed,
    EngineUpdated,
    Event,
    FetchFailed,
    NoticeGiven,
    PolicyPublished,
    ResponseEvicted,
    ResponseFinished,
    SlotsChanged,
    SlotsOpened,
    StepMeasured,
    StepStarted,
    TimerFired,
    WorkerArrived,
    WorkerLeft,
)
from rollpacker.core.ids import EngineId, RequestId, VersionSpan, WorkerId, member_of
from rollpacker.core.scheduler import Scheduler
from tests.core.player import Player, make_settings

LOCAL = EngineId("engine-0")
A, A1, B, C = (WorkerId(name) for name in ("e7_0-r0", "e7_0-r1", "e7_1-r0", "e7_2-r0"))
ELASTIC = ElasticSettings(
    min_workers=0,
    max_workers=2,
    start_s=10.0,
    fetch_s=5.0,
    grace_s=3.0,
    least_stay_s=6.0,
    drain_lead_s=4.0,
    drain_margin_s=1.0,
)
SETTINGS = make_settings(batching="plain", num_prompts=4, num_responses=2, elastic=ELASTIC)


class ElasticPlayer(Player):
    """One local engine, workers, and a scheduler that is restored after every fact."""

    def __init__(self, settings=SETTINGS) -> None:
        super().__init__(settings, num_engines=0)
        self.now = 100.0
        self.wishes = self.tell(SlotsOpened(slots=(LOCAL,)))
        self.tell(EngineJoined(engine=LOCAL, policy_version=self.version))
        self.tell(SlotsChanged(in_use=(LOCAL,)))

    def tell(self, event: Event) -> tuple[Command, ...]:
        commands = super().tell(event)
        snapshot = json.loads(json.dumps(self.scheduler.snapshot()))
        self.scheduler = Scheduler.restore(self.settings, snapshot)
        assert self.scheduler.snapshot() == snapshot
        self.scheduler.check()
        return commands

    def publish(self) -> tuple[Command, ...]:
        """The next policy lies ready, and the local engine holds it."""
        self.version += 1
        commands = self.tell(PolicyPublished(policy_version=self.version))
        self.tell(EngineUpdated(engine=LOCAL, policy_version=self.version))
        return commands

    def begin(self, step: int) -> tuple[Command, ...]:
        return self.settle(self.tell(StepStarted(step=step, policy_version=self.version)))

    def serve(self, worker: WorkerId, **facts: float) -> tuple[Command, ...]:
        """A worker comes, starts and gets the policy."""
        self.tell(WorkerArrived(worker=worker, num_engines=1, **facts))
        self.tell(EngineStarted(engine=member_of(worker, 0)))
        return self.tell(EngineUpdated(engine=member_of(worker, 0), policy_version=self.version))

    def fire(self, timer: str) -> tuple[Command, ...]:
        self.now = self.scheduler.timers[timer]
        return self.tell(TimerFired(timer=timer))


def dismissal(worker: WorkerId, reason: str, *, may_return: bool = True) -> DismissWorker:
    return DismissWorker(worker=worker, reason=reason, may_return=may_return)


def of_kind(commands: tuple[Command, ...], *kinds: type) -> list[Command]:
    return [command for command in commands if isinstance(command, kinds)]


def on(worker: WorkerId, commands: tuple[Command, ...]) -> list[RequestId]:
    engine = member_of(worker, 0)
    return [command.request for command in commands if isinstance(command, Launch) and command.engine == engine]


def test_a_worker_starts_fetches_the_newest_policy_and_serves():
    player = ElasticPlayer()
    assert player.wishes == (WishWorkers(num_workers=2),)
    player.publish()
    engines = (member_of(A, 0), member_of(A, 1))
    assert player.tell(WorkerArrived(worker=A, num_engines=2)) == (
        StartMember(worker=A, engine=engines[0]),
        StartMember(worker=A, engine=engines[1]),
        SetTimer(timer=f"{A} start", at_s=110.0),
    )
    assert player.tell(EngineStarted(engine=engines[0])) == ()
    assert player.tell(EngineStarted(engine=engines[1])) == (
        FetchPolicy(engine=engines[0], policy_version=1),
        FetchPolicy(engine=engines[1], policy_version=1),
        SetTimer(timer=f"{A} fetch", at_s=105.0),
        SetTimer(timer=f"{A} late", at_s=105.0),
    )
    assert player.tell(EngineUpdated(engine=engines[0], policy_version=1)) == ()
    assert player.scheduler.engines == (LOCAL,), "it serves as a whole"
    assert player.tell(EngineUpdated(engine=engines[1], policy_version=1)) == ()
    assert player.scheduler.engines == (LOCAL, *engines)
    assert on(A, player.begin(0))
    assert player.fire(f"{A} fetch") == (), "a deadline that was met"


def test_a_step_waits_for_no_worker_that_catches_up():
    player = ElasticPlayer()
    player.publish()
    player.serve(A)
    assert FetchPolicy(engine=member_of(A, 0), policy_version=2) in player.publish()
    launches = player.begin(0)
    assert {command.engine for command in launches if isinstance(command, Launch)} == {LOCAL}
    player.tell(EngineUpdated(engine=member_of(A, 0), policy_version=1))
    assert player.scheduler.engines == (LOCAL,), "the version before is late"
    player.tell(EngineUpdated(engine=member_of(A, 0), policy_version=2))
    assert player.scheduler.engines == (LOCAL, member_of(A, 0))


def test_a_later_life_fences_the_one_before_whose_facts_are_late():
    player = ElasticPlayer()
    player.publish()
    player.serve(A)
    running = on(A, player.begin(0))
    commands = player.tell(WorkerArrived(worker=A1, num_engines=1))
    assert commands[0] == dismissal(A, f"{A1} has come after it", may_return=False)
    assert [each.request for each in of_kind(commands, Launch)] == running
    assert of_kind(commands, StartMember) == [StartMember(worker=A1, engine=member_of(A1, 0))]
    before = player.scheduler.snapshot()
    old = member_of(A, 0)
    finished = ResponseFinished(request=running[0], engine=old, num_tokens=1, spans=(VersionSpan(1, 1),))
    for late in (
        WorkerArrived(worker=A, num_engines=1),
        WorkerArrived(worker=A1, num_engines=1),
        NoticeGiven(worker=A, leaves_in_s=0.0),
        WorkerLeft(worker=A),
        EngineStarted(engine=old),
        EngineUpdated(engine=old, policy_version=1),
        EngineLost(engine=old),
        finished,
    ):
        assert player.tell(late) == ()
    assert player.scheduler.snapshot() == before


def test_what_runs_on_a_lost_worker_is_launched_elsewhere_after_it_was_dismissed():
    player = ElasticPlayer()
    player.publish()
    player.serve(A)
    player.serve(B)
    running = on(A, player.begin(0))
    commands = player.tell(EngineLost(engine=member_of(A, 0)))
    assert commands[0] == dismissal(A, f"{A}.0 was lost")
    assert [each.request for each in of_kind(commands, Launch)] == running
    assert player.tell(WorkerLeft(worker=A)) == ()
    on_b = on(B, commands)
    assert on_b
    assert set(on_b) <= {each.request for each in of_kind(player.tell(WorkerLeft(worker=B)), Launch)}


def test_a_worker_drains_before_its_known_end():
    player = ElasticPlayer()
    player.publish()
    player.serve(A, leaves_in_s=50.0)
    running = on(A, player.begin(0))
    assert player.scheduler.timers[f"{A} drain"] == 146.0
    assert of_kind(player.fire(f"{A} drain"), Evict, Launch) == [], "what runs there goes on"
    assert player.now == 146.0
    evicted = player.fire(f"{A} empty")
    assert player.now == 149.0
    engine = member_of(A, 0)
    assert of_kind(evicted, Evict) == [Evict(request=request, engine=engine) for request in running]
    commands = [player.tell(ResponseEvicted(request=each, engine=engine, num_tokens=1)) for each in running]
    assert all(each[0] == Launch(request=of, engine=LOCAL) for each, of in zip(commands, running, strict=True))
    assert [each[1:2] for each in commands if len(each) > 1] == [(dismissal(A, "it is drained"),)]


def test_the_first_of_several_ends_counts_and_one_too_near_is_a_loss():
    player = ElasticPlayer()
    player.publish()
    player.serve(A, leaves_in_s=50.0)
    player.begin(0)
    assert player.tell(NoticeGiven(worker=A, leaves_in_s=90.0)) == ()
    assert player.tell(NoticeGiven(worker=A, leaves_in_s=20.0)) == (SetTimer(timer=f"{A} drain", at_s=116.0),)
    assert player.tell(NoticeGiven(worker=A, leaves_in_s=1.0))[0] == dismissal(A, "it is taken away")


def test_a_worker_that_drains_to_its_end_is_dismissed_with_what_it_has():
    player = ElasticPlayer()
    player.publish()
    player.serve(A, leaves_in_s=50.0)
    running = on(A, player.begin(0))
    player.fire(f"{A} drain")
    player.fire(f"{A} empty")
    commands = player.fire(f"{A} end")
    assert player.now == 150.0
    assert commands[0] == dismissal(A, "its job ends")
    assert [each.request for each in of_kind(commands, Launch)] == running


@pytest.mark.parametrize(
    ("facts", "reason", "may_return"),
    [
        ({"mismatch": "it has another model"}, "it has another model", False),
        ({"leaves_in_s": 5.0}, "its job ends in 5 s", True),
        ({}, "no more than 2 are wanted", True),
    ],
)
def test_a_worker_of_no_use_is_dismissed_as_it_comes(facts, reason, may_return):
    player = ElasticPlayer()
    for worker in (A, B) if not facts else ():
        player.tell(WorkerArrived(worker=worker, num_engines=1))
    commands = player.tell(WorkerArrived(worker=C, num_engines=1, **facts))
    assert commands == (dismissal(C, reason, may_return=may_return), SetTimer(timer=f"{C} leave", at_s=103.0))
    assert player.fire(f"{C} leave") == ()
    assert C not in player.scheduler.snapshot()["elastic"]["fleet"]["workers"]


def test_an_element_that_fails_twice_in_a_row_does_not_return():
    player = ElasticPlayer()
    player.publish()
    player.tell(WorkerArrived(worker=A, num_engines=1))
    assert player.fire(f"{A} start")[0] == dismissal(A, "it did not start in 10 s")
    player.tell(WorkerArrived(worker=A1, num_engines=1))
    failed = player.tell(EngineStartFailed(engine=member_of(A1, 0)))
    assert failed[0] == dismissal(A1, f"{A1}.0 did not start", may_return=False)


def test_a_policy_that_was_not_got_is_fetched_once_more_in_the_time_that_is_left():
    player = ElasticPlayer()
    player.publish()
    player.tell(WorkerArrived(worker=A, num_engines=1))
    player.tell(EngineStarted(engine=member_of(A, 0)))
    failure = FetchFailed(engine=member_of(A, 0), policy_version=1)
    assert player.tell(failure) == (FetchPolicy(engine=member_of(A, 0), policy_version=1),)
    assert player.tell(failure)[0] == dismissal(A, f"{A}.0 did not get policy version 1", may_return=False)


def test_engines_that_fail_once_each_to_get_a_policy_are_one_failure_of_their_worker():
    player = ElasticPlayer()
    player.publish()
    engines = member_of(A, 0), member_of(A, 1)
    player.tell(WorkerArrived(worker=A, num_engines=2))
    for engine in engines:
        player.tell(EngineStarted(engine=engine))
    for engine in engines:
        failure = FetchFailed(engine=engine, policy_version=1)
        assert player.tell(failure) == (FetchPolicy(engine=engine, policy_version=1),)
    player.tell(EngineUpdated(engine=engines[0], policy_version=1))
    assert player.tell(failure)[0] == dismissal(A, f"{A}.1 did not get policy version 1", may_return=False)


def test_a_failure_to_get_the_next_policy_is_another_one():
    player = ElasticPlayer()
    player.publish()
    player.tell(WorkerArrived(worker=A, num_engines=2))
    for number in (0, 1):
        player.tell(EngineStarted(engine=member_of(A, number)))
    player.tell(FetchFailed(engine=member_of(A, 0), policy_version=1))
    player.publish()
    failed = player.tell(FetchFailed(engine=member_of(A, 1), policy_version=2))
    assert failed[0] == dismissal(A, f"{A}.1 did not get policy version 2", may_return=False)


def test_a_worker_that_would_have_to_drain_at_once_is_not_started():
    player = ElasticPlayer(replace(SETTINGS, elastic=replace(ELASTIC, least_stay_s=0.0)))
    commands = player.tell(WorkerArrived(worker=A, num_engines=1, leaves_in_s=3.0))
    assert commands[0] == dismissal(A, "its job ends in 3 s")
    assert of_kind(commands, StartMember) == []


def test_a_worker_that_serves_has_not_failed():
    player = ElasticPlayer()
    player.publish()
    player.tell(WorkerArrived(worker=A, num_engines=1))
    player.tell(EngineStartFailed(engine=member_of(A, 0)))
    player.serve(A1)
    player.tell(EngineLost(engine=member_of(A1, 0)))
    again = WorkerId("e7_0-r2")
    player.tell(WorkerArrived(worker=again, num_engines=1))
    assert player.tell(EngineStartFailed(engine=member_of(again, 0)))[0].may_return


def test_a_new_attempt_begins_without_workers_and_takes_them_again():
    player = ElasticPlayer()
    player.publish()
    player.serve(A)
    running = on(A, player.begin(0))
    commands = player.tell(SlotsOpened(slots=(LOCAL,)))
    assert WishWorkers(num_workers=2) in commands
    assert [each.request for each in of_kind(commands, Launch)] == running
    assert of_kind(player.tell(WorkerArrived(worker=A, num_engines=1)), StartMember)


def test_timers_of_workers_end_with_the_attempt_in_which_they_came():
    player = ElasticPlayer()
    player.publish()
    player.tell(WorkerArrived(worker=A, num_engines=1, leaves_in_s=1000))
    assert {f"{A} start", f"{A} drain"} <= player.scheduler.timers.keys()
    player.tell(SlotsOpened(slots=(LOCAL,)))
    assert not [timer for timer in player.scheduler.timers if timer.startswith(A)]
    player.tell(WorkerArrived(worker=A, num_engines=1))
    assert [timer for timer in player.scheduler.timers if timer.startswith(A)] == [f"{A} start"]


def measured(step: int, *, rollout_s: float, train_s: float, member_s: float = 0.0) -> StepMeasured:
    return StepMeasured(
        step=step,
        train_s=train_s,
        trainer_idle_s=0.0,
        fleet_idle_s=0.0,
        local_engine_s=rollout_s,
        member_engine_s=member_s,
        local_tokens=100,
        member_tokens=0,
    )


def test_after_three_steps_that_could_use_fewer_workers_one_drains_and_it_comes_back_at_once():
    player = ElasticPlayer()
    player.publish()
    player.serve(A, leaves_in_s=500.0)
    player.serve(B, leaves_in_s=400.0)
    assert player.tell(measured(0, rollout_s=50.0, train_s=100.0)) == ()
    assert player.tell(measured(0, rollout_s=50.0, train_s=100.0)) == (), "told twice"
    assert player.tell(measured(1, rollout_s=50.0, train_s=100.0)) == ()
    commands = player.tell(measured(2, rollout_s=50.0, train_s=100.0))
    assert commands[0] == WishWorkers(num_workers=1)
    assert dismissal(B, "it is drained") in commands, "the first to end, at once, for it is empty"
    assert player.tell(WorkerArrived(worker=C, num_engines=1))[0] == dismissal(C, "no more than 1 are wanted")
    assert player.tell(measured(3, rollout_s=1000.0, train_s=100.0)) == (WishWorkers(num_workers=2),)


def test_of_workers_that_are_too_many_one_that_does_not_serve_yet_goes_first():
    player = ElasticPlayer()
    player.publish()
    player.serve(A, leaves_in_s=400.0)
    player.tell(WorkerArrived(worker=B, num_engines=1))
    for step in range(3):
        commands = player.tell(measured(step, rollout_s=50.0, train_s=100.0))
    assert of_kind(commands, DismissWorker) == [dismissal(B, "no more than 1 are wanted")]


def wishes_after(*steps: StepMeasured, **elastic: object) -> list[int]:
    player = ElasticPlayer(replace(SETTINGS, elastic=replace(ELASTIC, max_workers=4, **elastic)))
    player.publish()
    orders = [order for step in steps for order in of_kind(player.tell(step), WishWorkers)]
    return [order.num_workers for order in orders]


def test_work_of_local_engines_beside_the_trainer_is_none_for_workers():
    steps = [measured(step, rollout_s=90.0, member_s=180.0, train_s=100.0) for step in range(9)]
    assert wishes_after(*steps) == [3]
    assert wishes_after(*steps, is_apart=True) == [3, 2]


def test_without_a_worker_what_local_engines_do_beyond_the_training_is_left_for_some():
    few = [measured(step, rollout_s=50.0, train_s=100.0) for step in range(3)]
    long = [measured(step, rollout_s=900.0, train_s=100.0) for step in range(3, 5)]
    assert wishes_after(*few, *long, is_apart=True) == [3, 4]


def test_where_rollout_and_training_take_turns_all_workers_are_of_use():
    assert wishes_after(*[measured(step, rollout_s=50.0, train_s=100.0) for step in range(6)], overlaps=False) == []


def test_a_run_that_goes_on_with_a_higher_minimum_takes_the_workers_that_it_wishes_for():
    player = ElasticPlayer()
    for step in range(3):
        wish = player.tell(measured(step, rollout_s=50.0, train_s=100.0))
    assert wish == (WishWorkers(num_workers=1),)
    more = replace(SETTINGS, elastic=replace(ELASTIC, min_workers=2))
    player.scheduler = Scheduler.restore(more, player.scheduler.snapshot())
    player.settings = more
    assert WishWorkers(num_workers=2) in player.tell(SlotsOpened(slots=(LOCAL,)))
    for worker in (A, B):
        assert of_kind(player.tell(WorkerArrived(worker=worker, num_engines=1)), StartMember)


def test_while_a_worker_is_about_to_serve_requests_wait_for_room_and_without_one_none_does():
    balance = BalanceSettings(num_slots=2, max_pending=1)
    player = ElasticPlayer(replace(SETTINGS, elastic=replace(ELASTIC, balance=balance)))
    player.publish()
    player.tell(WorkerArrived(worker=A, num_engines=1))
    player.tell(EngineStarted(engine=member_of(A, 0)))
    launches = of_kind(player.begin(0), Launch)
    assert [each.engine for each in launches] == [LOCAL] * 3
    assert len(player.scheduler.waiting) == 5
    found = of_kind(player.tell(EngineUpdated(engine=member_of(A, 0), policy_version=1)), Launch)
    assert [each.engine for each in found] == [member_of(A, 0)] * 3
    assert of_kind(player.finish(launches[0].request), Launch)[0].engine == LOCAL, "what has room gets what waits"
    rest = of_kind(player.tell(WorkerLeft(worker=A)), Launch)
    assert len(rest) == 4
    assert player.scheduler.waiting == ()


def test_requests_are_held_back_for_a_worker_that_hangs_only_for_a_while_and_it_may_still_come():
    balance = BalanceSettings(num_slots=8, max_pending=0)
    player = ElasticPlayer(replace(SETTINGS, elastic=replace(ELASTIC, balance=balance, patience_s=2.0)))
    player.publish()
    player.tell(WorkerArrived(worker=A, num_engines=1))
    player.tell(EngineStarted(engine=member_of(A, 0)))
    assert len(of_kind(player.begin(0), Launch)) == 4
    assert [each.engine for each in of_kind(player.fire(f"{A} late"), Launch)] == [LOCAL] * 4
    assert player.now == 102.0
    player.now = 104.5
    player.tell(EngineUpdated(engine=member_of(A, 0), policy_version=1))
    assert player.scheduler.snapshot()["elastic"]["fleet"]["workers"][0]["stage"] == "serving"


def test_a_worker_whose_last_fetch_took_long_is_waited_for_twice_as_long():
    player = ElasticPlayer(replace(SETTINGS, elastic=replace(ELASTIC, fetch_s=50.0, patience_s=2.0)))
    player.publish()
    player.tell(WorkerArrived(worker=A, num_engines=1))
    assert SetTimer(timer=f"{A} late", at_s=102.0) in player.tell(EngineStarted(engine=member_of(A, 0)))
    player.now = 110.0
    player.tell(EngineUpdated(engine=member_of(A, 0), policy_version=1))
    assert SetTimer(timer=f"{A} late", at_s=130.0) in player.publish()


def test_a_worker_that_hangs_is_dismissed_although_a_newer_policy_is_published_before_its_deadline():
    player = ElasticPlayer(replace(SETTINGS, elastic=replace(ELASTIC, patience_s=2.0)))
    player.publish()
    player.tell(WorkerArrived(worker=A, num_engines=1))
    player.tell(EngineStarted(engine=member_of(A, 0)))
    player.fire(f"{A} late")
    ordered = player.publish()
    assert of_kind(ordered, FetchPolicy) == [FetchPolicy(engine=member_of(A, 0), policy_version=2)]
    assert not of_kind(ordered, SetTimer)
    assert not player.scheduler.snapshot()["elastic"]["fleet"]["workers"][0]["updated"]
    dismissed = player.fire(f"{A} fetch")
    assert player.now == 105.0
    assert [each.worker for each in of_kind(dismissed, DismissWorker)] == [A]


def test_lateness_at_a_fetch_is_not_that_of_the_fetch_before():
    player = ElasticPlayer(replace(SETTINGS, elastic=replace(ELASTIC, patience_s=4.0)))
    player.publish()
    player.tell(WorkerArrived(worker=A, num_engines=1))
    player.tell(EngineStarted(engine=member_of(A, 0)))
    player.now = 103.0
    player.tell(EngineUpdated(engine=member_of(A, 0), policy_version=1))
    assert SetTimer(timer=f"{A} late", at_s=108.0) in player.publish(), "twice 3 s is more than the 5 s of the deadline"


@pytest.mark.parametrize(
    "event",
    [
        WorkerLeft(worker=C),
        NoticeGiven(worker=A1, leaves_in_s=1.0),
        WorkerArrived(worker=WorkerId("nobody"), num_engines=1),
        WorkerArrived(worker=C, num_engines=0),
        EngineStarted(engine=member_of(A, 1)),
        EngineUpdated(engine=member_of(A1, 0), policy_version=1),
        PolicyPublished(policy_version=1),
        measured(0, rollout_s=-1.0, train_s=1.0),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_and_changes_nothing(event):
    player = ElasticPlayer()
    player.publish()
    player.tell(WorkerArrived(worker=A, num_engines=1))
    before = player.scheduler.snapshot()
    with pytest.raises(ImpossibleEvent):
        player.tell(event)
    assert player.scheduler.snapshot() == before


def test_a_run_without_workers_hears_of_none():
    player = Player(make_settings())
    with pytest.raises(ImpossibleEvent, match="without rollout workers"):
        player.tell(WorkerArrived(worker=A, num_engines=1))
