"""From which discount on workers pay: tokens per dollar by the price of a worker's GPU, of experiment=elastic-workers.

No run of its own: a price changes no step. At a discount of 0 % a worker's GPU costs as much as one of the trainer's
node; PolyRL's artifact pays 25 % of that. With g times the throughput by n workers of a quarter of the node each,

    tokens per dollar = g / (1 + n (1 - discount) / 4), which is 1 at the discount 1 - 4 (g - 1) / n.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.elastic_workers import throughputs
from rollpacker.analysis.numbers import Claim, Numbers, Place, Point, Value, over, paper_rows
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Runs
from rollpacker.config.words import counted

DISCOUNTS: Final = tuple(range(0, 101, 10))
"""Per cent off the price of the trainer's GPUs."""
WORKERS: Final = (1, 2, 4, 8)
WORKERS_PER_NODE: Final = 4
"""Workers of two GPUs that have as many as the trainer's node."""

COST = "tokens per dollar, over none"


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Take the throughputs as they are, and the prices as they might be."""
    alone = throughputs(runs.of(setup="elastic", study="elastic-workers-0"))
    paper = {int(row.x): row.y for row in paper_rows("elastic_discounts")}
    for number in WORKERS:
        found = runs.of(setup="elastic", study=f"elastic-workers-{number}")
        gains = over(throughputs(found), alone)
        series = counted(number, "worker")
        for discount in DISCOUNTS:
            dearer = 1 + number * (1 - discount / 100) / WORKERS_PER_NODE
            place = Place(panel=COST, x=float(discount), unit="x", series=series)
            yield place.ours([Value(run, gain / dearer) for run, gain in gains])
        if number in paper:
            place = Place(panel="break-even", x=float(number), unit="%")
            evens = [Value(run, 100 * (1 - WORKERS_PER_NODE * (gain - 1) / number)) for run, gain in gains]
            text = f"Spot discount from which on {counted(number, 'worker')} {'pays' if number == 1 else 'pay'}"
            yield Claim(text=text, paper=paper[number], ours=place.ours(evens), unit="%", neutral=100.0)


def draw(numbers: Numbers) -> Figure:
    """A line for each number of workers; above 1 they pay."""
    figure = compare_lines(numbers, xlabel="discount of a worker's GPU (%)")
    figure.axes[0].axhline(1, color="#9A9A9A", linewidth=0.9, linestyle=":", zorder=1)
    return figure


EXHIBIT = Exhibit(
    name="elastic_discounts",
    title="From which spot discount on rollout workers pay, Qwen3-8B (PolyRL's Fig 16)",
    experiments=("elastic-workers",),
    gather=gather,
    draw=draw,
)
