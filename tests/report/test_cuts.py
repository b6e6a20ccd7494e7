"""What cut a response, as people are told."""

import math

import pytest

from rollpacker.report.cuts import AT_LIMIT, AT_MAX_TURNS, BY_ENVIRONMENT, FAILED, Cuts

GYM = {"reward": {"name": "environment"}, "environment": {"max_turns": 3}, "rollout": {"max_response_tokens": 100}}
TOOLS = GYM | {"reward": {"name": "math"}}


@pytest.mark.parametrize(
    ("config", "reason", "num_turns", "length_tokens", "cut"),
    [
        (GYM, "environment_error", 1, 30, FAILED),
        (GYM, "environment_over", 0, 0, AT_LIMIT),
        (TOOLS, "environment_friendly", 1, 100, AT_LIMIT),
        (GYM, "truncated", 2, 30, BY_ENVIRONMENT),
        (GYM, "limit", 3, 30, AT_MAX_TURNS),
        (GYM, "limit", 2, 90, AT_LIMIT),
        (GYM, "terminated", 3, 100, AT_LIMIT),
        (TOOLS, "truncated", 2, 90, AT_LIMIT),
        (TOOLS, "wrong_answer", 3, 30, AT_MAX_TURNS),
        (TOOLS, "truncated", 3, 100, AT_LIMIT),
        (TOOLS, None, math.nan, 100, AT_LIMIT),
        ({}, "truncated", 2, 30, AT_LIMIT),
        ({"environment": None}, "limit", 2, 30, AT_LIMIT),
    ],
)
def test_a_cut_is_the_limit_of_tokens_only_where_nothing_else_ended_the_response(
    config, reason, num_turns, length_tokens, cut
):
    row = {"reward_reason": reason, "num_turns": num_turns, "length_tokens": length_tokens}
    assert Cuts(config).of(row | {"finish_reason": "length"}) == cut
    assert Cuts(config).of(row | {"finish_reason": "stop"}) == ""


@pytest.mark.parametrize(
    ("evaluation", "length_tokens", "cut"),
    [
        ({"max_response_tokens": 16}, 16, AT_LIMIT),
        ({"max_response_tokens": 500}, 120, AT_MAX_TURNS),
        ({"max_response_tokens": None}, 100, AT_LIMIT),
        ({"max_response_tokens": 500, "path": [{"path": "sets/maze.jsonl", "max_response_tokens": 16}]}, 16, AT_LIMIT),
        ({"path": [{"path": "x.jsonl", "name": "maze", "max_response_tokens": 500}]}, 120, AT_MAX_TURNS),
        ({"max_response_tokens": 16, "path": [{"path": "sets/maze.jsonl"}]}, 16, AT_LIMIT),
    ],
)
def test_a_held_out_response_has_the_limit_of_its_set_of_the_evaluation_or_of_training(evaluation, length_tokens, cut):
    row = {"finish_reason": "length", "reward_reason": "limit", "num_turns": 3, "length_tokens": length_tokens}
    assert Cuts(GYM | {"evaluation": evaluation}).of(row, held_out_set="maze") == cut
    assert Cuts(GYM | {"evaluation": evaluation}).of(row) == (AT_LIMIT if length_tokens >= 100 else AT_MAX_TURNS)
