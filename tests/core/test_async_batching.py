"""Examples of asynchronous batching; what holds in every world is in test_properties.py."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from typing import Literal

import pytest

from rollpacker.core.commands import BeginRound, DropPrompt, EndRound, EndRun, Evict, Launch, RoundKind
from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.events import (
    EngineLost,
    EngineUpdated,
    EvaluationOffered,
    PolicyUpdated,
    ResponseEvicted,
    ResponseFinished,
    RewardComputed,
    StepStarted,
)
from rollpacker.core.ids import RequestId, VersionSpan
from rollpacker.core.settings import (
    AsyncSettings,
    DynamicSamplingSettings,
    EvaluationSettings,
    HeldOutSet,
    SchedulerSettings,
)
from tests.core.player import Player, accepted, begun, launched, make_settings, prompt


def make_async(
    bound: int,
    lead: Fraction | int,
    *,
    num_steps: int = 100,
    order: Literal["ready", "fifo"] = "ready",
    is_dynamic: bool = False,
    interrupt: Literal["recompute", "keep"] = "recompute",
) -> SchedulerSettings:
    rules = AsyncSettings(
        max_staleness=bound, lookahead=Fraction(lead), num_steps=num_steps, order=order, interrupt=interrupt
    )
    sampling = DynamicSamplingSettings() if is_dynamic else None
    return make_settings(batching="plain", asynchronous=rules, dynamic_sampling=sampling)


def test_prompts_are_admitted_ahead_by_the_lead_and_a_batch_at_each_step() -> None:
    player = Player(make_async(2, Fraction(1, 2)))
    commands = player.start(0)
    assert begun(commands).kind is RoundKind.ASYNC
    assert (begun(commands).num_prompts_launched, begun(commands).num_prompts_needed) == (6, 4)
    for number in (5, 1, 2):
        assert accepted(player.complete(0, f"math-{number}", 0, 1)) == [f"math-{number}"]
    end = player.complete(0, "math-4", 0, 1)[-1]
    assert end == EndRound(
        round=0, step=0, prompts=tuple(prompt(f"math-{n}") for n in (1, 2, 4, 5)), long_queue_length=0
    )
    player.update(0)
    assert begun(player.start(1)).num_prompts_launched == 4


def test_what_is_due_is_waited_for_and_anything_else_may_overtake_it() -> None:
    player = Player(make_async(1, 1))
    player.start(0)  # 8 prompts
    for number in (4, 5, 6, 7):
        player.complete(0, f"math-{number}", 0, 1)
    player.update(0)
    player.start(1)  # 4 prompts of step 0 are due in this step: the 4 new ones wait
    for number in (8, 9, 10, 11):
        assert accepted(player.complete(1, f"math-{number}", 0, 1)) == []
    for number in (3, 2, 1):
        assert accepted(player.complete(0, f"math-{number}", 0, 1)) == [f"math-{number}"]
    assert player.complete(0, "math-0", 0, 1)[-1].prompts == tuple(prompt(f"math-{n}") for n in range(4))  # type: ignore[union-attr]
    player.update(1)
    assert accepted(player.start(2)) == ["math-8", "math-9", "math-10", "math-11"]


def test_what_is_in_flight_goes_on_after_the_update_ahead_of_what_is_new() -> None:
    player = Player(make_async(1, Fraction(1, 4)), num_engines=2)
    player.start(0)
    player.finish(RequestId(0, prompt("math-0"), 0))
    for number in (1, 2, 3, 4):
        player.complete(0, f"math-{number}", 0, 1)
    suspended = player.update(0)
    assert suspended == [RequestId(0, prompt("math-0"), 1)]
    assert player.scheduler.waiting == tuple(suspended)
    assert launched(player.resume(1)) == ["math-0", "math-5", "math-6", "math-7", "math-8"]


def test_nothing_is_launched_while_engines_are_suspended_but_what_is_held_out() -> None:
    player = Player(make_async(1, Fraction(1, 4), is_dynamic=True))
    player.start(0)
    last = RequestId(0, prompt("math-4"), 1)
    player.finish(last)
    for number in range(4):
        for sample in (0, 1):
            player.finish(RequestId(0, prompt(f"math-{number}"), sample))
            player.tell(RewardComputed(request=RequestId(0, prompt(f"math-{number}"), sample), reward=float(sample)))
    player.finish(RequestId(0, prompt("math-4"), 0))
    player.update(0)
    player.reward(last)
    dropping = player.settle(player.reward(RequestId(0, prompt("math-4"), 0)))
    assert dropping[0] == DropPrompt(round=0, prompt=prompt("math-4"))
    assert launched(dropping) == []
    assert launched(player.resume(1))[0] == "math-5"


def test_the_run_admits_no_more_than_its_steps_train() -> None:
    player = Player(make_async(2, 2, num_steps=2))
    assert begun(player.start(0)).num_prompts_launched == 8
    for number in range(4):
        player.complete(0, f"math-{number}", 0, 1)
    player.update(0)
    assert begun(player.start(1)).num_prompts_launched == 0


def test_the_last_batch_of_finite_data_may_be_smaller() -> None:
    player = Player(make_async(2, 1), num_prompts=6)
    assert begun(player.start(0)).num_prompts_launched == 6
    for number in (5, 4, 3, 2):
        player.complete(0, f"math-{number}", 0, 1)
    player.update(0)
    assert begun(player.start(1)).num_prompts_needed == 2
    player.complete(0, "math-0", 0, 1)
    assert player.complete(0, "math-1", 0, 1)[-1].prompts == (prompt("math-0"), prompt("math-1"))  # type: ignore[union-attr]
    player.update(1)
    assert player.start(2) == (EndRun(),)


def test_a_response_may_not_hold_tokens_of_a_policy_before_its_admission() -> None:
    player = Player(make_async(1, 1))
    player.start(0)
    request = RequestId(0, prompt("math-0"), 0)
    spans = (VersionSpan(0, 3), VersionSpan(1, 2))
    early = ResponseFinished(request=request, engine=player.engine_of[request], num_tokens=5, spans=spans)
    with pytest.raises(ImpossibleEvent, match="policy versions"):
        player.tell(early)


def test_no_step_starts_before_every_engine_has_given_back_what_it_had() -> None:
    player = Player(make_async(1, Fraction(1, 4)))
    player.start(0)
    for number in (1, 2, 3, 4):
        player.complete(0, f"math-{number}", 0, 1)
    player.tell(PolicyUpdated(step=0, policy_version=2))
    with pytest.raises(ImpossibleEvent):
        player.scheduler.handle(StepStarted(step=1, policy_version=1), 0.0)
    with pytest.raises(ImpossibleEvent):
        player.tell(PolicyUpdated(step=0, policy_version=2))
    with pytest.raises(ImpossibleEvent):  # no held-out sets
        player.tell(EvaluationOffered(step=1, policy_version=1, is_last=False))


def test_without_bound_and_lead_the_commands_are_those_of_plain_batching() -> None:
    rng = random.Random(0)
    players = [Player(make_settings(batching="plain"), num_engines=3), Player(make_async(0, 0), num_engines=3)]

    def told(plain: tuple[object, ...], asynchronous: tuple[object, ...]) -> None:
        as_plain = [
            replace(command, kind=RoundKind.PLAIN) if isinstance(command, BeginRound) else command
            for command in asynchronous
        ]
        assert list(plain) == as_plain

    for step in range(5):
        told(*(player.start(step) for player in players))
        todo = [RequestId(step, prompt(f"math-{4 * step + n}"), sample) for n in range(4) for sample in (0, 1)]
        rng.shuffle(todo)
        for request in todo:
            told(*(player.finish(request) for player in players))
            told(*(player.reward(request) for player in players))
        assert players[1].update(step) == []


def test_engines_that_keep_requests_take_new_weights_with_them_and_finish_them_under_either_version() -> None:
    player = Player(make_async(1, 1, interrupt="keep"))
    player.start(0)  # 8 prompts
    for number in range(4):
        player.complete(0, f"math-{number}", 0, 1)
    early, late = (RequestId(0, prompt("math-4"), sample) for sample in (0, 1))
    too_new = ResponseFinished(request=early, engine=player.engine_of[early], num_tokens=1, spans=(VersionSpan(2, 1),))
    with pytest.raises(ImpossibleEvent, match="engines hold 1 at most"):
        player.tell(too_new)
    assert player.tell(PolicyUpdated(step=0, policy_version=2)) == ()
    for engine in player.scheduler.engines:
        player.tell(EngineUpdated(engine=engine, policy_version=2))
    player.tell(too_new)
    assert launched(player.start(1)) == [f"math-{number}" for number in (8, 9, 10, 11)]
    spans = (VersionSpan(1, 3), VersionSpan(2, 1))
    player.tell(ResponseFinished(request=late, engine=player.engine_of[late], num_tokens=4, spans=spans))
    player.reward(early)
    assert accepted(player.reward(late)) == ["math-4"]


def test_what_is_kept_and_loses_its_engine_waits_for_the_next_step() -> None:
    player = Player(make_async(1, 1, interrupt="keep"), num_engines=2)
    player.start(0)
    for number in range(4):
        player.complete(0, f"math-{number}", 0, 1)
    player.tell(PolicyUpdated(step=0, policy_version=2))
    lost = player.engine_of[RequestId(0, prompt("math-4"), 0)]
    orphans = sorted(
        request for request, engine in player.engine_of.items() if engine == lost and request.prompt.key > "math-3"
    )
    assert player.tell(EngineLost(engine=lost)) == ()
    commands = player.resume(1)
    assert [command.request for command in commands if isinstance(command, Launch)][: len(orphans)] == orphans


@pytest.mark.parametrize("is_saved", [True, False])
def test_nothing_is_kept_ahead_of_a_checkpoint_or_an_evaluation(is_saved: bool) -> None:
    held_out = HeldOutSet(name="new", keys=("1",), num_samples=1)
    every_steps = 2 if is_saved else 1
    evaluation = EvaluationSettings(sets=(held_out,), every_steps=every_steps, at_start=False, at_end=False)
    player = Player(replace(make_async(1, 1, interrupt="keep"), evaluation=evaluation))
    player.start(0)
    for number in range(4):
        player.complete(0, f"math-{number}", 0, 1)
    orders = player.tell(PolicyUpdated(step=0, policy_version=2, empties_engines=is_saved))
    assert len(orders) == 8
    assert all(isinstance(order, Evict) for order in orders)


def test_an_eviction_that_is_told_again_when_its_request_is_back_there_is_impossible() -> None:
    player = Player(make_async(1, 1))
    player.start(0)
    for number in range(4):
        player.complete(0, f"math-{number}", 0, 1)
    request = player.update(0)[0]
    told = ResponseEvicted(request=request, engine=player.engine_of[request], num_tokens=1)
    assert player.tell(told) == ()  # it waits: late
    player.resume(1)
    assert player.engine_of[request] == told.engine
    with pytest.raises(ImpossibleEvent, match="was not ordered"):
        player.tell(told)


def test_what_is_due_in_a_step_is_named_until_its_batch_is_full() -> None:
    player = Player(make_async(1, 1))
    player.start(0)
    for number in range(4):
        player.complete(0, f"math-{number}", 0, 1)
    assert not player.scheduler.due
    player.update(0)
    player.resume(1)
    assert {request.prompt.key for request in player.scheduler.due} == {f"math-{number}" for number in (4, 5, 6, 7)}
    assert set(player.scheduler.due.values()) == set(player.scheduler.engines)
