"""Examples of seeding: two engines on the trainer's GPUs, and a worker that is as fast as one of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollpacker.core.commands import (
    Evict,
    FailWithoutEngines,
    Launch,
    LendEngines,
    ReclaimEngines,
    RoundKind,
    StreamGroups,
    UseParallelism,
)
from rollpacker.core.elastic_settings import SeedingSettings
from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.events import (
    EngineJoined,
    EngineLost,
    EngineRetired,
    EnginesReturned,
    EngineUpdated,
    PolicyPublished,
    ResponseEvicted,
    RoundMeasured,
    StepMeasured,
    TimerFired,
    WorkerLeft,
)
from rollpacker.core.ids import EngineId, member_of
from rollpacker.core.seeding import Seeding
from rollpacker.core.settings import ParallelismSettings, StreamSettings
from tests.core.plans import begin_round
from tests.core.test_fleet import ELASTIC, LOCAL, SETTINGS, A, B, ElasticPlayer, of_kind

OTHER = EngineId("engine-1")
STREAM = StreamSettings(replicas=((0,), (1,)), max_response_tokens=100)
SEEDED = replace(SETTINGS, stream=STREAM, elastic=replace(ELASTIC, seeding=SeedingSettings(fixed_s=20.0)))


class SeedingPlayer(ElasticPlayer):
    def __init__(self, settings=SEEDED) -> None:
        super().__init__(settings)
        for gpu, engine in enumerate((LOCAL, OTHER)):
            self.tell(EngineJoined(engine=engine, policy_version=self.version, gpus=(gpu,)))

    def publish(self):
        self.version += 1
        commands = self.tell(PolicyPublished(policy_version=self.version))
        for engine in (LOCAL, OTHER):
            self.tell(EngineUpdated(engine=engine, policy_version=self.version))
        return commands

    def give_back(self, commands):
        """Engines give back what they were told to; gives what follows."""
        return [
            each
            for order in of_kind(commands, Evict)
            for each in self.tell(ResponseEvicted(request=order.request, engine=order.engine, num_tokens=1))
        ]


def lent_player() -> SeedingPlayer:
    """A round in which the engines are lent and empty."""
    player = SeedingPlayer()
    player.publish()
    player.serve(A)
    player.begin(0)
    player.give_back(player.fire("seeding of round 0"))
    return player


def test_when_the_window_is_over_all_engines_on_the_trainers_gpus_are_lent_and_groups_stream_when_they_are_empty():
    player = SeedingPlayer()
    player.publish()
    player.serve(A)
    player.begin(0)
    commands = player.fire("seeding of round 0")
    assert player.now == 120.0
    assert of_kind(commands, LendEngines) == [LendEngines(round=0, engines=(LOCAL, OTHER))]
    follow = player.give_back(commands)
    assert {each.engine for each in follow if isinstance(each, Launch)} == {member_of(A, 0)}
    assert follow[-1] == StreamGroups(round=0, engines=(LOCAL, OTHER), groups_per_call=None)


def test_without_a_worker_nothing_is_lent_until_one_serves():
    player = SeedingPlayer()
    player.publish()
    player.begin(0)
    assert not [timer for timer in player.scheduler.timers if timer.startswith("seeding")]
    player.now = 130.0
    player.serve(A)
    assert of_kind(player.fire("seeding of round 0"), LendEngines)
    assert player.now == 130.0, "the window is over already"


def test_lent_engines_are_taken_back_when_no_worker_has_served_for_a_while():
    player = lent_player()
    player.tell(WorkerLeft(worker=A))
    assert player.scheduler.waiting
    assert player.fire("reclaim of round 0") == (ReclaimEngines(round=0, engines=(LOCAL, OTHER)),)
    assert player.now == 135.0
    launches = of_kind(player.tell(EnginesReturned(round=0, engines=(LOCAL, OTHER))), Launch)
    assert len(launches) == 8
    assert player.scheduler.waiting == ()
    player.serve(B)
    assert of_kind(player.tell(EnginesReturned(round=0, engines=(LOCAL,))), Launch) == [], "late"


def test_engines_that_have_not_left_their_gpus_when_they_should_come_back_just_stay():
    player = SeedingPlayer()
    player.publish()
    player.serve(A)
    player.begin(0)
    commands = player.fire("seeding of round 0")
    player.tell(WorkerLeft(worker=A))
    assert player.fire("reclaim of round 0") == (ReclaimEngines(round=0, engines=(LOCAL, OTHER)),)
    assert player.give_back(commands) == [], "groups do not stream"
    follow = player.tell(EnginesReturned(round=0, engines=()))
    assert [type(each) for each in follow] == [Launch] * 8
    assert player.scheduler.waiting == ()


def test_the_run_fails_if_none_of_the_lent_engines_comes_back_and_none_can_be_replaced():
    player = lent_player()
    player.tell(WorkerLeft(worker=A))
    player.fire("reclaim of round 0")
    lost = [*player.tell(EngineLost(engine=LOCAL)), *player.tell(EngineLost(engine=OTHER))]
    assert lost == [], "they might come back"
    assert player.tell(EnginesReturned(round=0, engines=())) == (FailWithoutEngines(),)


def test_of_engines_that_share_gpus_with_the_trainer_only_whole_parts_of_it_are_lent():
    alone, stream = EngineId("engine-2"), replace(STREAM, replicas=((0, 1),))
    player = SeedingPlayer(replace(SEEDED, stream=stream))
    player.tell(EngineJoined(engine=alone, policy_version=player.version, gpus=(2,)))
    player.publish()
    player.tell(EngineUpdated(engine=alone, policy_version=player.version))
    player.serve(A)
    player.begin(0)
    player.tell(EngineLost(engine=OTHER))
    assert of_kind(player.fire("seeding of round 0"), LendEngines) == [], "a trainer cannot work on half of its GPUs"
    follow = player.tell(EngineJoined(engine=OTHER, policy_version=player.version, gpus=(1,)))
    assert of_kind(follow, LendEngines) == [LendEngines(round=0, engines=(LOCAL, OTHER))]


def test_a_worker_that_serves_in_time_keeps_the_engines_lent():
    player = lent_player()
    player.tell(WorkerLeft(worker=A))
    launches = of_kind(player.serve(B), Launch)
    assert len(launches) == 8
    assert player.fire("reclaim of round 0") == ()


def test_engines_are_not_returned_that_were_not_lent():
    player = SeedingPlayer()
    player.publish()
    player.begin(0)
    with pytest.raises(ImpossibleEvent, match="was not ordered"):
        player.tell(EnginesReturned(round=0, engines=(LOCAL,)))


def measured(step: int, *, trainer_idle_s: float, fleet_idle_s: float) -> StepMeasured:
    return StepMeasured(
        step=step,
        train_s=130.0,
        trainer_idle_s=trainer_idle_s,
        fleet_idle_s=fleet_idle_s,
        local_engine_s=1080.0,
        member_engine_s=0.0,
        local_tokens=1,
        member_tokens=0,
    )


LEARNING = SeedingSettings()


def trained(num_workers: int, settings: SeedingSettings = LEARNING, **waits: float) -> Seeding:
    """A machine after one step of PolyRL's 8B setup, and one more with these waits."""
    machine = Seeding(settings)
    machine.count(num_workers, 1.0, 4, 0.0)
    machine.begin_round(begin_round(0, RoundKind.PLAIN))
    machine.measure(measured(0, trainer_idle_s=0.0, fleet_idle_s=0.0), 1080.0, 1.0, 4)
    if waits:
        machine.begin_round(begin_round(1, RoundKind.PLAIN))
        machine.count(num_workers, 1.0, 4, 0.0)
        machine.measure(measured(1, **waits), 1080.0, 1.0, 4)
    return machine


