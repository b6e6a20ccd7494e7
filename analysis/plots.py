"""The two kinds of figure that most exhibits are: bars beside the paper's, and lines over the paper's points.

Invariant: what a model computed is drawn hatched or dashed and named `modelled`. The paper's bars are grey; its points
have a grey edge, and inside the colour of the series that runs have numbers of, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any, Final

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from rollpacker.analysis.numbers import OURS, PAPERS, Numbers, Source
from rollpacker.analysis.style import (
    FIGURE_WIDTH_INCHES,
    OTHER_COLORS,
    PAPER_LABELS,
    color_of,
    legend_below,
    use_style,
)

PAPER_COLOR = "#C4C4C4"
PAPER_DOT = "#555555"
PAPER_DOTS = (PAPER_DOT, "#A9A9A9", "#D0D0D0")
"""Of series that only the paper has, in a panel."""
_PAPER_MARK: Final[Mapping[str, Any]] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 3.7,
    "markeredgecolor": PAPER_DOT,
    "markeredgewidth": 0.8,
}
"""Of the paper's points, in a legend."""
OUR_COLOR = OTHER_COLORS[0]
"""Of our numbers where no system has a colour."""
_BAR_WIDTH = 0.38
_MOST_WIDE_BARS = 4
"""Pairs of a panel; with more, four digits are wider than a bar."""
_NO_SYSTEM = "#9A9A9A"
"""Says in a legend how bars of several colours are hatched."""
_PANEL_HEIGHT_INCHES = 2.6
_BAR_ROOM = 0.16
"""Beyond the longest bar, for its number, as a share of all bars' range."""
_HEADROOM = 1.04
"""Above the end of a line, so that its mark is whole."""
_PALE = 1.8
"""How far a map's colours go beyond its values, so that numbers stay readable on them."""
_LEGEND_ROOM = 1.15
"""Above the lines of a panel that names its series itself."""


def compare_bars(
    numbers: Numbers,
    *,
    ylabel: str = "",
    number: str = "",
    num_columns: int | None = None,
    axis_of: Callable[[str], str] = lambda _: "",
    colors: Mapping[str, str] | None = None,
) -> Figure:
    """Draw a panel for each `panel`, the paper's bar beside ours at each `x`, each with its number.

    Args:
        numbers: To draw.
        ylabel: Of all panels; empty where their titles say it.
        number: Format of the bars' numbers; empty is a digit more below ten.
        num_columns: Panels beside each other.
        axis_of: Panels of one unit share a y axis where this gives the same for their names.
        colors: Of our bars, by `x`.
    """
    use_style()
    frame = numbers.frame()
    figure, panels, first_column = _panels(frame, num_columns)
    ends = _ends(frame, axis_of)
    for panel, axes in panels:
        rows = frame[frame["panel"] == panel]
        _draw_bar_panel(axes, rows, ends[panel], number, colors or {})
        if axes in first_column:
            axes.set_ylabel(ylabel, fontsize=8.5)
    figure.legend(handles=_bar_legend(frame, _NO_SYSTEM if colors else OUR_COLOR), loc="outside lower center", ncols=2)
    return figure


def _ends(frame: pd.DataFrame, axis_of: Callable[[str], str]) -> dict[str, tuple[float, float]]:
    """The lowest and the highest number on each panel's axis, which panels of one unit may share."""
    spread = pd.DataFrame({end: frame[end].astype(float).fillna(frame["y"]) for end in ("y_low", "y_high")})
    shared = spread.groupby([frame["unit"], frame["panel"].map(axis_of)])
    lowest, highest = shared["y_low"].transform("min"), shared["y_high"].transform("max")
    return {str(panel): (low, high) for panel, low, high in zip(frame["panel"], lowest, highest, strict=True)}


