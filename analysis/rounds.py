"""What the rounds of systems are like, step by step: short and long ones of tail batching beside plain ones.

Invariant: a series is one kind of round of one system, as `tail, short`; all kinds of a system share its colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Numbers, Place, Point, Value
from rollpacker.analysis.plots import origin_handles
from rollpacker.analysis.runs import PAPER_SETUP, Run, Runs, shared_steps
from rollpacker.analysis.style import FIGURE_WIDTH_INCHES, PAPER_LABELS, color_of, legend_below, use_style

KINDS = ("plain", "short", "long")
_MARKERS = {"plain": "o", "short": "o", "long": "D"}

_HEADROOM = 1.12
"""Above the highest mark, where the name of a mean may have to stand."""


class Measure(NamedTuple):
    """What is drawn of each round."""

    column: str
    """Of the `steps` table."""
    unit: str
    label: str


LONGEST = Measure("response_length_max_tokens", "tokens", "longest response (tokens)")
"""Of the responses that were trained: an aborted one may have been longer."""

ROLLOUT = Measure("rollout_time_s", "s", "rollout time (s)")
"""Rewards that come after the rollout are not in it."""


def rounds_exhibit(
    measure: Measure,
    *,
    name: str,
    title: str,
    systems: Sequence[str],
    models: Sequence[str],
    experiments: tuple[str, ...],
    setups: tuple[str, ...] = (PAPER_SETUP,),
) -> Exhibit:
    """The exhibit of one measure at each step, a panel per model and a mark per round."""
    gather = partial(_gather, models=models, systems=systems, measure=measure)
    draw = partial(draw_rounds, ylabel=measure.label)
    return Exhibit(name=name, title=title, experiments=experiments, gather=gather, draw=draw, setups=setups)


def _gather(runs: Runs, *, models: Sequence[str], systems: Sequence[str], measure: Measure) -> Iterator[Point | None]:
    """Steps count from 1, as in the paper."""
    for model in runs.models(*models):
        for system in systems:
            found = runs.of(model=model, system=system, task="mix")
            for step in shared_steps(found):
                for kind in KINDS:
                    place = Place(panel=model, x=float(step + 1), unit=measure.unit, series=f"{system}, {kind}")
                    of_kind = [run for run in found if run.steps["round_kind"][step] == kind]
                    yield place.ours(Value(run, float(run.steps[measure.column][step])) for run in of_kind)


def rounds_of(run: Run, kind: str) -> pd.DataFrame:
    """The steps of a run whose round is of one kind."""
    return run.steps[run.steps["round_kind"] == kind]


def means(runs: Iterable[Run], kind: str, column: str) -> list[Value]:
    """Of one column over each run's rounds of a kind; no value where there are none."""
    return [Value(run, float(rounds[column].mean())) for run in runs if len(rounds := rounds_of(run, kind))]


def draw_rounds(numbers: Numbers, *, ylabel: str) -> Figure:
    """Draw a panel per model: a mark per round, filled when it is short or plain, and the mean of each system."""
    use_style()
    frame = numbers.frame()
    frame[["system", "kind"]] = frame["series"].str.split(", ", expand=True)
    models = list(dict.fromkeys(frame["panel"]))
    systems = {system: color_of(system, position) for position, system in enumerate(dict.fromkeys(frame["system"]))}
    figure: Figure
    figure, panels = plt.subplots(1, len(models), figsize=(FIGURE_WIDTH_INCHES, 3.0), squeeze=False, sharey=True)
    for model, axes in zip(models, panels.flat, strict=True):
        of_model = frame[frame["panel"] == model]
        for system, color in systems.items():
            _draw_system(axes, of_model[of_model["system"] == system].sort_values("x"), color)
        unit = f" {frame['unit'].iloc[0]}" if frame["unit"].iloc[0] == "s" else ""
        _name_means(axes, of_model.groupby("system", sort=False)["y"].mean(), systems, unit)
        axes.set_title(model)
        axes.set_xlabel("training step")
        axes.set_ylim(bottom=0, top=max(1.0, _HEADROOM * frame["y_high"].max()))
        axes.yaxis.set_major_formatter("{x:,.0f}")
    figure.supylabel(ylabel, fontsize=9)
    kinds = dict.fromkeys(zip(frame["system"], frame["kind"], strict=True))
    handles = [_mark(systems[system], system, kind) for system, kind in kinds]
    handles += origin_handles(frame)
    legend_below(figure, handles)
    return figure


def _draw_system(axes: Axes, rows: pd.DataFrame, color: str) -> None:
    axes.plot(rows["x"], rows["y"], color=color, linewidth=0.7, alpha=0.5, linestyle="--")
    axes.vlines(rows["x"], rows["y_low"].astype(float), rows["y_high"].astype(float), color=color, linewidth=0.8)
    for kind, of_kind in rows.groupby("kind", sort=False):
        face = "white" if kind == "long" else color
        axes.scatter(
            of_kind["x"],
            of_kind["y"],
            marker=_MARKERS[str(kind)],
            s=20 if kind == "long" else 9,
            facecolor=face,
            edgecolor=color,
            linewidth=1.0,
            zorder=3,
        )


def _name_means(axes: Axes, means: pd.Series, systems: dict[str, str], unit: str) -> None:
    """Write each mean at the right end of its line; the largest above the line and the others below, to keep apart."""
    for system, mean in means.items():
        color = systems[str(system)]
        axes.axhline(mean, color=color, linestyle=":", linewidth=1.2)
        axes.annotate(
            f"mean\n{mean:,.0f}{unit}",
            xy=(1.01, mean),
            xycoords=("axes fraction", "data"),
            va="bottom" if mean >= means.max() else "top",
            fontsize=7,
            color=color,
        )


def _mark(color: str, system: str, kind: str) -> Line2D:
    name = PAPER_LABELS.get(system, system)
    return Line2D(
        [],
        [],
        color=color,
        marker=_MARKERS[kind],
        markersize=4.5 if kind == "long" else 3.5,
        markerfacecolor="white" if kind == "long" else color,
        linestyle="none",
        label=name if kind == "plain" else f"{name}, {kind} rounds",
    )
