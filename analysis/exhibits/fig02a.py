"""Fig 2a: response lengths of each task, as a share of the responses that are no longer."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import partial

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import PAPER, Place, Point, Value
from rollpacker.analysis.plots import compare_curves
from rollpacker.analysis.runs import Runs

TASKS = {"Math": "math", "Code": "code", "LLM Judge": "judge"}
LEVELS = (0.05, 0.1, 0.25, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995)
"""Shares of the responses whose longest length is drawn of our runs."""


def gather(runs: Runs) -> Iterator[Point | None]:
    """Quantiles of the responses of plain rounds, which nothing cuts short.

    Modelled lengths are drawn from this very figure, so there they must agree.
    """
    yield from _paper_points()
    for task in TASKS.values():
        plain = runs.of(model="Qwen2.5-14B", system="verl", task=task)
        for level in LEVELS:
            place = Place(panel=task, x=100 * level, unit="tokens", series=task)
            yield place.ours(Value(run, run.quantile("length_tokens", level)) for run in plain)


def _paper_points() -> Iterator[Point]:
    file = PAPER / "fig02a_length_quantiles.csv"
    if not file.exists():
        return
    with file.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            task = TASKS[row["task"]]
            yield Place(panel=task, x=100 * float(row["p"]), unit="tokens", series=task).paper(float(row["tokens"]))


EXHIBIT = Exhibit(
    name="fig02a",
    title="Response lengths of each task, Qwen2.5-14B (Fig 2a)",
    experiments=("table1",),
    gather=gather,
    draw=partial(compare_curves, xlabel="response length (tokens)", ylabel="responses no longer (%)"),
)