def _draw_bar_panel(
    axes: Axes, rows: pd.DataFrame, ends: tuple[float, float], number: str, colors: Mapping[str, str]
) -> None:
    places = {x: place for place, x in enumerate(dict.fromkeys(rows["x"]))}
    shift = _BAR_WIDTH / 2 if rows["series"].nunique() > 1 else 0.0
    for offset, series in ((-shift, PAPERS), (shift, OURS)):
        _draw_bars(axes, rows[rows["series"] == series], places, offset, number, colors)
    axes.set_xticks(list(places.values()), list(places))
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(visible=False, axis="x")
    axes.set_title(str(rows["panel"].iloc[0]))
    lowest, highest = min(0.0, ends[0]), max(0.0, ends[1])
    room = _BAR_ROOM * (highest - lowest)
    axes.set_ylim(lowest - room * (lowest < 0), highest + room or 1.0)
    if lowest < 0:
        axes.axhline(0, color="#333333", linewidth=0.8, zorder=1)


def _draw_bars(  # noqa: PLR0917
    axes: Axes, rows: pd.DataFrame, places: dict[str, int], offset: float, number: str, colors: Mapping[str, str]
) -> None:
    if rows.empty:
        return
    bars = axes.bar(
        [places[x] + offset for x in rows["x"]],
        rows["y"],
        width=_BAR_WIDTH,
        color=[
            PAPER_COLOR if source == Source.PAPER else colors.get(x, OUR_COLOR)
            for x, source in zip(rows["x"], rows["source"], strict=True)
        ],
        edgecolor="white",
        hatch=["////" if source == Source.MODELLED else "" for source in rows["source"]],
        linewidth=0.5,
    )
    positions = np.array([bar.get_x() + bar.get_width() / 2 for bar in bars])
    has_spread = (rows["num_seeds"] > 1).to_numpy()
    several = rows[has_spread]
    spread = [several["y"] - several["y_low"], several["y_high"] - several["y"]]
    axes.errorbar(
        positions[has_spread], several["y"], yerr=spread, fmt="none", ecolor="#333333", elinewidth=1, capsize=2
    )
    ends = rows["y_high"].where(rows["y"] >= 0, rows["y_low"]).fillna(rows["y"])
    for position, value, end in zip(positions, rows["y"], ends, strict=True):
        axes.annotate(
            number.format(value) if number else f"{value:.0f}" if abs(value) >= 10 else f"{value:.1f}",  # noqa: PLR2004
            (position, end),
            xytext=(0, 2 if value >= 0 else -2),
            textcoords="offset points",
            ha="center",
            va="bottom" if value >= 0 else "top",
            fontsize=6.5 if len(places) <= _MOST_WIDE_BARS else 5.8,
        )


def _bar_legend(frame: pd.DataFrame, color: str = OUR_COLOR) -> list[Patch]:
    handles = [Patch(color=PAPER_COLOR, label="paper")] if (frame["source"] == Source.PAPER).any() else []
    for source in (Source.MODELLED, Source.MEASURED):
        if (frame["source"] == source).any():
            hatch = "////" if source is Source.MODELLED else None
            handles.append(Patch(facecolor=color, edgecolor="white", hatch=hatch, label=seeds_said(frame, source)))
    return handles


def compare_lines(
    numbers: Numbers,
    *,
    xlabel: str | Mapping[str, str],
    ylabel: str = "",
    are_sizes: bool = False,
    num_columns: int | None = None,
) -> Figure:
    """Draw a panel for each `panel` and a colour for each `series`: ours as a line, the paper's as points.

    `xlabel` may differ by panel. Sizes, as of clusters, lie on a logarithmic axis, each marked and named.
    """
    use_style()
    frame = numbers.frame()
    figure, panels, _ = _panels(frame, num_columns)
    colors = _colors(frame)
    for panel, axes in panels:
        rows = frame[frame["panel"] == panel]
        _draw_line_panel(axes, rows, colors, marker="o" if are_sizes else None)
        if are_sizes:
            _name_sizes(axes, sorted(rows["x"].unique()))
        axes.set_xlabel(xlabel if isinstance(xlabel, str) else xlabel[panel])
    if ylabel:
        figure.supylabel(ylabel, fontsize=9)
    shared = frame[frame["series"].isin(_ours(frame))]
    handles = [*_line_legend(frame, colors), *origin_handles(shared)]
    legend_below(figure, handles)
    return figure


