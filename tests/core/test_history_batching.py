"""Examples of tail batching with a length history, to be read as its specification, and what holds in every world."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings

from rollpacker.core.commands import (
    AcceptGroup,
    BeginRound,
    Command,
    DeferPrompts,
    DrawPrompts,
    EndRound,
    EndRun,
    Launch,
    OpenEnvironment,
    RoundKind,
    StepEnvironment,
)
from rollpacker.core.environment_events import EnvironmentStepped, TurnFinished
from rollpacker.core.errors import CheckpointError
from rollpacker.core.events import ResponseAborted, ResponseFinished, StepStarted
from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId, VersionSpan
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import LengthHistorySettings, SchedulerSettings
from tests.core.player import Player, begun, make_settings
from tests.core.turns import RULES
from tests.fuzz.scheduler_world import Scenario, SchedulerWorld, scenarios, with_history

EXACT = LengthHistorySettings(share=Fraction(1, 3), first_eta_prompts=Fraction(1), first_eta_responses=Fraction(1))
RACING = replace(EXACT, first_eta_prompts=Fraction(3, 2), first_eta_responses=Fraction(2))
TWO_DOMAINS = ((Domain("math"), Fraction(1)), (Domain("code"), Fraction(1)))


def by_history(history: LengthHistorySettings = EXACT, **changes: Any) -> SchedulerSettings:
    values = {"eta_prompts": Fraction(1), "eta_responses": Fraction(1), "length_history": history, **changes}
    return make_settings(**values)


def deferred(commands: tuple[Command, ...]) -> list[str]:
    return [prompt.key for each in commands if isinstance(each, DeferPrompts) for prompt in each.prompts]


def play(player: Player, step: int, lengths: dict[str, int]) -> tuple[Command, ...]:
    """Start a step, and let every response end, each in its key's number of tokens; gives the first commands."""
    commands = player.start(step)
    ended: set[RequestId] = set()
    for request in [each.request for each in commands if isinstance(each, Launch)]:
        for command in player.finish(request, lengths[request.prompt.key]) + player.reward(request):
            if isinstance(command, AcceptGroup | EndRound):
                ended.add(request)
    assert ended
    return commands


LENGTHS = {f"math-{number}": 10 * (number + 1) for number in range(4)}


def test_an_exact_first_epoch_is_made_of_plain_rounds() -> None:
    player = Player(by_history(), num_keys=4)
    commands = play(player, 0, LENGTHS)
    assert begun(commands) == BeginRound(
        round=0,
        step=0,
        kind=RoundKind.PLAIN,
        num_prompts_launched=4,
        num_prompts_needed=4,
        num_responses_launched=2,
        num_responses_needed=2,
    )
    assert not deferred(commands)


def test_a_racing_first_epoch_has_the_factors_of_its_own() -> None:
    player = Player(by_history(RACING), num_keys=6)
    begin = begun(player.start(0))
    assert begin.kind is RoundKind.SHORT
    assert (begin.num_prompts_launched, begin.num_responses_launched) == (6, 4)


def test_of_known_prompts_more_are_drawn_than_race_and_the_longest_wait_for_a_long_round() -> None:
    player = Player(by_history(), num_keys=4)
    play(player, 0, LENGTHS)
    commands = player.tell(StepStarted(step=1, policy_version=2))
    assert commands == (DrawPrompts(domain=Domain("math"), num_prompts=4),)
    commands = player.tell(player.answer(commands[0]))
    assert commands == (DrawPrompts(domain=Domain("math"), num_prompts=2),), "2 of 6 are a third"
    commands = player.tell(player.answer(commands[0]))
    assert begun(commands).kind is RoundKind.SHORT
    assert commands[1] == DeferPrompts(round=1, prompts=(PromptId(1, "math-2"), PromptId(1, "math-3")))
    assert [each.request.prompt for each in commands if isinstance(each, Launch)][::2] == [
        PromptId(epoch, key) for epoch in (1, 2) for key in ("math-0", "math-1")
    ]


