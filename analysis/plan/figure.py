"""The figure of a plan: step time by system and speculation factor with its spread, and the response lengths.

All numbers are modelled, and the figure is marked so.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from rollpacker.analysis.style import FIGURE_WIDTH_INCHES, OTHER_COLORS, color_of, label_of, save_figure, use_style
from rollpacker.config.words import counted

HEIGHT_INCHES = 3.1
BARS_FIT = 7
"""Bars whose labels do not touch in a panel of 4/7 of a figure's width."""

WORDS_FIT_FROM = 3
"""Bars under which a name of two words fits on one line."""

NO_ETA = "no eta"
"""Under the bar of a system that does not race."""


def best_degree(trials: pd.DataFrame) -> pd.DataFrame:
    """Of the runs that answer the question, each system's at the degree that was tried most often."""
    asked = trials[trials["is_asked"]]
    chosen: list[pd.DataFrame] = []
    for _, rows in asked.groupby("system", sort=False):
        by_degree = rows.groupby("tensor_parallel")["step_time_s"].agg(["size", "mean"])
        degree = by_degree.sort_values(["size", "mean"], ascending=[False, True]).index[0]
        chosen.append(rows[rows["tensor_parallel"] == degree])
    best: pd.DataFrame = pd.concat(chosen)
    return best


@mpl.rc_context({"text.parse_math": False})  # domains and systems are named by their users
def draw(trials: pd.DataFrame, lengths: pd.DataFrame, stem: Path) -> tuple[Path, Path]:
    """Write the figure as PNG and PDF."""
    use_style()
    figure = figure_of(trials, lengths)
    paths = save_figure(figure, stem)
    plt.close(figure)
    return paths


def figure_of(trials: pd.DataFrame, lengths: pd.DataFrame) -> Figure:
    """Draw both panels, that of the step times as wide as its bars need."""
    shown = best_degree(trials)
    num_bars = shown.groupby(["system", "eta"], dropna=False).ngroups
    times_inches, tails_inches = FIGURE_WIDTH_INCHES * 4 / 7 * max(1, num_bars / BARS_FIT), FIGURE_WIDTH_INCHES * 3 / 7
    figure: Figure = plt.figure(figsize=(times_inches + tails_inches, HEIGHT_INCHES), layout="constrained")
    times, tails = figure.subplots(1, 2, width_ratios=(times_inches, tails_inches))
    _draw_times(times, shown)
    _draw_lengths(tails, lengths)
    return figure


def _draw_times(axes: Axes, trials: pd.DataFrame) -> None:
    """One bar per system and factor, a dot per seed."""
    position = 0.0
    ticks, labels = [], []
    num_gpus = int(trials["num_gpus"].iloc[0])
    for number, (system, rows) in enumerate(trials.groupby("system", sort=False)):
        color, start = color_of(str(system), number), position
        for eta, of_eta in rows.groupby("eta", dropna=False):
            mean = of_eta["step_time_s"].mean()
            axes.bar(position, mean, width=0.8, color=color, alpha=0.85)
            axes.scatter(
                [position] * len(of_eta), of_eta["step_time_s"], s=11, facecolor="white", edgecolor="#333333", zorder=3
            )
            ratios = of_eta["speedup"].dropna()
            if len(ratios) and not pd.isna(eta):
                top = max(mean, of_eta["step_time_s"].max())
                axes.annotate(
                    f"{ratios.mean():.2f}x",
                    (position, top),
                    xytext=(0, 4),
                    textcoords="offset points",
                    ha="center",
                    size=8,
                )
            ticks.append(position)
            labels.append(NO_ETA if pd.isna(eta) else f"{float(str(eta)):g}")
            position += 1
        degree = int(rows["tensor_parallel"].iloc[0])
        is_narrow = rows["eta"].nunique() < WORDS_FIT_FROM
        name = label_of(str(system)).replace(" ", "\n" if is_narrow else " ")
        axes.annotate(
            f"{name}\nTP {degree}",
            ((start + position - 1) / 2, 0),
            xycoords=("data", "axes fraction"),
            xytext=(0, -18),
            textcoords="offset points",
            ha="center",
            va="top",
            color=color,
            fontweight="bold",
            size=8,
        )
        position += 0.6
    axes.set_xticks(ticks, labels)
    axes.grid(visible=False, axis="x")
    axes.set_ylim(bottom=0, top=axes.get_ylim()[1] * 1.06)
    axes.set_ylabel("seconds per step")
    axes.set_title(f"Step time by eta on {counted(num_gpus, 'GPU')} (modelled)")


def _draw_lengths(axes: Axes, lengths: pd.DataFrame) -> None:
    """The share of responses that are longer, which shows the tail."""
    limit = int(lengths["limit_tokens"].iloc[0])
    for number, (domain, rows) in enumerate(lengths.groupby("domain", sort=False)):
        shown = rows[rows["p"] < 1]
        axes.plot(
            shown["length_tokens"].clip(lower=1),
            1 - shown["p"],
            color=OTHER_COLORS[number % len(OTHER_COLORS)],
            linewidth=1.8,
            label=str(domain),
        )
    axes.axvline(limit, color="#444444", linestyle="--", linewidth=1)
    axes.annotate(
        f"limit {limit:,}",
        (limit, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-3, -2),
        textcoords="offset points",
        ha="right",
        va="top",
        size=8,
        rotation=90,
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left=max(1.0, float(lengths["length_tokens"].quantile(0.1))), right=limit * 1.3)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: f"{tokens:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("response length in tokens")
    axes.set_title("Share that is longer (modelled)")
    if lengths["domain"].nunique() > 1:
        axes.legend(loc="lower left")
