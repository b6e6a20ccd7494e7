"""PolyRL's throughput and tokens per dollar by number of rollout workers, and ours on a modelled node of the same size.

The model is fitted to the baseline alone: its lengths to the tokens of a step without workers, its engines and trainer
to the 1,080 engine-seconds of rollout and the 130 s of training that follow from PolyRL's table of seeding times
(`conf/setup/elastic.yaml`). All that workers change is prediction. The first steps, in which workers start and the
seeding time is learned, are left out. Prices are those of PolyRL's artifact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Claim, Numbers, Place, Point, Value, over, paper_rows
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Run, Runs
from rollpacker.config.words import counted

WORKERS: Final = (0, 1, 2, 3, 4, 6, 8)
NUM_FIRST_STEPS: Final = 5
"""Left out: workers start in the first one, and the seeding time is learned."""

THROUGHPUT, COST = "trained tokens per second", "tokens per dollar, over none"
SERIES: Final = "rollout workers"
IDEAL: Final = "no GPU ever idle"


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Means over the steps from the sixth on."""
    rows = paper_rows("elastic_workers")
    given = {(row.panel, row.series, int(row.x)): row.y for row in rows}
    reported = {int(row.x): row.y for row in rows if row.panel == "throughput"}
    rates = {number: throughputs(runs.of(setup="elastic", study=f"elastic-workers-{number}")) for number in WORKERS}
    for number in WORKERS:
        dearer = 1 + number * given["price", "worker", 1] / given["price", "trainer", 0]
        per_dollar = [Value(run, gain / dearer) for run, gain in over(rates[number], rates[0])]
        for panel, unit, values, paper in (
            (THROUGHPUT, "tokens/s", rates[number], reported.get(number)),
            (COST, "x", per_dollar, reported[number] / reported[0] / dearer if number in reported else None),
        ):
            place = Place(panel=panel, x=float(number), unit=unit, series=SERIES)
            ours = place.ours(values)
            yield ours
            if paper is not None:
                yield place.paper(paper)
                if number:
                    text = f"Qwen3-8B with {counted(number, 'worker')}: {panel}"
                    neutral = reported[0] if panel == THROUGHPUT else 1.0
                    yield Claim(text=text, paper=paper, ours=ours, unit=unit, neutral=neutral)


def throughputs(found: Iterable[Run], *, first: int = NUM_FIRST_STEPS) -> list[Value]:
    """Of each run, from one step on."""
    return [Value(run, throughput(run, first=first)) for run in found]


def throughput(run: Run, *, first: int = NUM_FIRST_STEPS) -> float:
    """Trained tokens per second from one step on, all of a step's time counted; NaN without such a step."""
    steps = run.steps.loc[first:]
    return float(steps["tokens_trained"].sum() / steps["step_time_s"].sum()) if len(steps) else float("nan")


def draw(numbers: Numbers) -> Figure:
    """Both over the number of workers; beside them what engines and trainer that never idle would reach."""
    figure = compare_lines(numbers, xlabel="rollout workers, of two GPUs each")
    given = {(row.panel, row.series): row.y for row in paper_rows("elastic_workers") if row.panel != "throughput"}
    num_local, work_s = given["seeding", "local engines"], given["seeding", "rollout"]
    train_s = given["seeding", "training"]
    alone_s = work_s / num_local + train_s
    for axes in figure.axes:
        is_cost = axes.get_title(loc="left") == COST
        base = next(row.y for row in paper_rows("elastic_workers") if row.panel == "throughput")
        speedups = [alone_s / max(train_s, (work_s + num_local * train_s) / (num_local + n)) for n in WORKERS]
        dearer = [1 + n * given["price", "worker"] / given["price", "trainer"] if is_cost else 1 for n in WORKERS]
        ideal = [(1 if is_cost else base) * gain / price for gain, price in zip(speedups, dearer, strict=True)]
        axes.plot(WORKERS, ideal, color="#9A9A9A", linewidth=0.9, linestyle=":", zorder=1)
        axes.annotate(IDEAL, (WORKERS[3], ideal[3]), xytext=(-4, 4), textcoords="offset points", ha="right", fontsize=7)
        axes.set_ylim(top=1.05 * max(ideal))
    return figure


EXHIBIT = Exhibit(
    name="elastic_workers",
    title="Throughput and tokens per dollar by rollout workers, Qwen3-8B, beside PolyRL's measurements",
    experiments=("elastic-workers",),
    note="The model is fitted to the node without workers alone: all that workers change is prediction.",
    gather=gather,
    draw=draw,
)
