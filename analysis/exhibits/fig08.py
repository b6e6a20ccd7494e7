"""Fig 8: the reward with and without tail batching, over steps and over time, of small real runs on this machine.

The paper's own curves, of validation scores, are not at hand.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Numbers, Place, Point, Value, comparing
from rollpacker.analysis.runs import Run, Runs
from rollpacker.analysis.style import FIGURE_WIDTH_INCHES, color_of, use_style

SYSTEMS = {"verl": "plain batches", "tail": "tail batching"}
STEPS, TIME = "over steps", "over time"
XLABELS = {STEPS: "training step", TIME: "time since the first step began (s)"}

CYCLE_STEPS = 5
"""Four short rounds and a long one. Short rounds leave the long responses out, so one step's reward says little."""

_NUM_TIMES = 24
"""Points of a curve over time."""


def gather(runs: Runs) -> Numbers:
    """Mean reward of the last five steps. No prompt is seen twice, so it is a score on prompts that are new."""
    points: list[Point | None] = []
    for system in SYSTEMS:
        found = [run for run in runs.of(system=system) if len(run.steps) >= CYCLE_STEPS]
        points += [*_over_steps(system, found), *_over_time(system, found)]
    return Numbers(points=comparing(points), missing=runs.missing)


def _over_steps(system: str, found: Sequence[Run]) -> list[Point | None]:
    num_steps = min((len(run.steps) for run in found), default=0)
    return [
        Place(panel=STEPS, x=float(step), unit="reward", series=system).ours(
            Value(run, float(_reward(run).iloc[step - CYCLE_STEPS])) for run in found
        )
        for step in range(CYCLE_STEPS, num_steps + 1)
    ]


def _over_time(system: str, found: Sequence[Run]) -> list[Point | None]:
    """At times that all seeds reach."""
    if not found:
        return []
    first = max(float(_seconds(run).iloc[0]) for run in found)
    last = min(float(_seconds(run).iloc[-1]) for run in found)
    return [
        Place(panel=TIME, x=float(seconds), unit="reward", series=system).ours(
            Value(run, float(np.interp(seconds, _seconds(run), _reward(run)))) for run in found
        )
        for seconds in np.linspace(first, last, _NUM_TIMES)
    ]


def _reward(run: Run) -> pd.Series:
    return run.steps["reward_mean"].rolling(CYCLE_STEPS).mean().iloc[CYCLE_STEPS - 1 :]


def _seconds(run: Run) -> pd.Series:
    """Sums of step times: a run that was stopped and resumed shows no gap."""
    return run.steps["step_time_s"].cumsum().iloc[CYCLE_STEPS - 1 :]


def draw(numbers: Numbers) -> Figure:
    """The same rewards twice: over steps and over time."""
    use_style()
    frame = numbers.frame()
    figure: Figure
    figure, panels = plt.subplots(1, 2, figsize=(FIGURE_WIDTH_INCHES, 2.9), sharey=True)
    for panel, axes in zip((STEPS, TIME), panels, strict=True):
        for position, system in enumerate(SYSTEMS):
            rows = frame[(frame["panel"] == panel) & (frame["series"] == system)].sort_values("x")
            _draw_curve(axes, rows, color_of(system, position), SYSTEMS[system])
        axes.set_title(panel)
        axes.set_xlabel(XLABELS[panel])
    panels[0].set_ylabel(f"mean reward of {CYCLE_STEPS} steps")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _draw_curve(axes: Axes, rows: pd.DataFrame, color: str, name: str) -> None:
    if rows.empty:
        return
    num_seeds = int(rows["num_seeds"].max())
    seeds = f"{num_seeds} seeds and their range" if num_seeds > 1 else "one seed"
    x = rows["x"].astype(float)
    axes.fill_between(x, rows["y_low"].astype(float), rows["y_high"].astype(float), color=color, alpha=0.2, linewidth=0)
    axes.plot(x, rows["y"], color=color, linewidth=1.5, label=f"{name}, measured, {seeds}")


EXHIBIT = Exhibit(
    name="fig08",
    title="The reward with and without tail batching, small real runs (Fig 8)",
    experiments=("fig08",),
    gather=gather,
    draw=draw,
    setups=("walks",),
)
