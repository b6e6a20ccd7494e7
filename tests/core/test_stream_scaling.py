"""Examples of stream scaling: 4 engines of one GPU each, 2 training replicas of two."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from rollpacker.core.commands import (
    Abort,
    AcceptGroup,
    BeginRound,
    Command,
    Evict,
    FailWithoutEngines,
    Launch,
    LendEngines,
    MeasureProgress,
    RoundKind,
    ScoreResponse,
    StreamGroups,
)
from rollpacker.core.environment_events import EnvironmentStepped, TurnFinished
from rollpacker.core.errors import InvariantViolated
from rollpacker.core.events import (
    EngineJoined,
    EngineLost,
    EngineProgress,
    ProgressMeasured,
    ResponseAborted,
    ResponseEvicted,
    RunningRequest,
    SlotsOpened,
    SlotVacated,
)
from rollpacker.core.ids import EngineId, RequestId, VersionSpan
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import StreamSettings
from rollpacker.core.stream_scaling import StreamScaling, can_lend
from tests.core.player import Player, begun, make_settings, prompt
from tests.core.turns import RULES

ENGINES = E0, E1, E2, E3 = tuple(EngineId(f"engine-{number}") for number in range(4))


class StreamPlayer(Player):
    """A short round of 10 prompts with 2 responses each, of which 5 prompts are needed."""

    def __init__(self, **changes: Any) -> None:
        stream = StreamSettings(replicas=((0, 1), (2, 3)), max_response_tokens=100)
        shape = {"num_prompts": 5, "eta_prompts": Fraction(2), "eta_responses": Fraction(1)}
        super().__init__(make_settings(**{"stream": stream, **shape, **changes}), num_engines=0)
        for number, engine in enumerate(ENGINES):
            self.tell(EngineJoined(engine=engine, policy_version=self.version, gpus=(number,)))
        self.beginning = self.start(0)

    def running(self, engine: EngineId) -> list[RequestId]:
        return [request for request, holder in self.scheduler._router.holders.items() if holder == engine]

    def measure(self, kv_tokens_capacity: int = 10_000, generated: int = 4) -> tuple[Command, ...]:
        """Measure now; the second two engines are further than the first two."""
        return self.tell(
            ProgressMeasured(
                round=0,
                engines=tuple(
                    EngineProgress(
                        engine,
                        kv_tokens_capacity,
                        tuple(
                            RunningRequest(request, 10, generated if engine in {E0, E1} else 3 * generated)
                            for request in self.running(engine)
                        ),
                    )
                    for engine in ENGINES
                ),
            )
        )

    def lend(self) -> tuple[Command, ...]:
        for key in ("math-0", "math-2"):
            for sample in (0, 1):
                self.finish(RequestId(0, prompt(key), sample))
        return self.measure()

    def evicted(self, request: RequestId, engine: EngineId) -> tuple[Command, ...]:
        return self.tell(ResponseEvicted(request=request, engine=engine, num_tokens=4))


def test_progress_is_measured_at_a_fifth_and_then_at_each_twentieth_of_the_launches() -> None:
    player = StreamPlayer()
    orders = []
    for number in range(10):
        request = RequestId(0, prompt(f"math-{number}"), 0)
        if MeasureProgress(round=0) in player.finish(request):
            orders.append(number + 1)
            assert player.measure(kv_tokens_capacity=1) == ()
    assert orders == [4, 5, 6, 7, 8, 9, 10], "of 20, until half is finished"
    assert MeasureProgress(round=0) not in player.finish(RequestId(0, prompt("math-0"), 1))


def test_the_half_with_the_fewest_tokens_to_move_is_lent_and_told_to_let_go() -> None:
    player = StreamPlayer()
    commands = player.lend()
    on_lent = [(request, engine) for engine in (E0, E1) for request in player.running(engine)]
    assert commands == (
        LendEngines(round=0, engines=(E0, E1)),
        *(Evict(request=request, engine=engine) for request, engine in on_lent),
    )
    request = player.running(E0)[0]
    assert player.evicted(request, E0) == (Launch(request=request, engine=E2),)
    assert player.evicted(request, E0) == (), "told twice"
    assert [command for command in player.finish(player.running(E1)[0]) if isinstance(command, Launch)] == []


def test_nothing_is_lent_when_the_rest_cannot_hold_what_is_expected() -> None:
    player = StreamPlayer()
    for key in ("math-0", "math-2"):
        for sample in (0, 1):
            player.finish(RequestId(0, prompt(key), sample))
    # 16 requests run; none of the 4 finished ones was longer than 5 tokens, so each is expected at the cap: 10 + 100
    assert player.measure(kv_tokens_capacity=16 * 110 // 2 - 1, generated=5) == ()
    player.finish(RequestId(0, prompt("math-4"), 0))
    # 15 run, and two engines would remain
    assert player.measure(kv_tokens_capacity=15 * 110 // 2, generated=5)


@pytest.mark.parametrize(("kv_tokens_capacity", "num_lendings"), [(8 * 110 // 2 - 1, 0), (8 * 110 // 2, 1)])
def test_the_rest_has_to_hold_trajectories_whose_environments_act_too(
    kv_tokens_capacity: int, num_lendings: int
) -> None:
    player = StreamPlayer(batching="plain", environment=replace(RULES, max_open=10))
    requests = [RequestId(0, prompt(f"math-{number}"), sample) for number in range(5) for sample in (0, 1)]

    def answer(request: RequestId, call: int, *, is_done: bool = False) -> tuple[Command, ...]:
        return player.tell(EnvironmentStepped(request=request, call=call, num_tokens_left=9, is_done=is_done))

    for request in requests:
        answer(request, 0)
    for request in requests[:6]:
        spans = (VersionSpan(player.version, 5),)
        player.tell(TurnFinished(request=request, engine=player.engine_of[request], num_tokens=5, spans=spans))
    for request in requests[:2]:
        ordered = answer(request, 1, is_done=True)
    assert MeasureProgress(round=0) in ordered
    # 4 of 8 are on engines; all 8 are expected at the cap: no finished one was longer than 5 tokens
    lent = player.measure(kv_tokens_capacity=kv_tokens_capacity, generated=5)
    assert sum(isinstance(command, LendEngines) for command in lent) == num_lendings


def test_at_a_fixed_share_engines_are_lent_whether_or_not_the_rest_can_hold_what_runs() -> None:
    fixed = StreamSettings(
        replicas=((0, 1), (2, 3)), max_response_tokens=100, first_share=Fraction(3, 10), must_fit=False
    )
    player = StreamPlayer(stream=fixed)
    for number in range(6):
        ordered = player.finish(RequestId(0, prompt(f"math-{number}"), 0))
        assert (MeasureProgress(round=0) in ordered) == (number == 5), "6 of 20"
    [lending, *_] = player.measure(kv_tokens_capacity=0)
    assert lending == LendEngines(round=0, engines=(E0, E1))


@pytest.mark.parametrize("share", [Fraction(13, 20), Fraction(11, 16), Fraction(7, 9), Fraction(1)])
@pytest.mark.parametrize("num_prompts", [3, 10])
def test_every_fixed_share_is_met_at_the_first_finish_that_reaches_it(share: Fraction, num_prompts: int) -> None:
    machine, num_requests = fixed_at(share, num_prompts), 2 * num_prompts
    orders = [bool(machine.count_finish(10)) for _ in range(num_requests)]
    assert orders.index(True) + 1 == math.ceil(share * num_requests)


def fixed_at(share: Fraction, num_prompts: int) -> StreamScaling:
    """A round of prompts with 2 responses each, in which engines are lent at a share."""
    settings = StreamSettings(
        replicas=((0,), (1,)), max_response_tokens=100, first_share=share, last_share=share, must_fit=False
    )
    machine = StreamScaling(settings)
    for number, engine in enumerate((E0, E1)):
        machine.join(engine, (number,))
    machine.begin_round(
        BeginRound(
            round=0,
            step=0,
            kind=RoundKind.PLAIN,
            num_prompts_launched=num_prompts,
            num_prompts_needed=num_prompts,
            num_responses_launched=2,
            num_responses_needed=2,
        )
    )
    return machine


def test_no_replica_is_split_and_no_engine_without_gpus_is_lent() -> None:
    for replicas in (((0, 1, 2, 3),), ((4, 5),)):
        player = StreamPlayer(stream=StreamSettings(replicas=replicas, max_response_tokens=100))
        orders = [player.finish(RequestId(0, prompt(f"math-{number}"), 0)) for number in range(10)]
        assert not any(isinstance(order, MeasureProgress) for given in orders for order in given)


def test_a_trainer_that_shares_no_gpu_streams_from_the_beginning_of_every_round_and_nobody_is_lent() -> None:
    player = StreamPlayer(stream=StreamSettings(replicas=(), max_response_tokens=100))
    assert player.beginning.index(StreamGroups(round=0)) == 1 + player.beginning.index(begun(player.beginning))
    orders = [player.finish(RequestId(0, prompt(f"math-{number}"), 0)) for number in range(10)]
    assert not any(isinstance(command, MeasureProgress | LendEngines) for given in orders for command in given)
    last = RequestId(0, prompt("math-0"), 1)
    assert player.finish(last) == (ScoreResponse(request=last),)


@pytest.mark.parametrize(
    ("replicas", "engines", "is_possible"),
    [
        ((), [(0,), (1,)], False),
        (((0,), (1,)), [(0,), (1,)], True),
        (((0, 1),), [(0,), (1,)], False),
        (((2, 3),), [(0,), (1,), (2,), (3,)], True),
        (((0,),), [(0,), (1,)], True),
        (((0,), (1,)), [(0, 1)], False),
        (((0,), (1,)), [(), ()], False),
    ],
)
def test_it_is_known_beforehand_whether_any_engine_can_ever_be_lent(
    replicas: tuple[tuple[int, ...], ...], engines: list[tuple[int, ...]], is_possible: bool
) -> None:
    settings = StreamSettings(replicas=replicas, max_response_tokens=100)
    assert (
        can_lend(settings, {EngineId(f"engine-{number}"): gpus for number, gpus in enumerate(engines)}) == is_possible
    )


def test_what_is_aborted_while_it_leaves_is_not_launched_again() -> None:
    player = StreamPlayer(eta_responses=Fraction(3, 2))
    for number in range(6):
        player.finish(RequestId(0, prompt(f"math-{number}"), 0))
    assert player.measure()
    leaving = next(r for e in (E0, E1) for r in player.running(e) if r.prompt.key in {"math-1", "math-2"})
    others = [RequestId(0, leaving.prompt, sample) for sample in range(3) if sample != leaving.sample]
    for other in others[1:] if others[0].sample == 0 else others:
        player.finish(other)
    player.reward(others[0])
    commands = player.reward(others[1])
    assert isinstance(commands[0], AcceptGroup)
    assert Abort(request=leaving, engine=player.engine_of[leaving]) in commands
    assert player.evicted(leaving, player.engine_of[leaving]) == ()
    before = player.scheduler.snapshot()
    late_abort = ResponseAborted(request=leaving, engine=player.engine_of[leaving], num_tokens=4)
    assert player.tell(late_abort) == ()
    assert player.scheduler.snapshot() == before


SINGLE = StreamSettings(replicas=((0,), (1,), (2,), (3,)), max_response_tokens=100)


def test_a_lent_engine_that_is_lost_leaves_its_requests_to_the_others_and_stays_lent_when_it_comes_back() -> None:
    player = StreamPlayer(stream=SINGLE)
    player.lend()
    orphans = player.running(E0)
    launches = player.tell(EngineLost(engine=E0))
    assert [command.request for command in launches if isinstance(command, Launch)] == orphans
    assert player.evicted(orphans[0], E0) == (), "it has moved already"
    assert player.tell(EngineJoined(engine=E0, policy_version=player.version, gpus=(0,))) == ()
    leaving = player.running(E1)
    for request in leaving:
        launch, *streaming = player.evicted(request, E1)
        assert streaming == [StreamGroups(round=0, engines=(E1,), groups_per_call=1)][: request == leaving[-1]]
        assert isinstance(launch, Launch)
        assert launch.engine in {E2, E3}


@pytest.mark.parametrize("change", ["lost", "restarted"])
def test_engines_that_share_a_replica_with_one_that_is_lost_before_they_are_empty_go_on_serving(change: str) -> None:
    player = StreamPlayer()
    player.lend()
    leaving = player.running(E1)
    joining = EngineJoined(engine=E0, policy_version=player.version, gpus=(0,))
    launches = player.tell(EngineLost(engine=E0) if change == "lost" else joining)
    assert {command.engine for command in launches if isinstance(command, Launch)} == {E1}, "it has the fewest"
    for request in leaving:
        (launch,) = player.evicted(request, E1)
        assert isinstance(launch, Launch), "no groups stream: the trainer could not work on what is left"
    assert not player.scheduler.beside.awaits_empty_engines
    restored = Scheduler.restore(player.settings, player.scheduler.snapshot())
    assert restored.snapshot() == player.scheduler.snapshot()


def test_what_waited_goes_to_an_engine_that_is_not_lent_after_all() -> None:
    player = StreamPlayer()
    player.lend()
    for engine in (E2, E3):
        player.tell(EngineLost(engine=engine))
    waiting, orphans = list(player.scheduler.waiting), player.running(E0)
    assert waiting
    launches = player.tell(EngineLost(engine=E0))
    assert launches == tuple(Launch(request=request, engine=E1) for request in [*waiting, *orphans])


def test_what_no_engine_runs_but_the_lent_ones_waits_for_one_that_joins() -> None:
    player = StreamPlayer()
    player.lend()
    moved = player.running(E0)[0]
    player.evicted(moved, E0)
    player.tell(EngineLost(engine=E2))
    waiting = [*player.running(E3)]
    assert player.tell(EngineLost(engine=E3)) == ()
    also_waiting = player.running(E0)[0]
    assert player.evicted(also_waiting, E0) == (), "the lent engines take nothing"
    launches = player.tell(EngineJoined(engine=EngineId("engine-2-r1"), policy_version=player.version, gpus=(2,)))
    assert [command.request for command in launches if isinstance(command, Launch)] == [*waiting, also_waiting]


def test_the_next_step_has_all_engines_again() -> None:
    player = StreamPlayer()
    player.lend()
    for engine in (E0, E1):
        for request in player.running(engine):
            player.evicted(request, engine)
    for number in (0, 2, 4, 6, 8):
        for sample in (0, 1):
            request = RequestId(0, prompt(f"math-{number}"), sample)
            if request in player.scheduler._router.holders:
                player.finish(request)
            player.reward(request)
    launches = player.start(1)
    assert {command.engine for command in launches if isinstance(command, Launch)} == set(ENGINES)


def test_what_a_lent_engine_gives_back_ends_a_run_whose_other_engines_are_lost_for_good() -> None:
    player = StreamPlayer()
    player.tell(SlotsOpened(slots=ENGINES, are_replaceable=False))
    player.lend()
    for request in [*player.running(E2), *player.running(E3)]:
        player.finish(request)
    for engine in (E2, E3):
        assert player.tell(SlotVacated(engine=engine)) + player.tell(EngineLost(engine=engine)) == (), (
            "nothing waits yet"
        )
    assert player.evicted(player.running(E0)[0], E0) == (FailWithoutEngines(),)


def test_a_response_that_is_counted_twice_is_found_in_a_round_without_dropped_prompts() -> None:
    player = StreamPlayer()
    stream = player.scheduler._beside.stream
    stream.check(ENGINES)
    for _ in range(21):
        stream.count_finish(5)
    with pytest.raises(InvariantViolated, match="contradicts itself"):
        stream.check(ENGINES)
    stream._has_dropped = True
    stream.count_finish(5)
    stream.check(ENGINES)