def test_what_was_deferred_runs_in_a_long_round_as_soon_as_it_fills_one() -> None:
    player = Player(by_history(), num_keys=4)
    play(player, 0, LENGTHS)
    commands = play(player, 1, LENGTHS)
    assert deferred(commands) == ["math-2", "math-3"]
    commands = play(player, 2, LENGTHS)
    assert deferred(commands) == ["math-3", "math-3"], "of two epochs"
    commands = play(player, 3, LENGTHS)
    assert begun(commands).kind is RoundKind.LONG
    assert begun(commands).num_responses_launched == 2
    assert [each.request.prompt for each in commands if isinstance(each, Launch)][::2] == [
        PromptId(1, "math-2"),
        PromptId(1, "math-3"),
        PromptId(2, "math-3"),
        PromptId(3, "math-3"),
    ]


def test_the_losers_of_a_race_are_known_by_what_was_aborted() -> None:
    racing = replace(RACING, first_eta_responses=Fraction(1))
    player = Player(by_history(racing, num_prompts=2), num_keys=3)
    player.start(0)
    for key in ("math-1", "math-2"):
        for sample in range(2):
            request = RequestId(0, PromptId(0, key), sample)
            player.finish(request, 30)
            commands = player.reward(request)
    assert isinstance(commands[-1], EndRound)
    for sample in range(2):
        stopped = RequestId(0, PromptId(0, "math-0"), sample)
        assert player.tell(ResponseAborted(request=stopped, engine=EngineId("engine-0"), num_tokens=40)) == ()
    assert deferred(player.start(1)) == ["math-0"], "at least 80 tokens, and the others have 30"


def test_the_losers_of_a_race_are_known_by_what_they_had_when_they_were_stopped_at_their_environment() -> None:
    racing = replace(RACING, first_eta_responses=Fraction(1))
    player = Player(by_history(racing, num_prompts=2, environment=RULES), num_keys=3)
    acting: dict[RequestId, int] = {}
    for opened in [each for each in player.start(0) if isinstance(each, OpenEnvironment)]:
        request, num_tokens = opened.request, 40 if opened.request.prompt.key == "math-0" else 30
        player.tell(EnvironmentStepped(request=request, call=opened.call, num_tokens_left=9, is_done=False))
        spans = (VersionSpan(player.version, num_tokens),)
        turn = TurnFinished(request=request, engine=player.engine_of[request], num_tokens=num_tokens, spans=spans)
        [step] = [each for each in player.tell(turn) if isinstance(each, StepEnvironment)]
        acting[request] = step.call
    for request, call in acting.items():
        if request.prompt.key != "math-0":
            player.tell(EnvironmentStepped(request=request, call=call, num_tokens_left=9, is_done=True))
            commands = player.reward(request)
    assert isinstance(commands[-1], EndRound)
    assert deferred(player.start(1)) == ["math-0"], "at least 80 tokens, and the others have 30"


def test_a_domain_that_nobody_knows_yet_keeps_the_others_from_being_deferred() -> None:
    player = Player(by_history(domain_weights=TWO_DOMAINS, num_prompts=2), num_keys=1)
    player.num_left = {Domain("math"): 9, Domain("code"): 9}
    lengths = {"math-0": 5, "code-0": 5, "code-1": 5}
    play(player, 0, lengths)
    player.num_keys = None  # code goes on with a prompt that never ran, math with the one that did
    player.num_drawn[Domain("math")] = 0
    commands = player.start(1)
    assert begun(commands).kind is RoundKind.PLAIN
    assert not deferred(commands)


def test_a_length_that_comes_after_the_next_step_began_changes_nothing() -> None:
    player = Player(by_history(), num_keys=4)
    play(player, 0, LENGTHS)
    player.tell(StepStarted(step=1, policy_version=2))
    before = player.scheduler.snapshot()
    late = RequestId(0, PromptId(0, "math-0"), 0)
    spans = (VersionSpan(1, 999),)
    assert not player.tell(ResponseFinished(request=late, engine=EngineId("engine-0"), num_tokens=999, spans=spans))
    assert player.scheduler.snapshot()["batching"] == before["batching"]


