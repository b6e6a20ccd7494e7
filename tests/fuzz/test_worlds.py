"""Random worlds hold, whatever breaks in them; and the bugs that are put in on purpose do not stay hidden."""

import json
import random
from collections import Counter
from dataclasses import replace

import pytest

from rollpacker import pipeline
from rollpacker.core.errors import EngineFailed
from rollpacker.metrics.tables import read_table
from tests.fuzz.bugs import BUGS
from tests.fuzz.bugs.harness import first_failure, with_bug
from tests.fuzz.campaign import Tally, run_seeds
from tests.fuzz.faults import Fault, FaultKind
from tests.fuzz.replays import load_events, load_world, rule_broken_by, rule_broken_in
from tests.fuzz.session import run_world
from tests.fuzz.shrink import shortest, shrink
from tests.fuzz.world import World, draw_world

CALM = replace(
    draw_world(0),
    batching="tail",
    reward="async",
    planner=False,
    stream=False,
    num_prompts=2,
    num_responses=2,
    eta_prompts=1.5,
    eta_responses=1.5,
    num_keys=(5, 4),
    weights=(1, 1),
    num_epochs=1,
    held_out=(),
    num_engines=2,
    tensor_parallel=1,
    max_num_seqs=4,
    kv_tokens=10_000,
    max_response_tokens=1024,
    checkpoint_every_steps=1,
    faults=(),
    max_restarts=3,
    restart_s=0.1,
)
"""A world without faults, short and long rounds, and a checkpoint before every step."""

MIDDLE = 40
"""Events, about the middle of the calm world."""


PLANNED = replace(
    CALM, batching="plain", reward="batch", planner=True, tensor_parallel=2, num_keys=(6, 6), checkpoint_every_steps=2
)
"""Six calm rounds: after the fourth at the latest the planner changes to engines of one GPU."""


def outcome_of(tmp_path, *faults: Fault, world: World = CALM):
    outcome = run_world(replace(world, faults=faults), tmp_path)
    assert outcome.violation is None, outcome.violation
    return outcome


@pytest.mark.parametrize(("amount", "is_explained"), [(1, False), (50, True)])
def test_only_a_jump_beyond_a_limit_of_an_engine_explains_its_loss(tmp_path, monkeypatch, amount, is_explained):
    train, losses = pipeline.train, iter([EngineFailed("An engine was lost.", "", "")])

    async def lose_an_engine_once(*arguments):
        await train(*arguments)
        for loss in losses:
            raise loss

    monkeypatch.setattr(pipeline, "train", lose_an_engine_once)
    jump = Fault(kind=FaultKind.CLOCK_JUMP, at_event=MIDDLE, amount=amount)
    assert (run_world(replace(CALM, faults=(jump,)), tmp_path).violation is None) == is_explained


def test_twenty_worlds_hold():
    tally = Tally()
    for outcome in run_seeds(range(20)):
        tally.add(outcome)
    assert tally.failures == []
    assert tally.num_events > 1000
    assert len(tally.happened) > 8


def test_ten_asynchronous_worlds_hold_and_faults_come_while_engines_are_suspended():
    tally = Tally()
    seeds = range(101, 121, 2)
    for outcome in run_seeds(seeds):
        assert outcome.world.max_staleness > 0
        tally.add(outcome)
    assert tally.failures == []
    assert tally.num_steps > 10
    aimed = [fault for seed in seeds for fault in draw_world(seed).faults if fault.at_suspension is not None]
    assert len(aimed) > 3


def test_a_kill_while_engines_are_suspended_loses_no_prompt_and_no_kept_token(tmp_path):
    ahead = replace(
        CALM,
        batching="plain",
        num_keys=(12, 8),
        max_staleness=2,
        lookahead=1.5,
        max_num_seqs=2,
        staleness_order="ready",
    )
    kills = [Fault(kind=FaultKind.DRIVER_KILL, at_suspension=number) for number in (1, 3, 5)]
    crash = Fault(kind=FaultKind.ENGINE_CRASH, at_suspension=2)
    outcome = outcome_of(tmp_path, *kills, crash, world=ahead)
    assert outcome.num_attempts == 4
    steps = read_table(tmp_path / "run", "steps").to_pylist()
    assert max(step["staleness_max"] for step in steps) in {1, 2}
    assert sum(step["num_requests_continued"] for step in steps) > 0


def test_a_seed_gives_the_same_world_and_the_same_events(tmp_path):
    outcomes = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcomes.append(run_world(draw_world(17), folder))
    first, second = outcomes
    assert (first.num_events, first.num_attempts, first.happened) == (
        second.num_events,
        second.num_attempts,
        second.happened,
    )
    logs = [sorted((tmp_path / number / "run" / "events").iterdir()) for number in "01"]
    assert [file.read_bytes() for file in logs[0]] == [file.read_bytes() for file in logs[1]]


def test_a_world_survives_json(tmp_path):
    world = draw_world(3)
    assert World.from_plain(world.to_plain()) == world


