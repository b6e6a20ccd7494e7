"""Examples of the parallelism planner."""

from __future__ import annotations

import itertools
import random

import pytest

from rollpacker.core.commands import RoundKind, UseParallelism
from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.events import EngineJoined, EngineRetired, RoundMeasured, StepStarted
from rollpacker.core.ids import EngineId
from rollpacker.core.parallelism import ParallelismPlanner
from rollpacker.core.settings import ParallelismSettings
from tests.core.plans import begin_round, degree_costs, run_plans
from tests.core.player import Player, make_settings

SHORT, LONG = RoundKind.SHORT, RoundKind.LONG
TOKENS = 1000


class Rounds:
    """Feeds a planner with one round after another."""

    def __init__(self, *, initial: int = 1) -> None:
        self.planner = ParallelismPlanner(ParallelismSettings(degrees=(1, 2, 4), initial=initial))
        self.number = -1

    def measure(
        self, kind: RoundKind, num_preemptions: int, next_kind: RoundKind, rate: int = 100, switch_s: float = 0.0
    ) -> int | None:
        """Give the degree that the next round has to change to, if any."""
        self.number += 1
        self.planner.start_step()
        self.planner.begin_round(begin_round(self.number, kind))
        self.planner.end_round()
        orders = self.planner.measure(
            RoundMeasured(
                round=self.number,
                num_preemptions=num_preemptions,
                rollout_time_s=TOKENS / rate,
                num_tokens=TOKENS,
                switch_time_s=switch_s,
            ),
            next_kind,
        )
        self.planner.check()
        return orders[0].tensor_parallel if orders else None


def test_preemptions_that_grow_by_more_than_a_twentieth_double_the_degree() -> None:
    rounds = Rounds()
    assert rounds.measure(SHORT, 100, SHORT) is None, "the first round is the reference"
    assert rounds.measure(SHORT, 105, SHORT) is None
    assert rounds.measure(SHORT, 111, SHORT) == 2
    assert rounds.measure(SHORT, 300, SHORT) is None, "the first round after a change is the new reference"


def test_four_rounds_without_preemption_halve_the_degree() -> None:
    rounds = Rounds(initial=4)
    assert [rounds.measure(SHORT, 0, SHORT) for _ in range(4)] == [None, None, None, 2]


def test_each_kind_of_round_has_its_own_degree() -> None:
    rounds = Rounds()
    rounds.measure(SHORT, 10, SHORT)
    assert rounds.measure(SHORT, 20, LONG) is None, "the long round stays on its own degree"
    assert rounds.measure(LONG, 10, SHORT) == 2
    assert rounds.measure(SHORT, 10, LONG) == 1


def test_a_degree_that_was_slower_is_not_tried_again_until_that_is_long_ago() -> None:
    rounds = Rounds()
    rounds.measure(SHORT, 10, SHORT, rate=90)
    assert rounds.measure(SHORT, 20, SHORT, rate=90) == 2
    changes = [rounds.measure(SHORT, 0, SHORT, rate=100) for _ in range(17)]
    assert changes == [None] * 16 + [1], "16 rounds are remembered"


def test_a_degree_that_turns_out_slower_is_left_at_once() -> None:
    rounds = Rounds()
    rounds.measure(SHORT, 10, SHORT, rate=100)
    assert rounds.measure(SHORT, 20, SHORT, rate=100) == 2
    assert rounds.measure(SHORT, 20, SHORT, rate=90) == 1
    assert rounds.planner.gain == 0.9


def test_one_slow_round_does_not_undo_what_many_say_and_a_slow_degree_that_had_luck_is_left_later() -> None:
    rounds = Rounds()
    rounds.measure(SHORT, 10, SHORT, rate=100)
    assert rounds.measure(SHORT, 20, SHORT, rate=100) == 2
    changes = [rounds.measure(SHORT, 20, SHORT, rate=rate) for rate in (110, 110, 95, 94, 80)]
    assert changes == [None, None, None, None, 1]


@pytest.mark.parametrize(("faster", "cost_s"), list(itertools.product((1, 2), (1.0, 60.0))))
def test_most_rounds_run_on_the_faster_degree_although_rounds_and_counts_differ_by_chance(faster, cost_s) -> None:
    """Seconds vary by 15 % and preemptions by 10 % from round to round; the slower degree takes 15 % longer."""
    rng = random.Random(0)
    planner = ParallelismPlanner(ParallelismSettings(degrees=(1, 2), initial=1))
    used: list[int] = []
    switch_s = 0.0
    for number in range(200):
        used.append(planner.in_use)
        planner.begin_round(begin_round(number, SHORT))
        planner.end_round()
        orders = planner.measure(
            RoundMeasured(
                round=number,
                num_preemptions=round(3000 * rng.lognormvariate(0, 0.1)),
                rollout_time_s=1000 * (1.0 if planner.in_use == faster else 1.15) * rng.lognormvariate(0, 0.15),
                num_tokens=10**7,
                switch_time_s=switch_s,
            ),
            SHORT,
        )
        switch_s = cost_s if orders else 0.0
    assert used.count(faster) > 0.8 * len(used)


