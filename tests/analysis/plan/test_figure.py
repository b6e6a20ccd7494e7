"""The plan's figure: what it compares."""

import pandas as pd

from rollpacker.analysis.plan.advice import add_speedups
from rollpacker.analysis.plan.figure import best_degree, draw
from tests.analysis.plan.tables import outcomes

TRIALS = pd.concat(
    [
        outcomes("verl", 90, degree=1),  # tried once, and lucky
        outcomes("verl", 100, 110),
        outcomes("rollpacker", 50, 55, eta=1.25),
        outcomes("rollpacker", 30, eta=1.25, num_gpus=64),
    ],
    ignore_index=True,
)
LENGTHS = pd.DataFrame({"domain": "math", "p": (0.0, 0.5, 1.0), "length_tokens": (10, 500, 4096), "limit_tokens": 4096})


def test_each_system_is_shown_at_the_degree_that_was_tried_most_on_the_gpus_of_the_question():
    shown = best_degree(TRIALS)
    assert list(shown["step_time_s"]) == [100, 110, 50, 55]


def test_the_figure_is_written_as_png_and_pdf(tmp_path):
    draw(add_speedups(TRIALS, "verl"), LENGTHS, tmp_path / "plan")
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    assert (tmp_path / "plan.pdf").read_bytes().startswith(b"%PDF")