def test_a_calm_world_needs_one_attempt(tmp_path):
    outcome = outcome_of(tmp_path)
    assert outcome.num_attempts == 1
    assert outcome.num_steps >= 4
    assert outcome.happened == Counter()


@pytest.mark.parametrize(
    ("fault", "num_attempts"),
    [
        (Fault(kind=FaultKind.ENGINE_CRASH, at_event=MIDDLE), 1),
        (Fault(kind=FaultKind.DEAF_ENGINE, at_event=MIDDLE), 1),
        (Fault(kind=FaultKind.SLOW_ENGINE, at_event=MIDDLE, amount=4), 1),
        (Fault(kind=FaultKind.LOST_ABORT, at_event=1), 1),
        (Fault(kind=FaultKind.LATE_FINISH, at_event=MIDDLE, amount=20), 1),
        (Fault(kind=FaultKind.DUPLICATE_FINISH, at_event=MIDDLE, amount=0.1), 1),
        (Fault(kind=FaultKind.DUPLICATE_VERDICT, at_event=MIDDLE, amount=0.1), 1),
        (Fault(kind=FaultKind.CLOCK_JUMP, at_event=MIDDLE, amount=5), 1),
        (Fault(kind=FaultKind.CLOCK_JUMP, at_s=0.01, amount=5), 1),
        (Fault(kind=FaultKind.HUNG_ENGINE, at_event=MIDDLE + 2), 1),
        (Fault(kind=FaultKind.HUNG_TRAINER, at_event=MIDDLE), 2),
        (Fault(kind=FaultKind.LOST_TRAINER, at_event=MIDDLE), 2),
        (Fault(kind=FaultKind.TORN_WEIGHTS, at_event=MIDDLE), 1),
        (Fault(kind=FaultKind.FULL_DISK, at_event=MIDDLE), 2),
        (Fault(kind=FaultKind.NODE_LOSS, at_event=MIDDLE, amount=4), 2),  # the trainer's
        (Fault(kind=FaultKind.NODE_LOSS, at_event=MIDDLE, amount=4, target=1), 1),
        (Fault(kind=FaultKind.DRIVER_KILL, at_event=MIDDLE), 2),
        (Fault(kind=FaultKind.DRIVER_KILL, at_s=0.01), 2),
        (Fault(kind=FaultKind.PREEMPTION_NOTICE, at_event=0), 2),
        (Fault(kind=FaultKind.PREEMPTION_NOTICE, at_event=MIDDLE), 2),
        (Fault(kind=FaultKind.PREEMPTION_NOTICE, at_event=MIDDLE, amount=1000), 2),
    ],
    ids=lambda value: value.kind.value if isinstance(value, Fault) else "",
)
def test_a_run_with_one_fault_trains_everything_in_so_many_attempts(tmp_path, fault, num_attempts):
    outcome = outcome_of(tmp_path, fault)
    assert outcome.happened == {fault.kind: 1}
    assert outcome.num_attempts == num_attempts


def joined(folder) -> list[str]:
    """The engines that joined, attempt after attempt, those that the backend brought left out."""
    logs = sorted((folder / "run" / "events").iterdir())
    events = [json.loads(line)["event"] for log in logs for line in log.read_text().splitlines()[1:]]
    return [event["engine"] for event in events if event["type"] == "EngineJoined" and "-r" in event["engine"]]


def test_ten_kills_of_one_engine_lose_nothing_and_train_nothing_twice(tmp_path):
    kills = [Fault(kind=FaultKind.ENGINE_CRASH, at_s=0.2 + 0.25 * number) for number in range(10)]
    alone = replace(CALM, num_engines=1, max_restarts=10, restart_s=0.0, num_keys=(15, 14))
    outcome = outcome_of(tmp_path, *kills, world=alone)
    assert outcome.happened == {FaultKind.ENGINE_CRASH: 10}
    assert outcome.num_attempts == 1
    assert joined(tmp_path) == [f"engine-0-r{number}" for number in range(1, 11)]
    steps = read_table(tmp_path / "run", "steps").to_pylist()
    assert sum(step["num_engines_lost"] for step in steps) == 10
    assert sum(step["num_engines_replaced"] for step in steps) == 10


def test_an_engine_that_fails_to_start_is_started_again(tmp_path):
    faults = [Fault(kind=FaultKind.FAILED_START), Fault(kind=FaultKind.ENGINE_CRASH, at_event=MIDDLE)]
    assert outcome_of(tmp_path, *faults).num_attempts == 1
    assert joined(tmp_path) == ["engine-0-r2"]


def test_an_engine_that_is_lost_once_too_often_ends_the_attempt_of_a_run_that_has_no_other(tmp_path):
    kills = [Fault(kind=FaultKind.ENGINE_CRASH, at_s=0.2 + 0.5 * number) for number in range(3)]
    outcome = outcome_of(tmp_path, *kills, world=replace(CALM, num_engines=1, max_restarts=2, restart_s=0.01))
    assert outcome.num_attempts == 2
    assert joined(tmp_path) == ["engine-0-r1", "engine-0-r2"]


