"""Functions of the user: what they take, what they may return, and what becomes of those that fail."""

import json
import math
import textwrap
from decimal import Decimal

import numpy as np
import pytest
import torch

from rollpacker.config.python_names import UnusableFunction
from rollpacker.rewards.functions import PARAMETERS, RewardFunction, load_function, outcome_of

ARGUMENTS = {
    "prompt": [{"role": "user", "content": "2 + 2?"}],
    "response": "4",
    "ground_truth": "4",
    "row": {"level": 3},
    "is_truncated": False,
}


@pytest.fixture
def written(tmp_path):
    """Write a file and give the source of its function `score`."""

    def write(text, name="mine.py"):
        (tmp_path / name).write_text(textwrap.dedent(text))
        return f"{tmp_path / name}:score"

    return write


@pytest.mark.parametrize(
    ("function", "reward"),
    [
        (lambda response, ground_truth: response == ground_truth, 1.0),
        (lambda: 0.25, 0.25),
        (lambda row: row["level"], 3.0),
        (lambda prompt, *, is_truncated: len(prompt) + is_truncated, 1.0),
        (lambda response, temperature=2.0: float(response) / temperature, 2.0),
        (lambda **everything: len(everything), float(len(PARAMETERS))),
    ],
)
def test_a_function_takes_any_of_the_parameters_by_name(function, reward):
    outcome = RewardFunction(function)(ARGUMENTS)
    assert (outcome.score, outcome.parts, outcome.problem) == ((reward, "scored"), {}, "")


@pytest.mark.parametrize(
    ("value", "reward", "reason", "parts"),
    [
        (1, 1.0, "scored", {}),
        (True, 1.0, "scored", {}),
        (np.float32(0.5), 0.5, "scored", {}),
        (torch.tensor(0.5), 0.5, "scored", {}),
        (Decimal("0.5"), 0.5, "scored", {}),
        ((0.5, "half_right"), 0.5, "half_right", {}),
        ((0.5, None), 0.5, "scored", {}),
        ({"score": 0.5, "reason": None, "style": Decimal("0.2")}, 0.5, "scored", {"style": 0.2}),
        ([0.5, "half_right"], 0.5, "half_right", {}),
        ({"score": 0.5}, 0.5, "scored", {}),
        ({"score": 1, "reason": "right", "style": 0.2, "acc": True}, 1.0, "right", {"style": 0.2, "acc": 1.0}),
        ({"score": 1, "pred": "4", "loss": math.nan}, 1.0, "scored", {}),
        ({"score": 1, "reason": "cut_\ud83d", "\ude00": 2}, 1.0, "cut_?", {"?": 2.0}),
        ((1, "whole_\U0001f600"), 1.0, "whole_\U0001f600", {}),
    ],
)
def test_a_number_a_pair_and_a_dict_are_scores(value, reward, reason, parts):
    outcome = outcome_of(value)
    assert (outcome.score, outcome.parts, outcome.problem) == ((reward, reason), parts, "")


@pytest.mark.parametrize("value", [(0.5, "timeout"), {"score": 0.5, "reason": "timeout"}])
def test_a_reason_of_the_functions_own_is_never_that_of_a_failed_check(value):
    assert outcome_of(value).score == (0.5, "own_timeout")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "wrong_result"),
        ("0.5", "wrong_result"),
        (1 + 2j, "wrong_result"),
        ({"reward": 1.0}, "wrong_result"),
        ({"score": "high"}, "wrong_result"),
        ({"score": 1.0, "reason": 3}, "wrong_result"),
        ((1.0, "a", "b"), "wrong_result"),
        (np.zeros(3), "wrong_result"),
        (10**400, "wrong_result"),
        (math.nan, "not_finite"),
        (-math.inf, "not_finite"),
        (1e30, "not_finite"),
        (Decimal("sNaN"), "wrong_result"),
        ({"score": math.nan, "style": 1.0}, "not_finite"),
    ],
)
def test_anything_else_scores_0_and_says_why(value, reason):
    outcome = outcome_of(value)
    assert (outcome.score, outcome.parts) == ((0.0, reason), {})
    assert outcome.problem.startswith("it returned ")


@pytest.mark.parametrize(
    ("value", "wrong"), [((1.0, 3), "whose reason is no text"), (("good", 3), "which is no score")]
)
def test_a_result_that_is_wrong_says_which_part_of_it_is(value, wrong):
    assert outcome_of(value).problem.endswith(wrong)


