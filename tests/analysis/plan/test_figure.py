"""The plan's figure: what it compares, and what a folder without a plan says."""

import pandas as pd
import pytest

from rollpacker.analysis.plan.figure import best_degree, draw
from rollpacker.core.errors import DataError
from rollpacker.metrics.plans import read_plan, write_plan

ROW = {
    "num_all_gpus": 32,
    "num_steps": 4,
    "rollout_time_s": 50.0,
    "train_time_s": 20.0,
    "long_share": 0.0,
    "bubble_ratio": 0.5,
    "wasted_share": 0.0,
    "preemptions": 0.0,
    "kv_peak_share": 0.5,
    "kv_tokens_per_engine": 1000,
    "gpu_hours_per_1000_steps": 10.0,
    "modelled": True,
}


def row(system, step_time_s, *, eta=None, degree=2, seed=0, num_gpus=32, speedup=1.0):
    return ROW | {
        "system": system,
        "eta": eta,
        "tensor_parallel": degree,
        "num_gpus": num_gpus,
        "rho": 0.3,
        "seed": seed,
        "step_time_s": float(step_time_s),
        "speedup": speedup,
        "is_asked": num_gpus == 32,
    }


ROWS = [
    row("verl", 90, degree=1),  # tried once, and lucky
    *(row("verl", seconds, seed=seed) for seed, seconds in enumerate((100, 110))),
    *(row("rollpacker", seconds, seed=seed, eta=1.25, speedup=2.0) for seed, seconds in enumerate((50, 55))),
    row("rollpacker", 30, eta=1.25, num_gpus=64),
]
LENGTHS = [
    {"domain": "math", "p": p, "length_tokens": tokens, "limit_tokens": 4096, "modelled": True}
    for p, tokens in ((0.0, 10), (0.5, 500), (1.0, 4096))
]


def test_each_system_is_shown_at_the_degree_that_was_tried_most_on_the_gpus_of_the_question():
    shown = best_degree(pd.DataFrame(ROWS))
    assert list(shown["step_time_s"]) == [100, 110, 50, 55]


def test_the_figure_is_written_as_png_and_pdf(tmp_path):
    write_plan(tmp_path, ROWS, LENGTHS)
    draw(*read_plan(tmp_path), tmp_path / "plan")
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    assert (tmp_path / "plan.pdf").read_bytes().startswith(b"%PDF")


def test_a_folder_without_a_plan_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no plan"):
        read_plan(tmp_path)