@pytest.mark.parametrize(("num_workers", "window_s"), [(1, 190), (2, 137), (3, 99), (4, 70), (9, 0)])
def test_the_first_guess_is_about_what_polyrl_has_in_its_table(num_workers, window_s):
    """190, 160, 105 and 70 s with 1 to 4 workers."""
    assert round(trained(1).window_s(num_workers, 1.0, 4)) == window_s


def test_a_step_corrects_the_window_of_its_number_of_workers_by_a_third_of_the_difference_of_two_waits_at_their_worth():
    machine = trained(2, trainer_idle_s=30.0, fleet_idle_s=0.0)
    assert round(machine.window_s(2, 1.0, 4)) == 157
    assert round(machine.window_s(3, 1.0, 4)) == 99
    assert round(trained(2, trainer_idle_s=0.0, fleet_idle_s=900.0).window_s(2, 1.0, 4)) == 0


def test_without_a_memory_the_last_window_stays_when_the_number_of_workers_changes():
    machine = trained(2, SeedingSettings(remembers=False), trainer_idle_s=30.0, fleet_idle_s=0.0)
    assert [round(machine.window_s(number, 1.0, 4)) for number in (1, 2, 3)] == [157, 157, 157]


def lent_to_six() -> Seeding:
    """PolyRL's 8B setup, 1080 engine-seconds of rollout and 130 s of training: lent at once."""
    machine = trained(6)
    machine.begin_round(begin_round(1, RoundKind.PLAIN))
    machine.count(6, 1.0, 4, 0.0)
    machine.fire(TimerFired(timer="seeding of round 1"))
    assert machine.lend((LOCAL,), 1), "as soon as the first one serves"
    assert machine.watch(6, 6, 1.0, 4, 60.0) == ()
    return machine


