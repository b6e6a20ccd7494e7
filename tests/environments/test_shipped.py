from __future__ import annotations

import math
import time
from fractions import Fraction
from typing import Any

import pytest

from rollpacker.environments.calculator import calculate, compute
from rollpacker.environments.delayed import Delayed
from rollpacker.environments.frozen_lake import FrozenLake
from rollpacker.environments.sokoban_mini import SokobanMini
from rollpacker.environments.walk_turns import WalkTurns


def walk(*turns: str) -> list[tuple[str, float, bool]]:
    env = WalkTurns()
    assert env.reset(options={"ground_truth": "3 9"}) == ("", {})
    return [env.step(turn)[:3] for turn in turns]


def test_a_right_walk_is_rewarded_where_it_ends():
    assert walk("+4 7", "+2 9") == [("7 9 :", 0.0, False), ("9 9 :", 1.0, True)]


@pytest.mark.parametrize("turn", ["+4 8", "+5 8", "7", "+4", "+4 7 +2 9", "", "+4 seven"])
def test_the_first_mistake_ends_a_walk_without_reward(turn: str):
    assert walk(turn) == [("", 0.0, True)]


def test_a_walk_beyond_its_target_ends_without_reward():
    assert walk("+4 7", "+4 11")[-1] == ("11 9 :", 0.0, True)


def test_a_walk_needs_a_task():
    with pytest.raises(ValueError, match="start and target"):
        WalkTurns().reset(options={})


@pytest.mark.parametrize(
    ("odd", "rule"),
    [
        ({"median_s": -1.0}, "both are finite and at least 0"),
        ({"median_s": math.nan}, "both are finite and at least 0"),
        ({"median_s": 1.0, "p99_s": math.inf}, "both are finite and at least 0"),
        ({"p99_s": 30.0}, "p99_s is 0, or at least a median above 0"),
        ({"median_s": 2.0, "p99_s": 1.0}, "p99_s is 0, or at least a median above 0"),
        ({"p_hang": 0.6, "p_crash": 0.6}, r"p_hang \+ p_crash, is from 0 to 1"),
        ({"p_crash": -1}, "each, .*is from 0 to 1"),
        ({"p_crash": math.nan}, "each, .*is from 0 to 1"),
        ({"p_crash_at_reset": 1.5}, "each, .*is from 0 to 1"),
    ],
)
def test_latencies_and_probabilities_that_are_none_are_refused_with_their_rule(odd: dict[str, float], rule: str):
    with pytest.raises(ValueError, match=f"{next(iter(odd))}=.*;.*{rule}"):
        Delayed("rollpacker.environments.walk_turns:WalkTurns", **odd)


@pytest.mark.parametrize("text", ["x + 1", "2 ** 9", "(1).real", "True", "9" * 1001, "1e999999999", "1 if 1 else 2"])
def test_a_calculator_computes_nothing_but_numbers_of_bounded_size(text: str):
    with pytest.raises(ValueError, match=r"only numbers|too long"):
        compute(text)
    assert compute("-3 * (2 - 0.5)") == Fraction(-9, 2)
    assert calculate(" (2 + 3) / 6") == "5/6"
    assert calculate("+3 - +(1 + 1)") == "1"


def test_a_calculator_takes_numbers_as_they_are_written():
    assert calculate("12345678901234567890.5 * 2") == "24691357802469135781"
    assert calculate("(.1 +\n0.20000000000000000001 + 1_0.) * 1e2") == "1030000000000000000001/1000000000000000000"
    assert calculate("1E-400 * 1e+400") == "1"


def test_an_expression_of_thousands_of_numbers_is_computed_at_once():
    text = "1.25"
    for _ in range(14):
        text = f"({text} +\n{text})"
    began = time.perf_counter()
    assert compute(text) == Fraction(5, 4) * 2**14
    assert time.perf_counter() - began < 10  # line by line for each number, it took minutes


@pytest.mark.parametrize("kind", [FrozenLake, SokobanMini])
@pytest.mark.parametrize("seed", range(20))
def test_every_map_has_a_way_that_is_rewarded_at_its_end_and_not_before(kind: Any, seed: int):
    env, twin = kind(), kind()
    assert env.reset(seed=seed) == twin.reset(seed=seed)
    moves = env.way()
    assert moves
    steps = [env.step(f"I go {move}.") for move in moves]
    assert [(reward, is_over) for _, reward, is_over, _, _ in steps] == [(0.0, False)] * (len(moves) - 1) + [
        (1.0, True)
    ]


@pytest.mark.parametrize(("size", "hole_share"), [(4, 0.99), (8, 0.9), (30, 0.5)])
def test_a_lake_with_too_many_holes_has_some_filled_until_there_is_a_way(size: int, hole_share: float):
    lake, twin = FrozenLake(size, hole_share), FrozenLake(size, hole_share)
    shown, _ = lake.reset(seed=1)
    assert (shown, {}) == twin.reset(seed=1)
    assert "O" in shown
    assert lake.way()


def test_a_hole_ends_the_game_without_reward_and_a_border_stops():
    lake = FrozenLake(hole_share=0.4)
    seed = next(seed for seed in range(100) if lake.reset(seed=seed)[0].splitlines()[1][0] == "O")
    before, _ = lake.reset(seed=seed)
    assert lake.step("UP")[:3] == (before, 0.0, False)
    assert lake.step("fly")[0].startswith("Say up")
    assert lake.step("down")[1:3] == (0.0, True)


def test_a_box_moves_only_when_it_is_pushed_and_never_into_a_wall():
    env = SokobanMini()
    for seed in range(20):
        env.reset(seed=seed)
        for number in range(30):
            before = env._state
            shown = env.step(["up", "right", "down", "left"][number * (seed + 3) % 4])[0]
            assert shown.count("P") == 1
            assert shown.count("X") == 1
            assert before.box in {env._state.box, env._state.player}
