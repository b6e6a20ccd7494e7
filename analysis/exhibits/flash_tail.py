"""Ours: tail batching against asynchronous training on as many GPUs: when which.

Of each system on 16 to 128 GPUs, with short and with long responses: how much faster it is than synchronous training,
how old a trained token is in the mean, and how long trained responses are against those of synchronous training, which
are the policy's. It draws the runs of `flash_fig01b`; divided runs are at their best split of three.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.flash_sizes import EXPERIMENTS, NUM_GPUS, WORKLOADS, best_splits, in_turns
from rollpacker.analysis.numbers import Numbers, Place, Point, Value, comparing, speedups
from rollpacker.analysis.plots import draw_map, origin_of
from rollpacker.analysis.runs import Run, Runs
from rollpacker.analysis.style import FIGURE_WIDTH_INCHES, use_style

SPEEDUP, AGE, LENGTH = "speedup over synchronous", "mean age of trained tokens", "trained over policy's length"
IN_TURNS: Final = {
    "rollpacker": "tail batching",
    "tail-prompts": "tail batching,\nprompts race alone",
    "flash": "flash\nin turns",
    "roll-flash": "roll-flash\nin turns",
}
DIVIDED: Final = "roll-flash\ndivided"


def gather(runs: Runs) -> Numbers:
    """Three numbers for each system, lengths and number of GPUs."""
    return Numbers(points=comparing(_points(runs)), missing=runs.missing)


def _points(runs: Runs) -> Iterator[Point | None]:
    for workload, title in WORKLOADS.items():
        for num_gpus in NUM_GPUS:
            plain = in_turns(runs, "verl", num_gpus, workload)
            found = {name: in_turns(runs, system, num_gpus, workload) for system, name in IN_TURNS.items()}
            found[DIVIDED] = [run for run, _ in best_splits(runs, num_gpus, workload)]
            for name, of_system in found.items():
                situation = f"{title}, {num_gpus} GPUs"
                yield Place(panel=SPEEDUP, x=name, unit="x", series=situation).ours(speedups(plain, of_system))
                ages = [Value(run, float(run.steps["staleness_mean"].mean())) for run in of_system]
                yield Place(panel=AGE, x=name, unit="versions", series=situation).ours(ages)
                yield Place(panel=LENGTH, x=name, unit="x", series=situation).ours(_lengths(plain, of_system))


def _lengths(plain: Sequence[Run], found: Sequence[Run]) -> Iterator[Value]:
    of_policy = {run.seed: _mean_length(run) for run in plain}
    for run in found:
        if run.seed in of_policy:
            yield Value(run, _mean_length(run) / of_policy[run.seed])


def _mean_length(run: Run) -> float:
    return float(run.steps["tokens_trained"].sum() / run.steps["num_responses"].sum())


def draw(numbers: Numbers) -> Figure:
    """A table: a row for each situation, a column for each system, the fastest of a row in bold."""
    use_style()
    frame = numbers.frame()
    rows, columns = list(dict.fromkeys(frame["series"])), list(dict.fromkeys(frame["x"]))
    grids: Mapping[str, np.ndarray[tuple[int, int], np.dtype[np.float64]]] = {
        str(panel): of_panel.pivot(index="series", columns="x", values="y").reindex(rows, columns=columns).to_numpy()
        for panel, of_panel in frame.groupby("panel")
    }
    figure: Figure
    figure, axes = plt.subplots(figsize=(FIGURE_WIDTH_INCHES, 1.2 + 0.42 * len(rows)))
    faster = grids[SPEEDUP]
    texts = draw_map(axes, faster, "{:.2f}x")
    for (row, column), text in texts.items():
        if faster[row, column] == np.nanmax(faster[row]):
            text.set_fontweight("bold")
        text.set_y(row - 0.14)
        told = f"age {grids[AGE][row, column]:.1f}, length {grids[LENGTH][row, column]:.2f}"
        axes.text(column, row + 0.25, told, ha="center", va="center", fontsize=6)
    axes.set_xticks(range(len(columns)), columns, fontsize=7.5)
    axes.set_yticks(range(len(rows)), rows, fontsize=7.5)
    axes.xaxis.tick_top()
    axes.invert_yaxis()
    figure.supxlabel(
        f"{SPEEDUP}; {AGE} (versions); {LENGTH}\n{origin_of(frame, 'Qwen3-8B, 128 prompts x 8 responses')}",
        fontsize=7.5,
    )
    return figure


EXHIBIT = Exhibit(
    name="flash_tail",
    title="Tail batching against asynchronous training on as many GPUs: when which (ours)",
    experiments=EXPERIMENTS,
    gather=gather,
    draw=draw,
)