def compare_panels(
    numbers: Numbers,
    *,
    xlabels: Mapping[str, str],
    num_columns: int,
    axis_of: Callable[[str], str] = lambda panel: panel,
    special: Mapping[str, Callable[[Axes, pd.DataFrame], None]] | None = None,
) -> Figure:
    """Draw bars, as `compare_bars` does, where the `x` of a panel are names, and lines over numbers.

    Args:
        numbers: To draw.
        xlabels: Of the panels with lines, which name their series themselves.
        num_columns: Panels beside each other.
        axis_of: As in `compare_bars`.
        special: What draws a panel of another form.
    """
    use_style()
    frame = numbers.frame()
    figure, panels, _ = _panels(frame, num_columns)
    ends = _ends(frame, axis_of)
    has_names = frame["x"].map(lambda x: isinstance(x, str))
    for panel, axes in panels:
        is_panel = frame["panel"] == panel
        rows = frame[is_panel]
        if special and panel in special:
            special[panel](axes, rows)
        elif has_names[is_panel].all():
            _draw_bar_panel(axes, rows, ends[panel], "", {})
        else:
            colors = _colors(rows)
            _draw_line_panel(axes, rows, colors)
            axes.set_xlabel(xlabels[panel])
            if len(colors) > 1:
                axes.set_ylim(top=_LEGEND_ROOM * axes.get_ylim()[1])
                series = _line_legend(rows, colors)
                axes.legend(handles=series, loc="upper left", ncols=3, fontsize=7, handlelength=1.6, columnspacing=1.0)
    bars, lines = _bar_legend(frame[has_names]), origin_handles(frame[~has_names])
    handles = [*bars, *lines] if bars else lines
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def compare_curves(numbers: Numbers, *, xlabel: str, ylabel: str) -> Figure:
    """Draw shares (`x`, %) over quantities (`y`) on a logarithmic axis: ours as a line, the paper's as points."""
    use_style()
    frame = numbers.frame()
    figure, panels, first_column = _panels(frame, None)
    for panel, axes in panels:
        rows = frame[frame["panel"] == panel]
        paper, own = rows[rows["source"] == Source.PAPER], rows[rows["source"] != Source.PAPER].sort_values("x")
        axes.scatter(paper["y"], paper["x"], s=9, color=PAPER_DOT, linewidth=0)
        if not own.empty:
            x, style = own["x"].astype(float), line_style(own)
            low, high = own["y_low"].astype(float), own["y_high"].astype(float)
            axes.fill_betweenx(x, low, high, color=OUR_COLOR, alpha=0.15, linewidth=0)
            axes.plot(own["y"], x, color=OUR_COLOR, linewidth=1.2, linestyle=style, marker="o", markersize=2.5)
        axes.set_xscale("log")
        axes.set_title(panel)
        axes.set_xlabel(xlabel)
        axes.set_ylim(0, 101)
        if axes in first_column:
            axes.set_ylabel(ylabel, fontsize=8.5)
    handles = origin_handles(frame, paper_face=PAPER_DOT, our_color=OUR_COLOR, our_marker="o")
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def draw_map(
    axes: Axes, speedups: np.ndarray[tuple[int, int], np.dtype[np.float64]], number: str
) -> dict[tuple[int, int], Text]:
    """Draw speedups as a table whose cells are blue above 1 and red below; gives the cells' texts."""
    limit = _PALE * max(float(np.nanmax(np.abs(np.log(speedups)))), 0.01)
    axes.imshow(np.log(speedups), cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto", origin="lower")
    axes.grid(visible=False)
    return {
        (row, column): axes.text(column, row, number.format(value), ha="center", va="center", fontsize=9)
        for (row, column), value in np.ndenumerate(speedups)
        if not np.isnan(value)
    }


def compare_situations(numbers: Numbers, *, panel: str, told: Mapping[str, str], caption: str, model: str) -> Figure:
    """Draw a table of speedups: a row for each `series` that has one, a column for each `x`, the highest in bold.

    Args:
        numbers: To draw.
        panel: Of the speedups.
        told: Other panels, and the formats in which their numbers stand below the speedups.
        caption: What the numbers are.
        model: Named if they are modelled.
    """
    use_style()
    frame = numbers.frame()
    compared = frame[frame["panel"] == panel]
    rows, columns = list(dict.fromkeys(compared["series"])), list(dict.fromkeys(compared["x"]))
    grids: Mapping[str, np.ndarray[tuple[int, int], np.dtype[np.float64]]] = {
        str(name): of_panel.pivot(index="series", columns="x", values="y").reindex(rows, columns=columns).to_numpy()
        for name, of_panel in frame.groupby("panel")
    }
    figure: Figure
    figure, axes = plt.subplots(figsize=(FIGURE_WIDTH_INCHES, 1.2 + 0.42 * len(rows)))
    figure.supxlabel(f"{caption}\n{origin_of(frame, model, has_range=False)}", fontsize=7.5)
    if compared.empty:  # no run to compare with
        axes.set_axis_off()
        return figure
    faster = grids[panel]
    texts = draw_map(axes, faster, "{:.2f}x")
    for (row, column), text in texts.items():
        if faster[row, column] == np.nanmax(faster[row]):
            text.set_fontweight("bold")
        text.set_y(row - 0.14)
        below = ", ".join(form.format(grids[name][row, column]) for name, form in told.items())
        axes.text(column, row + 0.25, below, ha="center", va="center", fontsize=6)
    axes.set_xticks(range(len(columns)), columns, fontsize=7.5)
    axes.set_yticks(range(len(rows)), rows, fontsize=7.5)
    axes.xaxis.tick_top()
    axes.invert_yaxis()
    return figure


def _name_sizes(axes: Axes, sizes: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,.0f}" if size == round(size) else f"{size:g}" for size in sizes])
    axes.minorticks_off()


def _colors(frame: pd.DataFrame) -> dict[str, str]:
    """Of each series; those that only the paper has are grey."""
    ours = _ours(frame)
    alone = [name for name in dict.fromkeys(frame["series"]) if name not in ours]
    own_colors = {name: color_of(name, position) for position, name in enumerate(ours)}
    return own_colors | dict(zip(alone, cycle(PAPER_DOTS), strict=False))


def _ours(frame: pd.DataFrame) -> list[str]:
    """The series that runs have numbers of."""
    return list(dict.fromkeys(frame.loc[frame["source"] != Source.PAPER, "series"]))


def _draw_line_panel(axes: Axes, rows: pd.DataFrame, colors: Mapping[str, str], marker: str | None = None) -> None:
    for system, of_system in rows.groupby("series", sort=False):
        _draw_series(axes, of_system, colors[str(system)], marker)
    axes.set_title(str(rows["panel"].iloc[0]))
    low, high = axes.get_ylim()
    is_signed = (rows["y"] < 0).any()
    if is_signed:
        axes.axhline(0, color="#333333", linewidth=0.8, zorder=1)
    axes.set_ylim(bottom=low if is_signed else 0, top=_HEADROOM * high)


def _draw_series(axes: Axes, rows: pd.DataFrame, color: str, marker: str | None) -> None:
    paper = rows[rows["source"] == Source.PAPER]
    axes.scatter(paper["x"], paper["y"], s=12, facecolor=color, edgecolor=PAPER_DOT, linewidth=0.8, zorder=3)
    draw_line(axes, rows[rows["source"] != Source.PAPER], color, marker=marker)


def draw_line(axes: Axes, rows: pd.DataFrame, color: str, *, linewidth: float = 1.3, **line: Any) -> None:
    """Draw our numbers of one series over x with their range over the seeds; nothing without any."""
    if rows.empty:
        return
    rows = rows.sort_values("x")
    x, low, high = (rows[column].astype(float) for column in ("x", "y_low", "y_high"))
    axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    axes.plot(x, rows["y"], color=color, linewidth=linewidth, linestyle=line_style(rows), markersize=3, **line)


def _line_legend(frame: pd.DataFrame, colors: Mapping[str, str]) -> list[Line2D]:
    line: dict[str, Any] = {"linestyle": line_style(frame)}
    ours = _ours(frame)
    return [
        Line2D([], [], color=color, label=PAPER_LABELS.get(name, name), **(line if name in ours else _PAPER_MARK))
        for name, color in colors.items()
    ]


def line_style(rows: pd.DataFrame) -> str:
    """Of a line through our numbers: dashed where a model computed them."""
    return "--" if (rows["source"] == Source.MODELLED).any() else "-"


def hatch_of(rows: pd.DataFrame) -> str:
    """Of bars of our numbers: hatched where a model computed them."""
    return "////" if (rows["source"] == Source.MODELLED).any() else ""


def origin_handles(
    frame: pd.DataFrame, *, paper_face: str = "white", our_color: str = "#555555", our_marker: str | None = None
) -> list[Line2D]:
    """Say in a legend of lines where numbers come from, and what marks it."""
    handles = []
    if (frame["source"] == Source.PAPER).any():
        handles.append(Line2D([], [], color=paper_face, label="paper", **_PAPER_MARK))
    for source in (Source.MODELLED, Source.MEASURED):
        if (frame["source"] == source).any():
            style = "--" if source is Source.MODELLED else "-"
            mark: dict[str, Any] = {"color": our_color, "linestyle": style, "marker": our_marker, "markersize": 2.5}
            handles.append(Line2D([], [], label=seeds_said(frame, source), **mark))
    return handles


def seeds_said(frame: pd.DataFrame, source: Source, *, has_range: bool = True) -> str:
    """Name our numbers, with the number of seeds behind them, and their range where it is drawn."""
    num_seeds = frame.loc[frame["source"] == source, "num_seeds"]
    most = int(num_seeds.max())
    if most == 1:
        return f"{source}, one seed"
    counted = f"{most}" if num_seeds.min() == most else f"up to {most}"
    return f"{source}, mean of {counted} seeds{' and their range' if has_range else ''}"


def _panels(frame: pd.DataFrame, num_columns: int | None) -> tuple[Figure, Sequence[tuple[str, Axes]], Sequence[Axes]]:
    """A panel for each `panel` with its axes, and those of the first column."""
    names = list(dict.fromkeys(frame["panel"]))
    columns = min(num_columns or 3, len(names))
    num_rows = math.ceil(len(names) / columns)
    size = (FIGURE_WIDTH_INCHES, _PANEL_HEIGHT_INCHES * num_rows + 0.4)
    figure, axes = plt.subplots(num_rows, columns, figsize=size, squeeze=False)
    for unused in axes.flat[len(names) :]:
        unused.set_visible(False)
    return figure, list(zip(names, axes.flat, strict=False)), list(axes[:, 0])


def origin_of(frame: pd.DataFrame, model: str = "Qwen2.5-7B", *, has_range: bool = True) -> str:
    """Say below a figure where its numbers come from; `model` is named if they are modelled."""
    source = Source.MODELLED if (frame["source"] == Source.MODELLED).any() else Source.MEASURED
    said = seeds_said(frame, source, has_range=has_range)
    return f"{said}, {model}" if model and source is Source.MODELLED else said