def test_at_the_end_of_the_data_everything_runs_without_a_race_and_then_the_run_ends() -> None:
    player = Player(by_history(), num_prompts=10, num_keys=4)
    trained: list[PromptId] = []
    step = 0
    while True:
        commands = player.start(step)
        if EndRun() in commands:
            break
        for request in [each.request for each in commands if isinstance(each, Launch)]:
            for command in player.finish(request, LENGTHS[request.prompt.key]) + player.reward(request):
                trained += command.prompts if isinstance(command, EndRound) else ()
        step += 1
    assert Counter(trained) == Counter(player.prompt_of(Domain("math"), number) for number in range(10))


def test_a_history_is_not_restored_without_one_nor_the_reverse() -> None:
    player = Player(by_history(), num_keys=4)
    play(player, 0, LENGTHS)
    snapshot = json.loads(json.dumps(player.scheduler.snapshot()))
    with pytest.raises(CheckpointError, match="tail with length history"):
        Scheduler.restore(make_settings(), snapshot)
    with pytest.raises(CheckpointError, match="tail with length history"):
        Scheduler.restore(by_history(), Scheduler(make_settings()).snapshot())


def test_settings_refuse_a_history_where_nothing_can_be_deferred() -> None:
    with pytest.raises(ValueError, match="no long round"):
        by_history(batching="plain")
    with pytest.raises(ValueError, match="share=1"):
        replace(EXACT, share=Fraction(1))


class _Deferring(SchedulerWorld):
    """A world that counts what is deferred at once."""

    def __init__(self, scenario: Scenario) -> None:
        self.num_deferred: Counter[Domain] = Counter()
        super().__init__(scenario)

    def carry_out(self, command: Command) -> None:
        if isinstance(command, DeferPrompts):
            self.num_deferred.update(self.reference.domain_of[prompt] for prompt in command.prompts)
            weights = dict(self.settings.domain_weights)
            for domain, weight in weights.items():
                share = self.num_deferred.total() * weight / sum(weights.values())
                assert abs(self.num_deferred[domain] - share) <= 1, "the mix drifts"
        super().carry_out(command)


def test_of_each_domain_as_many_are_deferred_at_once_as_its_weight_says() -> None:
    numbers: list[int] = []

    @settings(max_examples=24, derandomize=True, deadline=None, database=None)
    @given(scenarios(batching="tail").map(with_history))
    def count(scenario: Scenario) -> None:
        world = _Deferring(replace(scenario, num_epochs=None, num_steps=8))
        world.run()
        numbers.append(world.num_deferred.total())

    count()
    assert sum(number > 0 for number in numbers) >= len(numbers) // 2, "most worlds defer prompts"


class _Unraced(SchedulerWorld):
    """A world that trains exactly what each round launched."""

    def carry_out(self, command: Command) -> None:
        if isinstance(command, BeginRound):
            assert not command.races
            self.num_launched = command.num_prompts_launched
        if isinstance(command, AcceptGroup):
            assert command.samples == tuple(range(self.settings.num_responses))
        if isinstance(command, EndRound):
            assert len(command.prompts) == self.num_launched
        super().carry_out(command)


@settings(max_examples=20, deadline=None)
@given(scenarios(batching="tail").map(with_history))
def test_without_a_race_no_length_of_a_round_changes_what_the_round_trains(scenario: Scenario) -> None:
    alone = replace(scenario.settings, eta_prompts=Fraction(1), eta_responses=Fraction(1), length_history=EXACT)
    _Unraced(replace(scenario, settings=alone)).run()


@settings(max_examples=20, deadline=None)
@given(scenarios(batching="tail").map(with_history))
def test_in_an_exact_first_epoch_batches_are_plain_batches(scenario: Scenario) -> None:
    exact = replace(scenario.settings, overlap_rewards=True, length_history=EXACT)
    endless = replace(scenario, num_epochs=None, num_keys=(1000,) * len(scenario.num_keys))
    trained = [
        SchedulerWorld(replace(endless, settings=each)).run().trained
        for each in (exact, replace(exact, batching="plain", length_history=None))
    ]
    assert trained[0] == trained[1]
