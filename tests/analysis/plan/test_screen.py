"""The tables of a plan at the width of a terminal, and what is said about how sure it is."""

from __future__ import annotations

import io

import pandas as pd
import pytest

from rollpacker.analysis.plan.advice import add_speedups
from rollpacker.analysis.plan.lengths import LengthFacts
from rollpacker.analysis.plan.screen import show
from rollpacker.analysis.plan.search import Space
from rollpacker.config.compose import compose
from rollpacker.terminal import Terminal
from tests.analysis.plan.tables import outcomes

LENGTHS = LengthFacts(
    source="lengths.csv",
    num_samples=2000,
    longest=4096,
    limit=4096,
    has_groups=False,
    drawn={},
    share_at_limit=0.0,
    is_extrapolated=False,
)


def shown(width: int, *trials: pd.DataFrame, num_gpus: int = 32) -> str:
    """What is printed of made-up outcomes."""
    found = add_speedups(pd.concat(trials, ignore_index=True), "verl")
    words = ["backend=sim", "model=qwen2.5-7b", "hardware=h800", "run.dir=x"]
    space = Space(
        bases={system: compose([*words, f"system={system}"]) for system in found["system"].unique()},
        num_gpus=num_gpus,
        degrees_by_gpus={num_gpus: (2,)},
        rho=0.3,
        varies_rho=True,
        num_seeds=2,
    )
    output = io.StringIO()
    show(Terminal(file=output, width=width), found, LENGTHS, space, num_left_out=0)
    return output.getvalue()


WIDEST = (
    outcomes("verl", 1234.5, 1456.7, preemptions=12_345),
    outcomes("tail-reward-planner", 1034.5, 756.7, eta=1.125, preemptions=12_345),
    outcomes("tail-reward-planner", 934.5, eta=1.125, degree=16, preemptions=12_345),
    outcomes("tail-reward-planner", 934.5, eta=1.125, num_gpus=16, preemptions=12_345),
    outcomes("tail-reward-planner", 534.5, eta=1.125, num_gpus=64, preemptions=12_345),
)


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_table_folds_names_and_leaves_columns_out_but_cuts_no_number(width):
    text = shown(width, *WIDEST)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for number in ("1346±157", "1.56±0.52", "11,961", "7,961"):
        assert number in text
    assert "tail-reward-planner  " not in text
    assert "left out, in plan.parquet: preemptions" in text


def test_a_wide_table_has_every_column_and_whole_names():
    text = shown(140, *WIDEST)
    assert " tail-reward-planner " in text
    assert "12,345" in text
    assert "left out" not in text


def test_gpus_of_a_judge_beyond_those_asked_for_are_told():
    verl = outcomes("verl", 200, 210, num_judge_gpus=1)
    text = " ".join(shown(200, verl, outcomes("rollpacker", 100, 105, eta=1.25)).split())
    assert "judge verl: with 1 GPU more, for the judge; GPU·h count it." in text
    assert "for the judge" not in shown(200, outcomes("verl", 200, 210), outcomes("rollpacker", 100, 105, eta=1.25))


def test_a_single_gpu_is_one_gpu():
    trials = (outcomes("verl", 12.5, num_gpus=1), outcomes("rollpacker", 10.5, eta=1.25, num_gpus=1))
    assert "On 1 GPU, per step" in shown(80, *trials, num_gpus=1)
