"""The comparison as a figure: rollout time and held-out score over the steps, a line per column, its seeds as a band.

Of two columns every round is shown, of more the mean over a cycle, in which each kind of round has its share.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.typing import ColorType

from rollpacker.analysis.compare.columns import Column
from rollpacker.analysis.compare.numbers import Row
from rollpacker.analysis.compare.scores import Scores
from rollpacker.analysis.compare.table import error_said, is_mixed, origin_of
from rollpacker.analysis.style import (
    CYCLE_STEPS,
    FIGURE_WIDTH_INCHES,
    OTHER_COLORS,
    SYSTEM_COLORS,
    label_of,
    legend_below,
    save_figure,
    use_style,
)

_MARKERS: Final = {"plain": "o", "short": "o", "long": "D"}
_MOST_WITH_ROUNDS: Final = 2
"""Columns whose rounds can be told apart."""
_SET_STYLES: Final = tuple(zip("os^DvPX*", 2 * ("-", "--", ":", "-."), strict=True))
"""Marker and line of each held-out set; more sets than these begin again with the first."""
_PALE: Final = 0.6
"""Share of white in a column's colour where its training reward stands beside its held-out scores."""
_HEADROOM: Final = 1.03
"""Above the highest mark, so that it is whole."""
_NAME_HEIGHT: Final = 0.15
"""Share of the upper panel's height that the name of a mean takes, in two lines; in one it is half of it."""


@mpl.rc_context({"text.parse_math": False})  # labels have values of settings, with any signs
def draw(
    columns: Sequence[Column], scores: Scores, mean_row: Row, shared: Sequence[int], stem: Path
) -> tuple[Path, Path]:
    """Write the figure as PNG and PDF: rollout times above, with the means of a row; held-out scores below.

    The means are over the shared steps. Without held-out scores the training rewards take their place.
    """
    use_style()
    figure, (times, rewards) = plt.subplots(2, 1, figsize=(FIGURE_WIDTH_INCHES, 5.2), sharex=True, height_ratios=(3, 2))
    colors = list(itertools.islice(_colors(columns), len(columns)))
    has_scores = any(len(own) for own in scores.by_run.values())
    has_rounds = len(columns) <= _MOST_WITH_ROUNDS
    for column, color in zip(columns, colors, strict=True):
        label = column.label(label_of(column.system)) + (f", {origin_of([column])}" if is_mixed(columns) else "")
        if has_rounds:
            _draw_rounds(times, column, color, label)
        else:
            _draw_cycles(times, column, "rollout_time_s", color, label=label)
        if has_scores:
            _draw_cycles(rewards, column, "reward_mean", _pale(color), width=1.4)
            _draw_scores(rewards, scores.of(column.runs), scores.sets, color)
        else:
            _draw_cycles(rewards, column, "reward_mean", color)
    cycle = f"over {CYCLE_STEPS} steps"
    times.set_title(f"Rollout time {'of each step' if has_rounds else cycle} ({origin_of(columns)})")
    times.set_ylabel("seconds")
    times.set_ylim(0, _HEADROOM * times.get_ylim()[1])
    _draw_means(times, mean_row, (shared[0] + 0.5, shared[-1] + 1.5), colors)
    named_sets = _named_sets(scores.sets) if has_scores else []
    legend_below(figure, [*times.get_legend_handles_labels()[0], *named_sets], "outside lower left")
    rewards.set_title(f"Held-out score; pale: training reward {cycle}" if has_scores else f"Training reward {cycle}")
    rewards.set_ylabel("reward")
    said = error_said(columns, scores)
    bands = f"; bands: {said}" if said else ""
    rewards.set_xlabel(f"training step{bands}")
    rewards.xaxis.set_major_locator(MaxNLocator("auto", steps=(1, 2, 5, 10), integer=True, min_n_ticks=1))
    for axes in (times, rewards):
        axes.margins(x=0.02)
    paths = save_figure(figure, stem)
    plt.close(figure)
    return paths


def _colors(columns: Sequence[Column]) -> Iterator[str]:
    """The system's own colour for its first column, and others that none of them has."""
    systems = {column.system for column in columns}
    own = {system: color for system, color in SYSTEM_COLORS.items() if system in systems}
    others = itertools.cycle([*OTHER_COLORS, *(each for each in SYSTEM_COLORS.values() if each not in own.values())])
    for column in columns:
        yield own.pop(column.system, "") or next(others)


def _over_seeds(column: Column, name: str) -> pd.DataFrame:
    """A column of the `steps` table at each step that all runs have, a column per run."""
    return pd.concat([run.steps[name] for run in column.runs], axis=1, join="inner", keys=column.by_seed)


