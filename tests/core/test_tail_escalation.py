"""The tail of a round goes on with larger engines: when, and what becomes of requests and engines."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rollpacker.core.commands import (
    BeginRound,
    EndRound,
    EscalateTail,
    Evict,
    FailWithoutEngines,
    Launch,
    LendEngines,
    MeasureProgress,
    SwitchEngines,
    UseDraftLengths,
    UseParallelism,
)
from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.events import (
    DraftPasses,
    DraftsMeasured,
    EngineJoined,
    EngineLost,
    EngineProgress,
    EngineRetired,
    EnginesSwitched,
    ProgressMeasured,
    ResponseEvicted,
    RoundMeasured,
    RunningRequest,
    SlotsOpened,
)
from rollpacker.core.ids import EngineId, RequestId
from rollpacker.core.round_time_model import DegreeCosts, Rest, rest_s
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import (
    ParallelismSettings,
    SchedulerSettings,
    SpeculativeDecodingSettings,
    StreamSettings,
)
from rollpacker.core.tail_escalation_settings import TailEscalationSettings
from tests.core.player import Player, make_settings, prompt

SMALL = DegreeCosts(
    degree=1,
    num_engines=4,
    max_num_seqs=8,
    kv_tokens=10**6,
    batch_sizes=(1.0, 8.0),
    pass_s=(1.0, 1.0),
    kv_read_s=0.0,
    prefill_s=0.0,
)
LARGE = replace(SMALL, degree=2, num_engines=2, pass_s=(0.5, 2.0))
ESCALATION = TailEscalationSettings(max_response_tokens=100, first_cost_s=5.0)


def settings_of(
    escalation: TailEscalationSettings = ESCALATION, costs: tuple[DegreeCosts, ...] = (SMALL, LARGE), **changes
) -> SchedulerSettings:
    planner = ParallelismSettings(degrees=(1, 2), initial=1, costs=costs, escalation=escalation)
    return make_settings(**{"batching": "plain", "parallelism": planner} | changes)


class Restored(Player):
    """Its scheduler is replaced by its own snapshot before every fact."""

    def tell(self, event):
        snapshot = json.loads(json.dumps(self.scheduler.snapshot()))
        self.scheduler = Scheduler.restore(self.settings, snapshot)
        return super().tell(event)


def requests_of(*keys: str, number: int = 0) -> list[RequestId]:
    return [RequestId(number, prompt(key), sample) for key in keys for sample in range(2)]


def half_done(player: Player, number: int = 0, num_tokens: int = 10) -> tuple:
    """Finish half of a round's 8 responses; gives what the last of them led to."""
    player.start(number)
    keys = [f"math-{4 * number + index}" for index in range(4)]
    commands: tuple = ()
    for request in requests_of(*keys[:2], number=number):
        commands = player.finish(request, num_tokens)
        player.reward(request)
    return commands


def progress_of(player: Player, num_tokens: int, number: int = 0) -> ProgressMeasured:
    """Everything in flight has so many tokens."""
    holders = player.scheduler._router.holders
    return ProgressMeasured(
        round=number,
        engines=tuple(
            EngineProgress(
                engine=engine,
                kv_tokens_capacity=10**6,
                running=tuple(
                    RunningRequest(request, 4, num_tokens) for request, holder in holders.items() if holder == engine
                ),
            )
            for engine in player.scheduler.engines
        ),
    )


def evict_all(player: Player, commands: tuple) -> tuple:
    """Answer each eviction; gives what the last answer led to."""
    answers: tuple = ()
    for order in [command for command in commands if isinstance(command, Evict)]:
        answers = player.tell(ResponseEvicted(request=order.request, engine=order.engine, num_tokens=10))
    return answers


def switch(player: Player, *engines: str, number: int = 0) -> list[RequestId]:
    """Let larger engines join and those of before retire; gives what was launched."""
    old = player.scheduler.engines
    for engine in engines:
        assert player.tell(EngineJoined(engine=EngineId(engine), policy_version=player.version)) == ()
    for engine in old:
        player.tell(EngineRetired(engine=engine))
    return [command.request for command in player.tell(EnginesSwitched(round=number)) if isinstance(command, Launch)]


