"""Ours: tail batching against plain batches over one number of the workload that is a guess, in three panels.

`correlation` varies how alike a prompt's responses are in length; the lengths of all responses together stay as they
are. `tail_weight` varies what a length has above the 90 % quantile of its domain. Both systems meet the same prompts;
a point of a variant is a pair of runs of one seed, or a run of tail batching.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Final

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Numbers, Place, Point, Value, speedups
from rollpacker.analysis.plots import draw_line, origin_of
from rollpacker.analysis.rounds import means
from rollpacker.analysis.runs import Runs
from rollpacker.analysis.style import FIGURE_WIDTH_INCHES, OTHER_COLORS, SYSTEM_COLORS, use_style

MODEL, BASELINE, TAIL = "Qwen2.5-7B", "verl", "tail"
SPEEDUP, SHARES, TIMES = "speedup over plain batches (x)", "shares (%)", "rollout time per round (s)"

_SERIES: Final = {
    SPEEDUP: {"step": SYSTEM_COLORS["tail"], "rollout": OTHER_COLORS[3]},
    SHARES: {
        "bubble ratio, plain": SYSTEM_COLORS["verl"],
        "bubble ratio, tail": SYSTEM_COLORS["tail"],
        "tokens wasted, tail": OTHER_COLORS[1],
    },
    TIMES: {
        "plain": SYSTEM_COLORS["verl"],
        "long": OTHER_COLORS[0],
        "short": OTHER_COLORS[2],
        "tail, mean": SYSTEM_COLORS["tail"],
    },
}


def _compare(runs: Runs, studies: Mapping[float, str]) -> Iterator[Point | None]:
    """Give speedups, shares and round times at each value of what is varied."""
    for value, study in studies.items():
        plain, tail = (runs.of(model=MODEL, study=study, system=system) for system in (BASELINE, TAIL))
        found: dict[str, dict[str, Iterable[Value]]] = {
            SPEEDUP: {"step": speedups(plain, tail), "rollout": speedups(plain, tail, column="rollout_time_s")},
            SHARES: {
                "bubble ratio, plain": [Value(run, run.bubble_percent) for run in plain],
                "bubble ratio, tail": [Value(run, run.bubble_percent) for run in tail],
                "tokens wasted, tail": [Value(run, run.wasted_percent) for run in tail],
            },
            TIMES: {
                "plain": means(plain, "plain", "rollout_time_s"),
                "long": means(tail, "long", "rollout_time_s"),
                "short": means(tail, "short", "rollout_time_s"),
                "tail, mean": [Value(run, run.mean("rollout_time_s")) for run in tail],
            },
        }
        for (panel, of_panel), unit in zip(found.items(), ("x", "%", "s"), strict=True):
            for series, values in of_panel.items():
                yield Place(panel=panel, x=value, unit=unit, series=series).ours(values)


def _draw(numbers: Numbers, *, xlabel: str, usual: float) -> Figure:
    """Draw the three panels over what is varied; its value in all other exhibits is marked."""
    use_style()
    frame = numbers.frame()
    figure: Figure
    figure, panels = plt.subplots(1, 3, figsize=(FIGURE_WIDTH_INCHES, 2.9))
    for axes, (panel, colors) in zip(panels, _SERIES.items(), strict=True):
        _draw_panel(axes, frame[frame["panel"] == panel], colors)
        axes.axvline(usual, color="#444444", linewidth=1.0, linestyle=":", zorder=1)
        axes.set_title(panel, fontsize=8.5)
        axes.tick_params(labelsize=7.5)
    panels[0].axhline(1, color="#444444", linewidth=0.8)
    panels[1].set_ylim(0, 100)
    panels[2].set_ylim(bottom=0)
    figure.supxlabel(f"{xlabel}; dotted: in all other exhibits\n{origin_of(frame)}", fontsize=8)
    return figure


def _draw_panel(axes: Axes, rows: pd.DataFrame, colors: Mapping[str, str]) -> None:
    for series, color in colors.items():
        draw_line(axes, rows[rows["series"] == series], color, marker="o", label=series)
    axes.legend(fontsize=7, loc="best")


def _exhibit(*, name: str, title: str, studies: Mapping[float, str], xlabel: str, usual: float) -> Exhibit:
    return Exhibit(
        name=name,
        title=title,
        experiments=(name,),
        gather=partial(_compare, studies=studies),
        draw=partial(_draw, xlabel=xlabel, usual=usual),
    )


CORRELATION = _exhibit(
    name="correlation",
    title="Tail batching over the correlation of lengths within a prompt (ours)",
    studies={rho: f"lengths-{rho}-1.0" for rho in (0.0, 0.3, 0.6, 0.9)},
    xlabel="correlation of lengths within a prompt",
    usual=0.3,
)

TAIL_WEIGHT = _exhibit(
    name="tail_weight",
    title="Tail batching over the weight of the tail of lengths (ours)",
    studies={scale: f"lengths-0.3-{scale}" for scale in (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)},
    xlabel="factor on what a length has above P90 of its domain (0: no tail)",
    usual=1.0,
)