def test_an_exception_scores_0_and_names_the_line(written):
    function = load_function(
        written(
            """
            def score(response):
                return helper(response)

            def helper(response):
                return {}[response]
            """
        )
    )
    outcome = function(ARGUMENTS)
    assert outcome.score == (0.0, "checker_crashed")
    assert outcome.problem == "it raised KeyError: '4' (mine.py, line 6)"


@pytest.mark.parametrize("prefix", ["", "async "])
def test_a_function_that_exits_has_raised(written, prefix):
    function = load_function(written(f"import sys\n{prefix}def score(): sys.exit('no licence')"))
    outcome = function(ARGUMENTS)
    assert outcome.score == (0.0, "checker_crashed")
    assert outcome.problem == "it raised SystemExit: no licence (mine.py, line 2)"


def test_an_async_function_keeps_its_event_loop_from_call_to_call(written):
    function = load_function(
        written(
            """
            import asyncio

            loops = []

            async def score(response):
                await asyncio.sleep(0)
                loops.append(asyncio.get_running_loop())
                return len(set(loops)), "awaited"
            """
        )
    )
    assert [function(ARGUMENTS).score for _ in range(3)] == [(1.0, "awaited")] * 3


def test_a_file_imports_what_lies_beside_it_and_may_have_the_name_of_a_library(written, tmp_path):
    (tmp_path / "its_neighbour.py").write_text("BONUS = 2.0")
    source = written("import math\nfrom its_neighbour import BONUS\ndef score(): return BONUS * math.pi", "math.py")
    assert load_function(source)(ARGUMENTS).score.reward == 2 * math.pi
    assert math.cos(0) == 1


def test_a_module_of_the_working_directory_is_found_and_prepared_once(tmp_path, monkeypatch):
    (tmp_path / "a_package_of_mine").mkdir()
    (tmp_path / "a_package_of_mine" / "rewards.py").write_text(
        "calls = []\ndef prepare_scoring(): calls.append(1)\ndef score(): return len(calls)"
    )
    monkeypatch.chdir(tmp_path)
    function = load_function("a_package_of_mine.rewards:score")
    assert [function(ARGUMENTS).score.reward for _ in range(2)] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def scores(response): return 1.0", "has no `score`; it has `scores`"),
        ("from math import sqrt as scores", "has no `score`; it has `scores`"),
        ("from math import sqrt as score_\ndef scoring(response): return 1.0", "has no `score`; it has `scoring`"),
        ("from math import sqrt", "has no `score`$"),
        ("score = 1.0", "`score` of .* is 1.0, which is no function"),
        ("class score: pass", "`score` of .*mine.py is a class, which is no function"),
        ("def score(answer): return 1.0", "its parameter `answer` is none of prompt, response, ground_truth"),
        ("def score(a, *, b): return 1.0", "its parameters `a`, `b` are none of .*, and they have no default$"),
        (
            "def score(data_source, solution_str, ground_truth, extra_info=None): return 1.0",
            "its parameters `data_source`, `solution_str` are none of .*; `data_source` is a field of `row` here;",
        ),
        ("def score(completions, **kwargs): return 1.0", "none of .*; `completions` is `response` here$"),
        ("def score(response, /): return 1.0", "its parameter `response` is none of"),
        ("import no_such_library", r"ModuleNotFoundError: No module named 'no_such_library' \(mine.py, line 1\)"),
        ("def score(response) return 1.0", "SyntaxError"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        ("def prepare_scoring(): 1 / 0", r"ZeroDivisionError: division by zero \(mine.py, line 1\)"),
    ],
)
def test_a_source_that_names_no_usable_function_says_why(written, text, words):
    with pytest.raises(UnusableFunction, match=words):
        load_function(written(text))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nowhere/mine.py:score", "there is no file nowhere/mine.py"),
        ("no_such_package.rewards:score", "No module named 'no_such_package'"),
        ("json:dunps", "json has no `dunps`; it has `dumps`"),
    ],
)
def test_a_source_of_nothing_says_why(source, words):
    with pytest.raises(UnusableFunction, match=words):
        load_function(source)


def test_outcomes_travel_as_json():
    outcome = outcome_of({"score": np.float64(1), "style": np.int64(2)})
    assert json.loads(json.dumps([outcome.score, outcome.parts])) == [[1.0, "scored"], {"style": 2.0}]