def test_a_change_that_takes_longer_than_it_saves_is_not_made_again() -> None:
    """10 s a round at degree 1, 9 s at degree 2: one second, four rounds in a row, and 3 s there as 3 s back."""
    changes = []
    for switch_s in (1.0, 3.0):
        rounds = Rounds()
        rounds.measure(SHORT, 10, SHORT, rate=100)
        rounds.measure(SHORT, 20, SHORT, rate=100)
        rounds.measure(SHORT, 20, SHORT, rate=111, switch_s=switch_s)
        rounds.measure(SHORT, 20, LONG, rate=111)
        changes.append(rounds.measure(LONG, 10, SHORT, switch_s=switch_s))
    assert changes == [2, None], "short rounds stay where the long one was"


def test_the_profile_guesses_after_the_first_round_of_a_kind_and_the_measured_rate_has_the_last_word() -> None:
    costs = (degree_costs(1), degree_costs(2))
    planner = ParallelismPlanner(ParallelismSettings(degrees=(1, 2), initial=1, costs=costs, prompt_tokens=5))
    orders = []
    for number, time_s in enumerate((10.0, 11.0)):
        planner.begin_round(begin_round(number, SHORT))
        planner.end_round()
        measured = RoundMeasured(
            round=number, num_preemptions=7, rollout_time_s=time_s, num_tokens=900, lengths_tokens=(60,) * 20
        )
        orders += planner.measure(measured, SHORT)
    assert [order.tensor_parallel for order in orders] == [2, 1]


def test_under_the_conditions_of_fig_6_short_rounds_reach_degree_2_and_long_rounds_stay_at_1() -> None:
    """Preemptions and seconds of Qwen3-8B on 8 GPUs, by kind and degree; preemptions grow by 6 % with every round."""
    preemptions = {(SHORT, 1): 5199, (LONG, 1): 2900, (SHORT, 2): 4102, (LONG, 2): 2601}
    time_s = {(SHORT, 1): 1029.0, (LONG, 1): 1172.0, (SHORT, 2): 768.0, (LONG, 2): 1284.0}
    planner = ParallelismPlanner(ParallelismSettings(degrees=(1, 2), initial=1))
    kinds = ([SHORT] * 4 + [LONG]) * 8
    used: dict[RoundKind, list[int]] = {SHORT: [], LONG: []}
    switch_s = 0.0
    for number, (kind, next_kind) in enumerate(itertools.pairwise([*kinds, SHORT])):
        degree = planner.in_use
        used[kind].append(degree)
        planner.begin_round(begin_round(number, kind))
        planner.end_round()
        orders = planner.measure(
            RoundMeasured(
                round=number,
                num_preemptions=round(preemptions[kind, degree] * 1.06**number),
                rollout_time_s=time_s[kind, degree],
                num_tokens=10**7,
                switch_time_s=switch_s,
            ),
            next_kind,
        )
        switch_s = 20.0 if orders else 0.0
    assert used[SHORT] == [1, 1] + [2] * 30
    assert used[LONG] == [1, 1, 2] + [1] * 5, "degree 2 is tried, is slower, and is not tried again"


def test_every_order_is_what_all_rounds_so_far_say() -> None:
    run_plans()


def test_what_was_learned_of_a_degree_that_is_no_longer_allowed_is_forgotten() -> None:
    rounds = Rounds()
    rounds.measure(SHORT, 10, SHORT)
    assert rounds.measure(SHORT, 20, SHORT) == 2
    rounds.measure(SHORT, 10, SHORT, switch_s=1.0)
    fewer = ParallelismSettings(degrees=(1,), initial=1)
    planner = ParallelismPlanner.restore(fewer, rounds.planner.snapshot())
    planner.check()
    assert planner.in_use == 1


def test_the_engines_change_before_the_next_step_starts() -> None:
    planner = ParallelismSettings(degrees=(1, 2), initial=2, patience=1)
    player = Player(make_settings(parallelism=planner, batching="plain", num_prompts=1), num_engines=1)
    for step in range(2):
        player.start(step)
        player.complete(step, f"math-{step}", 0, 1)
        measured = RoundMeasured(round=step, num_preemptions=0, rollout_time_s=1.0, num_tokens=9)
        commands = player.tell(measured)
        assert player.tell(measured) == (), "a second measurement of the round is late"
    assert commands == (UseParallelism(tensor_parallel=1),)
    old, one, two = (EngineId(name) for name in ("engine-0", "one", "two"))
    with pytest.raises(ImpossibleEvent, match="before the engines had changed"):
        player.tell(StepStarted(step=2, policy_version=3))
    for engine in (one, two):
        player.tell(EngineJoined(engine=engine, policy_version=player.version))
    player.tell(EngineRetired(engine=old))
    player.start(2)
    assert player.scheduler.engines == (one, two)
    assert {engine for request, engine in player.engine_of.items() if request.round == 2} == {one, two}


def test_a_round_is_not_measured_before_its_end() -> None:
    player = Player(make_settings(parallelism=ParallelismSettings(degrees=(1,), initial=1)))
    player.start(0)
    with pytest.raises(ImpossibleEvent, match="measured before its end"):
        player.tell(RoundMeasured(round=0, num_preemptions=0, rollout_time_s=1.0, num_tokens=9))