def _draw_line(axes: Axes, mean: pd.Series, error: pd.Series, color: ColorType, **line: Any) -> None:
    """Draw a mean over its x, with its error as a band; `line` is matplotlib's."""
    axes.plot(mean.index, mean, color=color, **line)
    low, high = mean - error.fillna(0), mean + error.fillna(0)
    axes.fill_between(mean.index, low, high, color=color, alpha=0.2, linewidth=0)


def _draw_rounds(axes: Axes, column: Column, color: str, label: str) -> None:
    times = _over_seeds(column, "rollout_time_s")
    times.index += 1
    mean = times.mean(axis=1)
    _draw_line(axes, mean, times.sem(axis=1), color, linewidth=0.8, alpha=0.4)
    kinds = _over_seeds(column, "round_kind").mode(axis=1)[0]
    for kind in dict.fromkeys(kinds):
        of_kind = mean[(kinds == kind).to_numpy()]
        is_long = kind == "long"
        axes.scatter(
            of_kind.index,
            of_kind,
            marker=_MARKERS.get(kind, "o"),
            s=42 if is_long else 18,
            facecolor="white" if is_long else color,
            edgecolor=color,
            linewidth=1.4,
            zorder=3,
            label=label if kind == "plain" else f"{kind} round: {label}",
        )


def _draw_means(axes: Axes, row: Row, span: tuple[float, float], colors: Sequence[str]) -> None:
    """Draw each mean over the steps that it is of, and write it at the right, as near as the others leave room."""
    means = [each.value for each in row.values if each]
    name, height = ("mean\n", _NAME_HEIGHT) if len(means) <= _MOST_WITH_ROUNDS else ("", _NAME_HEIGHT / 2)
    top = axes.get_ylim()[1]
    places = _apart([mean / top for mean in means], height)
    for mean, color, place in zip(means, colors, places, strict=True):
        axes.hlines(mean, *span, color=color, linestyle="--", linewidth=1.4)
        axes.annotate(
            f"{name}{mean:.{row.num_digits}f} {row.unit}",
            xy=(1.01, place),
            xycoords="axes fraction",
            va="center",
            color=color,
            fontweight="bold",
        )


def _apart(places: Sequence[float], distance: float) -> list[float]:
    """Move places up, or down from 1, until they lie at least a distance apart, in their order."""
    order = sorted(range(len(places)), key=lambda number: places[number])
    apart = list(places)
    lowest = distance / 2
    for number in order:
        apart[number] = max(apart[number], lowest)
        lowest = apart[number] + distance
    highest = 1 - distance / 2
    for number in reversed(order):
        apart[number] = min(apart[number], highest)
        highest = apart[number] - distance
    return apart


def _draw_cycles(
    axes: Axes, column: Column, name: str, color: ColorType, *, width: float = 2.2, label: str = ""
) -> None:
    """Draw a column of the `steps` table, smoothed over a cycle."""
    smooth = _over_seeds(column, name).rolling(CYCLE_STEPS, min_periods=1).mean()
    smooth.index += 1
    _draw_line(axes, smooth.mean(axis=1), smooth.sem(axis=1), color, linewidth=width, label=label)


def _pale(color: str) -> tuple[float, float, float]:
    red, green, blue = (_PALE + (1 - _PALE) * part for part in to_rgb(color))
    return red, green, blue


def _draw_scores(axes: Axes, scores: Sequence[pd.DataFrame], sets: Sequence[str], color: str) -> None:
    """Draw the held-out scores of each set, with their errors over seeds, or of one run over the prompts."""
    if not scores:
        return
    for name, (marker, style) in zip(sets, itertools.cycle(_SET_STYLES), strict=False):
        of_set = pd.concat([own["reward_mean", name] for own in scores], axis=1)
        error = of_set.sem(axis=1) if len(scores) > 1 else scores[0]["se_over_prompts", name]
        _draw_line(axes, of_set.mean(axis=1), error, color, linewidth=2.2, linestyle=style, marker=marker, markersize=5)


def _named_sets(sets: Sequence[str]) -> list[Line2D]:
    """What the legend shows of several held-out sets; of a single one nothing."""
    if len(sets) == 1:
        return []
    return [
        Line2D([], [], color="0.3", linewidth=1.4, linestyle=style, marker=marker, markersize=5, label=f"set {name}")
        for name, (marker, style) in zip(sets, itertools.cycle(_SET_STYLES), strict=False)
    ]