@pytest.mark.parametrize("make", [Player, Restored])
def test_the_last_responses_go_on_with_larger_engines_and_the_next_round_begins_with_small_ones(make) -> None:
    player = make(settings_of(), num_engines=4)
    assert MeasureProgress(round=0) in half_done(player)
    commands = player.tell(progress_of(player, 20))
    left = requests_of("math-2", "math-3")
    assert commands[0] == EscalateTail(round=0, tensor_parallel=2)
    assert sorted(command.request for command in commands[1:]) == left
    assert evict_all(player, commands) == (SwitchEngines(round=0, tensor_parallel=2),)
    assert player.scheduler.waiting == tuple(command.request for command in commands[1:])
    player.now = 3.0
    assert sorted(switch(player, "large-0", "large-1")) == left
    assert sorted(player.engine_of[request] for request in left) == ["large-0"] * 2 + ["large-1"] * 2
    assert player.scheduler.engines == ("large-0", "large-1")
    for request in left:
        player.finish(request, 90)
        ended = player.reward(request)
    assert isinstance(ended[-1], EndRound)
    measured = RoundMeasured(round=0, num_preemptions=0, rollout_time_s=50.0, num_tokens=400)
    assert player.tell(measured) == (UseParallelism(tensor_parallel=1),)


def test_nothing_is_changed_for_what_ends_sooner_than_the_change() -> None:
    player = Player(settings_of(), num_engines=4)
    half_done(player, num_tokens=26)
    assert player.tell(progress_of(player, 20)) == (), "6 tokens are left, and the change takes 5 s"
    assert player.scheduler._router.open_engines == player.scheduler.engines


def test_nothing_is_changed_while_larger_engines_decode_the_batch_more_slowly() -> None:
    slow = replace(LARGE, pass_s=(0.9, 9.0))  # two on each of two engines take 2 s, where four engines take 1
    player = Player(settings_of(costs=(SMALL, slow)), num_engines=4)
    half_done(player)
    assert player.tell(progress_of(player, 20)) == ()


def test_a_race_is_never_measured_for_it() -> None:
    player = Player(settings_of(batching="tail"), num_engines=4)
    begin = next(command for command in player.start(0) if isinstance(command, BeginRound))
    assert begin.races
    for request in list(player.engine_of)[:-1]:
        if request in player.scheduler._router.holders:
            assert not any(isinstance(command, MeasureProgress) for command in player.finish(request))


def test_a_finish_instead_of_an_eviction_counts() -> None:
    player = Player(settings_of(), num_engines=4)
    half_done(player)
    *orders, last = player.tell(progress_of(player, 20))
    evict_all(player, tuple(orders))
    assert SwitchEngines(round=0, tensor_parallel=2) in player.finish(last.request, 30)
    assert last.request not in switch(player, "large-0", "large-1")


def test_an_engine_that_joins_meanwhile_gets_nothing_and_retires_with_the_others() -> None:
    player = Player(settings_of(), num_engines=4)
    half_done(player)
    *orders, last = player.tell(progress_of(player, 20))
    evict_all(player, tuple(orders))
    assert player.tell(EngineJoined(engine=EngineId("engine-1-r1"), policy_version=1)) == ()
    assert evict_all(player, (last,)) == (SwitchEngines(round=0, tensor_parallel=2),)
    assert len(switch(player, "large-0")) == 4


def test_engines_that_are_lost_on_the_way_are_no_reason_to_fail_while_others_are_to_come() -> None:
    player = Player(settings_of(), num_engines=4)
    player.tell(SlotsOpened(slots=tuple(map(EngineId, ("engine-0", "large-0")))))
    half_done(player)
    player.tell(progress_of(player, 20))
    engines = player.scheduler.engines
    for engine in engines[:-1]:
        assert player.tell(EngineLost(engine=engine)) == ()
    assert player.tell(EngineLost(engine=engines[-1])) == (SwitchEngines(round=0, tensor_parallel=2),)
    assert player.tell(EnginesSwitched(round=0)) == (FailWithoutEngines(),), "none of the larger ones came"


def test_the_cost_of_a_change_is_what_the_last_one_took() -> None:
    player = Player(settings_of(), num_engines=4)
    half_done(player)
    evict_all(player, player.tell(progress_of(player, 20)))
    player.now = 1000.0
    switch(player, "large-0", "large-1")
    for request in requests_of("math-2", "math-3"):
        player.finish(request, 90)
        player.reward(request)
    player.tell(RoundMeasured(round=0, num_preemptions=0, rollout_time_s=50.0, num_tokens=400))
    switch_back(player)
    half_done(player, number=1)
    assert player.tell(progress_of(player, 20, number=1)) == ()


def switch_back(player: Player) -> None:
    old = player.scheduler.engines
    for number in range(4):
        player.tell(EngineJoined(engine=EngineId(f"engine-{number}"), policy_version=player.version))
    for engine in old:
        player.tell(EngineRetired(engine=engine))


