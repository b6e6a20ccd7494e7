"""Engines that come and go, snapshots that resume, books that notice when they were tampered with."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rollpacker.core.commands import EndRound, Launch, ScoreResponse
from rollpacker.core.errors import CheckpointError, ImpossibleEvent, InvariantViolated
from rollpacker.core.events import EngineJoined, EngineLost, ResponseAborted, ResponseFinished
from rollpacker.core.ids import EngineId, RequestId, VersionSpan
from rollpacker.core.scheduler import Scheduler
from tests.core.player import Player, aborted, accepted, launched, make_settings, prompt

ENGINE_0, ENGINE_1, ENGINE_2 = (EngineId(f"engine-{number}") for number in range(3))


def test_requests_go_to_the_least_loaded_engine() -> None:
    player = Player(make_settings(), num_engines=2)
    player.start(0)
    assert Counter(player.engine_of.values()) == {ENGINE_0: 9, ENGINE_1: 9}
    assert player.engine_of[RequestId(0, prompt("math-0"), 0)] == ENGINE_0, "ties go to whoever joined first"


def test_an_engine_that_joins_in_the_middle_gets_later_launches() -> None:
    player = Player(make_settings(), num_engines=1)
    player.start(0)
    assert player.tell(EngineJoined(engine=ENGINE_1, policy_version=player.version)) == ()
    for key in ("math-0", "math-1", "math-2", "math-3"):
        player.complete(0, key, 0, 1)
    player.start(1)
    assert Counter(engine for request, engine in player.engine_of.items() if request.round) == {
        ENGINE_0: 9,
        ENGINE_1: 9,
    }


def test_what_a_lost_engine_ran_is_launched_again_under_the_same_id_and_its_late_finish_is_ignored() -> None:
    player = Player(make_settings(), num_engines=2)
    player.start(0)
    orphans = [request for request, engine in player.engine_of.items() if engine == ENGINE_1]
    player.finish(orphans[0])
    commands = player.tell(EngineLost(engine=ENGINE_1))
    assert commands == tuple(Launch(request=request, engine=ENGINE_0) for request in orphans[1:])
    before = player.scheduler.snapshot()
    late = ResponseFinished(request=orphans[1], engine=ENGINE_1, num_tokens=5, spans=(VersionSpan(1, 5),))
    assert player.tell(late) == ()
    assert player.tell(EngineLost(engine=ENGINE_1)) == ()
    assert player.scheduler.snapshot() == before
    assert player.finish(orphans[1]) == (ScoreResponse(request=orphans[1]),)


def test_a_response_that_was_aborted_is_not_launched_again() -> None:
    player = Player(make_settings(), num_engines=2)
    player.start(0)
    player.complete(0, "math-0", 0, 2)
    (still_running,) = {RequestId(0, prompt("math-0"), 1)}
    assert player.engine_of[still_running] == ENGINE_1
    relaunched = [c.request for c in player.tell(EngineLost(engine=ENGINE_1)) if isinstance(c, Launch)]
    assert relaunched
    assert still_running not in relaunched


def test_what_the_last_engine_ran_waits_for_the_next_one_in_order() -> None:
    player = Player(make_settings())
    player.start(0)
    player.complete(0, "math-0", 0)
    waiting = [request for request in player.engine_of if request != RequestId(0, prompt("math-0"), 0)]
    assert player.tell(EngineLost(engine=ENGINE_0)) == ()
    assert player.scheduler.waiting
    late = ResponseFinished(request=waiting[0], engine=ENGINE_0, num_tokens=5, spans=(VersionSpan(1, 5),))
    assert player.tell(late) == (), "who waits is held by nobody"
    player.scheduler = Scheduler.restore(player.settings, json.loads(json.dumps(player.scheduler.snapshot())))
    launches = player.tell(EngineJoined(engine=ENGINE_1, policy_version=player.version))
    assert launches == tuple(Launch(request=request, engine=ENGINE_1) for request in waiting)
    assert not player.scheduler.waiting


def test_a_request_that_waits_is_forgotten_once_its_group_is_complete() -> None:
    player = Player(make_settings())
    player.start(0)
    for sample in (0, 1):
        player.finish(RequestId(0, prompt("math-0"), sample))
    player.tell(EngineLost(engine=ENGINE_0))
    for sample in (0, 1):
        commands = player.reward(RequestId(0, prompt("math-0"), sample))
    assert accepted(commands) == ["math-0"]
    assert aborted(commands) == [], "there is nobody to tell"
    assert "math-0" not in launched(player.tell(EngineJoined(engine=ENGINE_1, policy_version=player.version)))


def test_a_step_without_an_engine_waits_for_one() -> None:
    player = Player(make_settings(), num_engines=0)
    assert launched(player.start(0)) == []
    assert launched(player.tell(EngineJoined(engine=ENGINE_0, policy_version=player.version))) == [
        f"math-{number}" for number in range(6)
    ]


def test_an_abort_that_nobody_ordered_is_impossible() -> None:
    player = Player(make_settings())
    player.start(0)
    request = RequestId(0, prompt("math-0"), 0)
    with pytest.raises(ImpossibleEvent, match="which was not ordered") as error:
        player.tell(ResponseAborted(request=request, engine=ENGINE_0, num_tokens=3))
    assert "report it" in str(error.value)


def test_a_new_attempt_resumes_from_a_snapshot_with_other_engines() -> None:
    player = Player(make_settings(), num_engines=2)
    player.start(0)
    for key in ("math-5", "math-1", "math-2", "math-3"):
        commands = player.complete(0, key, 0, 1)
    assert isinstance(commands[-1], EndRound)
    text = json.dumps(player.scheduler.snapshot())

    player.scheduler = Scheduler.restore(player.settings, json.loads(text))
    assert player.tell(EngineJoined(engine=ENGINE_0, policy_version=player.version)) == ()
    assert player.tell(EngineJoined(engine=ENGINE_2, policy_version=player.version)) == ()
    assert player.tell(EngineLost(engine=ENGINE_1)) == ()
    launches = [command for command in player.start(1) if isinstance(command, Launch)]
    assert {command.engine for command in launches} == {ENGINE_0, ENGINE_2}
    assert player.scheduler.snapshot()["batching"]["long_queue"] == [[[0, "math-0"], "math"], [[0, "math-4"], "math"]]


@pytest.mark.parametrize("change", [{"format": 0}, {"kind": "plain"}])
def test_a_snapshot_of_another_kind_is_refused(change: dict[str, Any]) -> None:
    snapshot = Player(make_settings()).scheduler.snapshot() | change
    with pytest.raises(CheckpointError, match="snapshot has"):
        Scheduler.restore(make_settings(), snapshot)


def queue_a_prompt_twice(state: dict[str, Any]) -> None:
    state["batching"]["long_queue"] += [[[0, "x"], "math"]] * 2


def queue_a_racing_prompt(state: dict[str, Any]) -> None:
    state["batching"]["long_queue"].append([[0, "math-1"], "math"])


def open_a_place_too_many(state: dict[str, Any]) -> None:
    state["batching"]["ledger"]["places"]["math"] += 3


def close_all_places(state: dict[str, Any]) -> None:
    state["batching"]["ledger"]["places"]["math"] = 0


def forget_that_a_group_was_accepted(state: dict[str, Any]) -> None:
    state["batching"]["ledger"]["groups"][0]["outcome"] = "racing"


def drop_samples(state: dict[str, Any]) -> None:
    state["batching"]["ledger"]["groups"][1]["samples"] = "r"


def draw_in_the_middle_of_a_round(state: dict[str, Any]) -> None:
    state["batching"]["supply"]["asked"] = {"math": 3}


def ask_a_domain_that_has_ended(state: dict[str, Any]) -> None:
    state["batching"]["supply"] |= {"asked": {"math": 3}, "ended": ["math"]}


def lose_a_request_in_flight(state: dict[str, Any]) -> None:
    state["router"]["in_flight"].pop()


@pytest.mark.parametrize(
    "tamper",
    [
        queue_a_prompt_twice,
        queue_a_racing_prompt,
        open_a_place_too_many,
        close_all_places,
        forget_that_a_group_was_accepted,
        drop_samples,
        draw_in_the_middle_of_a_round,
        ask_a_domain_that_has_ended,
        lose_a_request_in_flight,
    ],
)
def test_the_self_check_notices(tamper: Callable[[dict[str, Any]], None]) -> None:
    player = Player(make_settings())
    player.start(0)
    player.complete(0, "math-0", 0, 1)
    state = player.scheduler.snapshot()
    Scheduler.restore(player.settings, state).check()
    tamper(state)
    with pytest.raises(InvariantViolated):
        Scheduler.restore(player.settings, state).check()


def test_samples_of_a_prompt_are_spread_over_engines_or_kept_together() -> None:
    engines_of: dict[str, list[set[str]]] = {}
    for routing in ("sample", "prompt"):
        player = Player(make_settings(batching="plain", num_prompts=3, num_responses=4, routing=routing), num_engines=2)
        player.start(0)
        engines_of[routing] = [
            {engine for request, engine in player.engine_of.items() if request.prompt.key == f"math-{number}"}
            for number in range(3)
        ]
    assert engines_of["sample"] == [{"engine-0", "engine-1"}] * 3
    assert engines_of["prompt"] == [{"engine-0"}, {"engine-1"}, {"engine-0"}]