def test_lent_engines_are_taken_back_when_the_workers_that_are_left_would_take_longer_than_the_training_spared():
    machine = lent_to_six()
    assert machine.watch(4, 4, 1.0, 4, 60.0) == (), "720 engine-seconds: 180 s on four, 90 s on eight"
    (timer,) = machine.watch(2, 2, 1.0, 4, 60.0)
    assert (timer.timer, timer.at_s) == ("reclaim of round 1", 75.0)
    assert machine.fire(TimerFired(timer=timer.timer)) == (ReclaimEngines(round=1, engines=(LOCAL,)),)


def test_workers_that_come_back_in_time_keep_the_engines_lent():
    machine = lent_to_six()
    (timer,) = machine.watch(2, 2, 1.0, 4, 60.0)
    assert machine.watch(2, 4, 1.0, 4, 65.0) == (), "two more are about to serve"
    assert machine.fire(TimerFired(timer=timer.timer)) == ()


def test_a_step_in_which_a_worker_came_or_went_corrects_nothing():
    machine = trained(2)
    machine.begin_round(begin_round(1, RoundKind.PLAIN))
    machine.count(2, 1.0, 4, 0.0)
    machine.count(1, 1.0, 4, 5.0)
    machine.measure(measured(1, trainer_idle_s=30.0, fleet_idle_s=0.0), 1080.0, 1.0, 4)
    assert round(machine.window_s(1, 1.0, 4)) == 190


def test_a_window_stays_when_one_engine_of_twice_the_gpus_takes_the_place_of_two():
    planning = ParallelismSettings(degrees=(1, 2), initial=1)
    player = SeedingPlayer(replace(SEEDED, elastic=replace(ELASTIC, seeding=LEARNING), parallelism=planning))
    player.publish()
    player.serve(A)
    for step in range(2):
        player.begin(step)
        for number in range(4):
            player.complete(step, f"math-{4 * step + number}", 0, 1)
        preempted = RoundMeasured(round=step, num_preemptions=100 * step + 1, rollout_time_s=1.0, num_tokens=9)
        change = player.tell(preempted)
        if not change:
            player.tell(measured(step, trainer_idle_s=0.0, fleet_idle_s=0.0))
            player.publish()
            player.tell(EngineUpdated(engine=member_of(A, 0), policy_version=player.version))
    assert of_kind(change, UseParallelism) == [UseParallelism(tensor_parallel=2)]
    player.tell(EngineJoined(engine=EngineId("wide"), policy_version=player.version, gpus=(0, 1)))
    for engine in (LOCAL, OTHER):
        player.tell(EngineRetired(engine=engine))
    player.tell(measured(1, trainer_idle_s=0.0, fleet_idle_s=0.0))
    player.serve(B)
    player.begin(2)
    assert player.scheduler.timers["seeding of round 2"] - player.now == (1080.0 - 2 * 130.0) / (2 + 2)


def test_a_window_that_moves_later_is_open_again_though_its_earlier_end_has_come():
    machine = trained(4)
    machine.begin_round(begin_round(1, RoundKind.PLAIN))
    (first,) = machine.count(4, 1.0, 4, 0.0)
    machine.fire(TimerFired(timer=first.timer))
    assert machine.lend((LOCAL,), 0) == (), "none of the four serves yet"
    (second,) = machine.count(1, 1.0, 4, first.at_s)
    assert second.at_s > first.at_s
    assert machine.lend((LOCAL,), 1) == ()
    machine.fire(TimerFired(timer=second.timer))
    assert machine.lend((LOCAL,), 1) == (LOCAL,)