def test_what_drafts_gain_is_in_the_pace_of_a_round() -> None:
    player = Player(settings_of(), num_engines=4)
    half_done(player, num_tokens=20)
    player.now = 10.0
    machine = player.scheduler.beside.escalation
    assert machine is not None
    assert player.tell(progress_of(player, 10)) == (), "10 tokens are left: 10 s here and 5 s there"
    player.finish(requests_of("math-2")[0], 20)
    player.now = 18.0
    player.tell(progress_of(player, 12))
    assert machine._pace == 4.0, "2 tokens took 8 s"
    assert machine.is_emptying, "so 8 tokens take 32 s here and 16 s there"


def test_only_larger_engines_count_whose_gpus_are_not_lent() -> None:
    stream = StreamSettings(replicas=((0, 1), (2, 3)), max_response_tokens=100, first_share=ESCALATION.first_share / 4)
    escalation = replace(ESCALATION, gpus=((0, 1), (2, 3)))
    player = Player(settings_of(escalation, stream=stream))
    player.tell(EngineLost(engine=EngineId("engine-0")))
    for number in range(4):
        player.tell(EngineJoined(engine=EngineId(f"small-{number}"), policy_version=0, gpus=(number,)))
    player.start(0)
    first, *others = requests_of("math-0", "math-1", "math-2", "math-3")
    player.finish(first, 10)
    commands = player.tell(progress_of(player, 10))
    assert isinstance(commands[0], LendEngines)
    evict_all(player, commands)
    for request in others[:3]:
        commands = player.finish(request, 10)
    machine = player.scheduler.beside.escalation
    assert machine is not None
    assert machine._num_larger(player.scheduler._router.open_engines) == 1
    assert player.tell(progress_of(player, 20)) == (), "four on one larger engine are slower than two on each of two"
    assert MeasureProgress(round=0) in player.finish(others[3], 10)
    commands = player.tell(progress_of(player, 20))
    assert commands[0] == EscalateTail(round=0, tensor_parallel=2)
    assert evict_all(player, commands) == (SwitchEngines(round=0, tensor_parallel=2),)
    old = player.scheduler.engines
    player.tell(EngineJoined(engine=EngineId("large-0"), policy_version=1, gpus=(0, 1)))
    for engine in old:
        player.tell(EngineRetired(engine=engine))
    player.tell(EnginesSwitched(round=0))
    assert player.scheduler.engines == ("large-0",)


def test_draft_lengths_are_those_of_the_larger_degree_and_passes_count_for_their_own() -> None:
    drafts = SpeculativeDecodingSettings(max_sequences=1, lengths=(0, 1), num_trial_passes=1)
    player = Player(settings_of(speculative_decoding=drafts), num_engines=4)
    half_done(player)
    answers = evict_all(player, player.tell(progress_of(player, 20)))
    assert [type(each) for each in answers] == [UseDraftLengths, SwitchEngines]
    switch(player, "large-0", "large-1")
    for request in requests_of("math-2", "math-3"):
        player.finish(request, 90)
        player.reward(request)
    passes = (DraftPasses(1, 0, 10, 10, 0, 0, 10.0), DraftPasses(1, 1, 10, 10, 10, 10, 10.0))
    player.tell(DraftsMeasured(round=0, engine=EngineId("engine-0"), passes=passes))
    player.tell(RoundMeasured(round=0, num_preemptions=0, rollout_time_s=50.0, num_tokens=400))
    machine = player.scheduler.beside.drafts
    assert machine is not None
    assert machine._ranges[1][1].length == 1, "twice the tokens in the same time"
    assert machine._ranges[2][1].length == 0, "of which nothing was reported"


def test_a_change_that_nobody_ordered_is_impossible() -> None:
    player = Player(settings_of(), num_engines=4)
    half_done(player)
    with pytest.raises(ImpossibleEvent, match="not ordered"):
        player.tell(EnginesSwitched(round=0))


def test_what_is_left_is_prefilled_where_no_cache_is_and_decoded_to_the_end_of_the_longest() -> None:
    costs = replace(LARGE, prefill_s=0.25)
    assert rest_s(costs, [Rest(8, 10), Rest(4, 20)], 2) == (20 * 0.5, 4 * 0.25), "each on an engine of its own"
    assert rest_s(costs, [Rest(8, 10), Rest(4, 20)], 1) == (10 * costs.decode_s(2) + 10 * 0.5, 12 * 0.25)