def test_a_verdict_that_never_comes_ends_the_run_at_its_deadline(tmp_path):
    plain = replace(CALM, batching="plain")
    outcome = outcome_of(tmp_path, Fault(kind=FaultKind.HUNG_REWARD, at_event=MIDDLE, amount=1e6), world=plain)
    assert outcome.num_attempts == 2


def test_a_failure_of_the_machines_shrinks_to_few_events_that_pass_once_the_bug_is_gone(tmp_path):
    bug = next(bug for bug in BUGS if bug.name.startswith("last in"))
    with with_bug(bug):
        found = first_failure(range(30))
        assert found is not None
        shrunk = shrink(draw_world(found[0]), found[1])
        files = shrunk.save(tmp_path / "out")
        assert [file.suffix for file in files] == [".json", ".jsonl"]
        told = load_events(files[1])
        assert told == shrunk.told
        assert rule_broken_by(told) == shrunk.violation.rule == found[1].rule
        assert len(told.events) < len(found[1].history.events)
    assert shrunk.world.faults == ()
    assert load_world(files[0]) == shrunk.world
    for number, file in enumerate(files):
        scratch = tmp_path / f"scratch-{number}"
        scratch.mkdir()
        assert rule_broken_in(file, scratch) is None


def test_the_shortest_part_that_fails_is_found():
    items = list(range(100))
    random.Random(0).shuffle(items)
    needed = {3, 57, 90}
    assert set(shortest(items, lambda part: needed <= set(part))) == needed


ENDLESS = replace(
    CALM, stream=True, dynamic_sampling=True, num_epochs=None, num_steps=4, num_engines=2, max_launch_factor=20.0
)


@pytest.mark.parametrize("kind", [None, FaultKind.ENGINE_CRASH, FaultKind.DRIVER_KILL, FaultKind.LOST_TRAINER])
def test_prompts_are_dropped_while_engines_are_lent(tmp_path, kind):
    faults = [Fault(kind=kind, at_event=MIDDLE)] if kind else []
    outcome = outcome_of(tmp_path, *faults, world=ENDLESS)
    assert outcome.num_steps == 4
    logs = "".join(log.read_text() for log in (tmp_path / "run" / "events").iterdir())
    assert "LendEngines" in logs
    assert "DropPrompt" in logs


def test_a_run_of_lent_engines_ends_when_too_few_prompts_differ(tmp_path):
    hopeless = replace(ENDLESS, solve_rate=0.0, max_launch_factor=4.0)
    assert outcome_of(tmp_path, world=hopeless).num_steps == 0


@pytest.mark.parametrize("kind", [None, FaultKind.DRIVER_KILL])
def test_a_batch_that_streamed_is_smaller_where_the_data_ends(tmp_path, kind):
    faults = [Fault(kind=kind, at_event=MIDDLE)] if kind else []
    outcome_of(tmp_path, *faults, world=replace(ENDLESS, num_epochs=1, max_launch_factor=1000.0))
    rows = read_table(tmp_path / "run", "steps").to_pylist()
    assert any(row["tokens_streamed"] > 0 for row in rows)
    groups = [row["num_prompts"] for row in rows]
    assert 0 < groups[-1] < groups[0]


def test_some_worlds_drop_prompts_and_stream_until_the_data_ends():
    worlds = [draw_world(seed) for seed in range(300)]
    both = [world for world in worlds if world.stream and world.dynamic_sampling]
    assert {world.num_epochs is None for world in both} == {False, True}


@pytest.mark.parametrize("switch", ["sleep", "restart"])
def test_nothing_is_lost_when_an_engine_dies_while_the_engines_change_or_just_after(tmp_path, switch):
    world = replace(PLANNED, switch=switch, restart_s=1.0)
    (tmp_path / "calm").mkdir()
    assert outcome_of(tmp_path / "calm", world=world).num_attempts == 1
    events = [json.loads(line) for line in next((tmp_path / "calm" / "run" / "events").iterdir()).open()][1:]
    orders = [number for number, line in enumerate(events) if "UseParallelism" in json.dumps(line["commands"])]
    assert orders, "the planner changed nothing"
    ordered, ended = (
        next(line["now"] for line in events[orders[0] :] if line["event"]["type"] == wanted)
        for wanted in ("RoundMeasured", "EngineRetired")
    )
    assert ended - ordered >= 1.0, "the change takes its time"
    moments = [ordered + share * (ended - ordered) for share in (0.0, 0.3, 0.6, 0.9, 1.0)] + [ended + 0.05]
    num_happened = 0
    for number, moment in enumerate(moments):
        for target in range(6):  # of either set
            folder = tmp_path / f"{number}-{target}"
            folder.mkdir()
            kind = (FaultKind.ENGINE_CRASH, FaultKind.DRIVER_KILL)[target == 5]
            fault = Fault(kind=kind, at_event=None, at_s=moment, target=target, amount=1.0)
            num_happened += sum(outcome_of(folder, fault, world=world).happened.values())
    assert num_happened == 6 * len(moments)
