"""Random rounds for a planner, and the reference model's orders for them.

A world of requests has few rounds; these have nothing but rounds, so that there are enough of each kind on each degree.
"""

from __future__ import annotations

import json
import random

from rollpacker.core.commands import BeginRound, RoundKind, UseParallelism
from rollpacker.core.events import RoundMeasured
from rollpacker.core.round_time_model import DegreeCosts
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import ParallelismSettings
from tests.core.player import make_settings
from tests.fuzz.oracle.planning import MeasuredRound, degree_after, pays

NUM_RUNS = 40
NUM_ROUNDS = 40


def degree_costs(degree: int) -> DegreeCosts:
    """Of engines that gain memory by a larger degree, and lose some time to communication."""
    return DegreeCosts(
        degree=degree,
        num_engines=4 // degree,
        max_num_seqs=8,
        kv_tokens=60 * degree * degree,
        batch_sizes=(1.0, 8.0),
        pass_s=(1.0 + 0.2 * degree, 2.0 + 0.2 * degree),
        kv_read_s=1e-4,
        prefill_s=1e-3,
    )


def planner_of(rng: random.Random) -> ParallelismSettings:
    degrees = rng.choice([(1, 2), (1, 2, 4)])
    return ParallelismSettings(
        degrees=degrees,
        initial=rng.choice(degrees),
        patience=rng.choice([1, 2]),
        num_rounds_remembered=rng.choice([3, 6]),
        costs=tuple(map(degree_costs, degrees)) if rng.random() < 0.5 else (),
        prompt_tokens=5,
    )


def run_plans() -> None:
    """Run a fixed sample of plans through the scheduler's planner."""
    for seed in range(NUM_RUNS):
        run_plan(seed)


def run_plan(seed: int) -> None:
    """Tell a planner of rounds of two kinds, and compare each of its orders with what all rounds so far say."""
    rng = random.Random(seed)
    settings = planner_of(rng)
    planner = Scheduler(make_settings(parallelism=settings))._beside.planner
    assert planner is not None
    history: list[MeasuredRound] = []
    kinds = [RoundKind.SHORT]
    degree, share_of_short = settings.initial, rng.choice([0.5, 0.8, 1.0])
    for number in range(NUM_ROUNDS):
        planner.begin_round(begin_round(number, kinds[-1]))
        planner.end_round()
        event = random_measurement(rng, number)
        if rng.random() < 0.1:  # too late
            planner.start_step()
            assert planner.measure(event, RoundKind.SHORT) == ()
        else:
            next_kind = RoundKind.SHORT if rng.random() < share_of_short else RoundKind.LONG
            history.append(measured(event, kinds, degree))
            wanted = degree_after(history, next_kind, settings)
            if wanted != degree and pays(history, next_kind, degree, wanted, settings):
                expected = (UseParallelism(tensor_parallel=wanted),)
                degree = wanted
            else:
                expected = ()
            assert planner.measure(event, next_kind) == expected, f"after {history}"
            assert planner.measure(event, next_kind) == (), "a second measurement changes nothing"
            kinds.append(next_kind)
        if len(kinds) == number + 1:
            kinds.append(rng.choice(kinds))
        assert planner.in_use == degree
        planner.check()
        planner = type(planner).restore(settings, json.loads(json.dumps(planner.snapshot())))


def begin_round(number: int, kind: RoundKind) -> BeginRound:
    return BeginRound(
        round=number,
        step=number,
        kind=kind,
        num_prompts_launched=1,
        num_prompts_needed=1,
        num_responses_launched=1,
        num_responses_needed=1,
    )


def random_measurement(rng: random.Random, number: int) -> RoundMeasured:
    return RoundMeasured(
        round=number,
        num_preemptions=rng.choice([0, 0, 0, 20, 21, 22]),
        rollout_time_s=rng.choice([1.0, 2.0]),
        num_tokens=rng.choice([0, 100, 200, 300]),
        switch_time_s=rng.choice([0.0, 0.1, 1.0]),
        lengths_tokens=tuple(rng.choice([1, 10, 100]) for _ in range(rng.choice([0, 3, 9, 30]))),
    )


def measured(event: RoundMeasured, kinds: list[RoundKind], degree: int) -> MeasuredRound:
    return MeasuredRound(
        kinds[-1],
        degree,
        event.num_preemptions,
        event.num_tokens,
        event.rollout_time_s,
        event.switch_time_s,
        event.lengths_tokens,
        tuple(kinds),
    )
