"""Table 2: what each technique adds over plain batches, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import ALL_SETUPS, Exhibit
from rollpacker.analysis.numbers import Claim, Numbers, Place, Point, paper_rows, speedups
from rollpacker.analysis.plots import compare_bars
from rollpacker.analysis.runs import Runs
from rollpacker.analysis.style import color_of

MODELS = {"Qwen2.5-7B": "Qwen2.5-7B/8k", "Qwen2.5-14B": "Qwen2.5-14B/16k"}
"""What the paper's rows call them."""

LADDER = {
    "verl": ("veRL Baseline", "veRL"),
    "tail": ("+ Tail Batching", "+ tail"),
    "tail-reward": ("+ Reward", "+ reward"),
    "tail-reward-planner": ("+ Parallelism", "+ planner"),
    "rollpacker": ("+ Trainer", "+ stream"),
}
"""Each system: the paper's row that has so much, and what the figure calls it."""


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Speedups over verl."""
    of_paper = {(row.series, row.x): row.y for row in paper_rows("table02")} if runs.are_papers_size else {}
    for model in runs.models(*MODELS):
        plain = runs.of(model=model, system="verl", task="mix")
        rungs = ""
        for system, (row, label) in LADDER.items():
            rungs = f"{rungs} {label}".strip()
            place = Place(panel=model, x=label, unit="x")
            ours = place.ours(speedups(plain, runs.of(model=model, system=system, task="mix")))
            yield ours
            if (paper := of_paper.get((MODELS.get(model, ""), row))) is not None:
                yield place.paper(paper)
                if system != "verl":
                    text = f"{model}: {rungs}, over veRL"
                    yield Claim(text=text, paper=paper, ours=ours, unit="x", neutral=1.0)


def draw(numbers: Numbers) -> Figure:
    """One panel per model, the paper's bars beside ours."""
    colors = {label: color_of(system, position) for position, (system, (_, label)) in enumerate(LADDER.items())}
    return compare_bars(numbers, ylabel="speedup over veRL", number="{:.2f}", colors=colors)


EXHIBIT = Exhibit(
    name="table2",
    title="What each technique adds over plain batches (Table 2)",
    experiments=("table2",),
    note="Speedups are ratios of the sums of step times, over the steps that both runs have.",
    gather=gather,
    draw=draw,
    setups=ALL_SETUPS,
)
