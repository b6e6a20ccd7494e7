"""The plan's figure: what it compares."""

from itertools import combinations

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from rollpacker.analysis.plan.advice import add_speedups
from rollpacker.analysis.plan.figure import best_degree, draw, figure_of
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


@pytest.mark.parametrize("limit", [512, 4096, 16384])
def test_no_label_lies_on_another_however_many_systems_there_are_and_short_the_lengths(limit):
    racing = [
        outcomes(system, 80.0 + number, 81.0 + number, eta=eta)
        for system in ("rollpacker", "ours", "tail")
        for number, eta in enumerate((1.0, 1.125, 1.25, 1.5))
    ]
    trials = pd.concat([outcomes("verl", 100, 110), outcomes("rlhfuse", 90, 95), *racing], ignore_index=True)
    lengths = LENGTHS.assign(limit_tokens=limit, length_tokens=LENGTHS["length_tokens"].clip(upper=limit))
    figure = figure_of(add_speedups(trials, "verl"), lengths)
    figure.canvas.draw()
    for axes in figure.axes:
        labels = [*axes.get_xticklabels(which="both"), *axes.get_yticklabels(), *axes.texts]
        boxes = {label: label.get_window_extent() for label in labels if label.get_text()}
        assert len(boxes) > 2
        for one, other in combinations(boxes, 2):
            assert not boxes[one].overlaps(boxes[other]), f"{one.get_text()} lies on {other.get_text()}"
    plt.close(figure)


def test_the_figure_is_written_as_png_and_pdf(tmp_path):
    draw(add_speedups(TRIALS, "verl"), LENGTHS, tmp_path / "plan")
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    assert (tmp_path / "plan.pdf").read_bytes().startswith(b"%PDF")


def test_a_domain_is_written_as_it_is_named(tmp_path):
    lengths = [LENGTHS.assign(domain=domain) for domain in (r"$\frac$", "a_b")]
    png, _ = draw(add_speedups(TRIALS, "verl"), pd.concat(lengths), tmp_path / "plan")
    assert png.exists()
