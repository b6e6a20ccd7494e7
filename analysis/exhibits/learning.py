"""What policies learned: their held-out score over steps and over time, of small real runs on this machine.

A race selects short responses and a long round hard prompts, so the reward of the batches that were trained is not the
policy's. It stands beside the score, in grey. Evaluations take no part in the times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Numbers, Place, Point, Value
from rollpacker.analysis.plots import draw_line, line_style, origin_of
from rollpacker.analysis.runs import Run, Runs, shared_index, shared_steps
from rollpacker.analysis.style import CYCLE_STEPS, FIGURE_WIDTH_INCHES, color_of, use_style

STEPS, TIME, BATCHES = "score over steps", "score over time", "training reward over steps"

_XLABELS: Final = {STEPS: "training steps", TIME: "time of these steps (s)"}
_GREY: Final = "0.75"
_NUM_TIMES = 24
"""Points of a curve over time."""


def gather(runs: Runs, study: str, systems: Mapping[str, str]) -> Iterator[Point | None]:
    """Give each system's held-out score at each evaluation and over time, and the reward of its batches."""
    for system in systems:
        found = [run for run in runs.of(study=study, system=system) if len(run.evaluations) > 1]
        yield from _over_steps(system, found)
        yield from _over_time(system, found)
        yield from _of_batches(system, found)


def score(run: Run) -> pd.Series:
    """Mean over the held-out sets, by finished steps."""
    mean: pd.Series = run.evaluations.groupby("step")["reward_mean"].mean()
    return mean


def _seconds(run: Run) -> pd.Series:
    """Time that so many steps took, in all: a run that was stopped and resumed shows no gap."""
    taken = run.steps["step_time_s"].cumsum()
    return pd.Series([0.0, *taken], index=[0, *(run.steps["step"] + 1)]).reindex(score(run).index)


def _over_steps(system: str, found: Sequence[Run]) -> Iterator[Point | None]:
    for step in shared_index(score(run) for run in found):
        place = Place(panel=STEPS, x=float(step), unit="score", series=system)
        yield place.ours(Value(run, float(score(run).loc[step])) for run in found)


def _over_time(system: str, found: Sequence[Run]) -> Iterator[Point | None]:
    """At times that all seeds reach."""
    last = min((float(_seconds(run).iloc[-1]) for run in found), default=0.0)
    for seconds in np.linspace(0, last, _NUM_TIMES) if found else ():
        place = Place(panel=TIME, x=float(seconds), unit="score", series=system)
        yield place.ours(Value(run, float(np.interp(seconds, _seconds(run), score(run)))) for run in found)


def _of_batches(system: str, found: Sequence[Run]) -> Iterator[Point | None]:
    means = [(run, run.steps["reward_mean"].rolling(CYCLE_STEPS).mean()) for run in found]
    for step in shared_steps(found):
        place = Place(panel=BATCHES, x=float(step + 1), unit="reward", series=system)
        yield place.ours(Value(run, float(mean[step])) for run, mean in means)


def draw(numbers: Numbers, systems: Mapping[str, str]) -> Figure:
    """The same scores twice, over steps and over time."""
    use_style()
    frame = numbers.frame()
    figure: Figure
    figure, panels = plt.subplots(1, 2, figsize=(FIGURE_WIDTH_INCHES, 3.2), sharey=True)
    handles = []
    style = line_style(frame)
    for panel, axes in zip((STEPS, TIME), panels, strict=True):
        for position, (system, name) in enumerate(systems.items()):
            of_system = frame[frame["series"] == system]
            color = color_of(system, position)
            if panel == STEPS:
                _draw_batches(axes, of_system[of_system["panel"] == BATCHES], style)
                handles.append(Line2D([], [], color=color, linewidth=2, linestyle=style, label=name))
            draw_line(axes, of_system[of_system["panel"] == panel], color, linewidth=1.7)
        axes.set_title(panel)
        axes.set_xlabel(_XLABELS[panel])
        axes.margins(x=0.02)
    panels[0].set_ylabel("mean held-out reward")
    batches = f"reward of the batches, {CYCLE_STEPS} steps"
    handles.append(Line2D([], [], color=_GREY, linewidth=1, linestyle=style, label=batches))
    title = f"Held-out score, {origin_of(frame, '')}"
    figure.legend(handles=handles, title=title, title_fontsize=8, loc="outside lower center", ncols=3)
    return figure


def _draw_batches(axes: Axes, rows: pd.DataFrame, style: str) -> None:
    rows = rows.sort_values("x")
    axes.plot(rows["x"].astype(float), rows["y"], color=_GREY, linewidth=0.9, linestyle=style, zorder=1)


def _exhibit(name: str, title: str, systems: Mapping[str, str], setups: tuple[str, ...]) -> Exhibit:
    return Exhibit(
        name=name,
        title=title,
        experiments=(name,),
        gather=partial(gather, study=name, systems=systems),
        draw=partial(draw, systems=systems),
        setups=setups,
    )


FIG08 = _exhibit(
    "fig08",
    "Held-out score with and without tail batching, small real runs (Fig 8)",
    {"verl": "plain batches", "tail": "tail batching"},
    setups=("walks",),
)

LEARNING = _exhibit(
    "learning",
    "Held-out score by what races, small real runs (ours)",
    {
        "verl": "plain batches",
        "tail": "prompts and responses race",
        "tail-prompts": "prompts race",
        "ours-exact": "ours-exact",
        "ours": "ours",
    },
    setups=("walks", "tiny"),
)
