"""The page's figures. What a mark stands for is also said in its tooltip."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from rollpacker.report.style import CYCLE_STEPS, PAGE_COLORS, STAGES
from rollpacker.report.svg import WIDTHS, Mark, Plot, add_marks, bar, set_time_axis, to_svg
from rollpacker.report.words import count, plural, seconds
from rollpacker.timeline.run_tables import ASYNC
from rollpacker.timeline.stretches import natural_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    import pandas as pd
    from markupsafe import Markup
    from matplotlib.axes import Axes

    from rollpacker.report.story import EngineUse, RoundPicture

ROW_PX: Final = 16
"""Of a chart with a row per actor."""

MOST_BARS: Final = 120
"""More steps than that share bars: a bar of 4 pixels is the narrowest that one can point at."""

MOST_ENGINES: Final = 40
"""More engines are drawn by an even choice of them."""

MOST_CHARACTERS: Final = 14
"""Of the label of a row; a longer name is cut."""

MOST_ACTORS: Final = 8

LOWEST: Final = 0.08
"""Of a row's height, how high one request is at least, however many others there are: a straggler must be seen."""

RowType = TypeVar("RowType")


class Line(NamedTuple):
    """One line of a panel."""

    name: str
    color: str
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    error: npt.NDArray[np.float64] | None = None
    """Drawn as a band of so much on each side."""


class Panel(NamedTuple):
    """Lines over steps."""

    title: str
    lines: Sequence[Line]
    is_smoothed: bool = True
    """Drawn thin, with the mean over a cycle of rounds as the thick line."""


def color(name: str) -> str:
    """The light colour of a CSS variable, by which a figure is drawn."""
    return PAGE_COLORS[name][0]


def mean_steps(rows: Mapping[str, Mapping[str, float]]) -> Markup:
    """Draw a bar per run, its mean step by stage, on one axis of seconds."""
    highest = max(sum(stages.values()) for stages in rows.values())

    def draw(axes: Axes) -> None:
        width = axes.figure.bbox.width
        marks = []
        for row, (name, stages) in enumerate(rows.items()):
            left, whole = 0.0, sum(stages.values()) or 1.0
            for stage, value in stages.items():
                percent = f"{100 * value / whole:.0f} %"
                tip = f"{name}, {STAGES[stage][0]}: {seconds(value)}, {percent}"
                marks.append(bar((left, left + value), (row - 0.36, row + 0.36), color(stage), tip))
                if value * width > 50 * highest:  # room for the number
                    axes.text(left + value / 2, row, percent, ha="center", va="center", color=color("on"))
                left += value
            axes.text(left + 0.01 * highest, row, seconds(left), va="center", fontweight="bold")
        add_marks(axes, marks)
        set_rows(axes, list(rows), len(rows))
        axes.set_xlim(0, highest * (1.0 + 130 / width))
        set_time_axis(axes, "x", highest)

    plot = Plot("", draw, height=40 + 36 * len(rows), left=label_px(list(rows)))
    return to_svg("mean step by stage", [plot])


def per_step(
    frames: Mapping[str, pd.DataFrame],
    notes: Mapping[str, Mapping[int, str]],
    *,
    is_time: bool,
    description: str,
) -> Markup:
    """Draw stacked bars over the steps, a panel per run; columns are stages, the index is the step from 0.

    A step without a row has no bar.
    """
    frames = {name: frame.reindex(range(frame.index[0], frame.index[-1] + 1)) for name, frame in frames.items()}
    widths = {name: -(-len(frame) // MOST_BARS) for name, frame in frames.items()}
    bars_of = {name: frame.groupby(np.arange(len(frame)) // widths[name]).mean() for name, frame in frames.items()}
    highest = max(float(bars.sum(axis=1).max()) for bars in bars_of.values())
    say = seconds if is_time else count

    def draw(axes: Axes, name: str) -> None:
        frame, bars, width = frames[name], bars_of[name].fillna(0.0), widths[name]
        edges = np.append(np.arange(len(bars)) * width + 0.5, len(frame) + 0.5) + frame.index[0]
        base = np.zeros(len(bars))
        for stage in bars:
            top = base + bars[stage].to_numpy()
            if (top > base).any():
                axes.stairs(top, edges, baseline=base, fill=True, color=color(str(stage)), linewidth=0)
            base = top
        axes.set_ylim(0, highest * 1.05 or 1.0)
        tips = []
        for number in np.flatnonzero(bars_of[name].notna().any(axis=1)):
            first, last = frame.index[number * width], frame.index[min((number + 1) * width, len(frame)) - 1]
            which = f"steps {first + 1} to {last + 1}, mean" if width > 1 else f"step {first + 1}, {notes[name][first]}"
            parts = [f"{STAGES[str(key)][0]}: {say(value)}" for key, value in bars.iloc[number].items() if value > 0]
            tip = "\n".join((f"{which}: {say(float(base[number]))}", *parts))
            tips.append(bar((edges[number], edges[number + 1]), (0, highest), "none", tip))
        add_marks(axes, tips)
        axes.set_xlim(edges[0], edges[-1])
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        if is_time:
            set_time_axis(axes, "y", highest)
        else:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))

    plots = [Plot(name, partial(draw, name=name), 230, "step") for name in frames]
    return to_svg(description, plots)


def one_step(pictures: Mapping[str, RoundPicture]) -> Markup:
    """Draw a step of each run on one time axis: a row per actor, and a row per engine with its requests."""
    longest_s = max(picture.ended_s - picture.began_s for picture in pictures.values())
    engines = [row for picture in pictures.values() for row in picture.engines if len(row.num_requests)]
    most = max((int(row.num_requests.max()) for row in engines), default=1)
    plots = [_one_step_of(name, picture, longest_s, most) for name, picture in pictures.items()]
    left = max(plot.left for plot in plots)
    return to_svg("one step, actor by actor", [plot._replace(left=left) for plot in plots], is_stacked=True)


def _one_step_of(name: str, picture: RoundPicture, longest_s: float, most: int) -> Plot:
    actors, engines = actor_rows(picture), evenly(picture.engines, MOST_ENGINES)
    labels = [actor for actor, _ in actors] + [row.engine for row in engines]
    pixel_s = longest_s / WIDTHS["wide"]
    spans = [(number, actor, span) for number, (actor, spans) in enumerate(actors) for span in spans]
    marks = []
    for number, row in enumerate(engines, len(actors)):
        spans += [(number, row.engine, span) for span in row.others]
        if len(row.times_s):
            # of the changes within a pixel, the last one counts
            pixels = ((row.times_s - picture.began_s) / pixel_s).astype(int)
            kept = np.append(pixels[1:] != pixels[:-1], True)
            times_s, counts = row.times_s[kept] - picture.began_s, row.num_requests[kept]
            heights = np.where(counts, np.maximum(LOWEST, 0.84 * counts / most), 0.0)
            outline = np.column_stack([np.repeat(times_s, 2)[1:], number + 0.42 - np.repeat(heights, 2)[:-1]])
            corners = np.vstack([(times_s[0], number + 0.42), outline, (times_s[-1], number + 0.42)])
            tip = f"{row.engine}: at most {int(row.num_requests.max())} requests at once"
            marks.append(Mark(corners, color("requests"), tip))
    for number, actor, (activity, began_s, ended_s) in spans:
        stage = stage_of(activity)
        start_s, end_s = (min(max(at - picture.began_s, 0.0), longest_s) for at in (began_s, ended_s))
        tip = f"{actor}, {STAGES[stage][0]}: {seconds(ended_s - began_s)}"
        end_s = max(end_s, start_s + pixel_s)
        marks.append(bar((start_s, end_s), (number - 0.4, number + 0.4), color(stage), tip))

    def draw(axes: Axes) -> None:
        add_marks(axes, marks)
        set_rows(axes, labels, len(labels))
        axes.set_xlim(0, longest_s * 1.01)
        set_time_axis(axes, "x", longest_s)

    note = f"Time since the step began. The row of an engine is as high as its requests, at most {most}."
    title = _step_title(name, picture, len(engines))
    return Plot(title, draw, 44 + ROW_PX * len(labels), left=label_px(labels), note=note)


def stage_of(activity: str) -> str:
    """The stage by whose colour an activity is drawn."""
    stage = {"judge": "score", "load_weights": "weight_sync", "quiesce": "suspend"}.get(activity, activity)
    return stage if stage in STAGES else "other"


def _step_title(name: str, picture: RoundPicture, num_shown: int) -> str:
    is_async = picture.round_kind == ASYNC
    kind = "asynchronous" if is_async else f"a {picture.round_kind} round"
    title = f"{name}: step {picture.step + 1}, {kind}, {seconds(picture.ended_s - picture.began_s)}"
    if picture.num_moves:
        moved = (
            plural(picture.num_moves, "response") + " suspended" if is_async else plural(picture.num_moves, "migration")
        )
        title += f", {moved}"
    return title + (f", {num_shown} of {len(picture.engines)} engines" if num_shown < len(picture.engines) else "")


def actor_rows(picture: RoundPicture) -> list[tuple[str, list[tuple[str, float, float]]]]:
    """Driver first, then the trainer, then the others by name."""
    rows: dict[str, list[tuple[str, float, float]]] = {}
    for actor, activity, began_s, ended_s in sorted(picture.actors, key=lambda each: (each[0], each[2])):
        if activity != "quiesce" or ended_s > began_s:
            rows.setdefault(actor, []).append((activity, began_s, ended_s))
    order = {"driver": 0, "trainer": 1}
    return sorted(rows.items(), key=lambda row: (order.get(row[0], 2), row[0]))[:MOST_ACTORS]


def engine_use(uses: Mapping[str, Mapping[str, EngineUse]]) -> Markup:
    """Draw a bar per engine, what it did as shares of the time that it was there; a panel per run."""
    shown = {name: evenly(sorted(of_run, key=natural_order), MOST_ENGINES) for name, of_run in uses.items()}
    left = label_px([engine for engines in shown.values() for engine in engines])
    num_rows = max(map(len, shown.values()))

    def draw(axes: Axes, name: str) -> None:
        marks = []
        for row, engine in enumerate(shown[name]):
            parts = uses[name][engine].parts
            whole, start = sum(parts.values()) or 1.0, 0.0
            for stage, value in parts.items():
                percent = 100 * value / whole
                tip = f"{engine}, {STAGES[stage][0]}: {seconds(value)}, {percent:.0f} %"
                marks.append(bar((start, start + percent), (row - 0.39, row + 0.39), color(stage), tip))
                start += percent
        add_marks(axes, marks)
        set_rows(axes, shown[name], num_rows)
        axes.set_xlim(0, 100)
        axes.xaxis.set_major_formatter("{x:.0f} %")

    plots = []
    for name, engines in shown.items():
        some = f", {len(engines)} of them shown" if len(engines) < len(uses[name]) else ""
        title = f"{name}: {plural(len(uses[name]), 'engine')}{some}"
        height = 44 + ROW_PX * num_rows
        plots.append(Plot(title, partial(draw, name=name), height, left=left))
    return to_svg("what engines did", plots)


def lengths(
    domains: Mapping[str, Mapping[str, npt.NDArray[np.int64]]], colors: Mapping[str, str], limit: int | None
) -> Markup:
    """Draw which share of responses has at least so many tokens: a panel per domain, a line per run.

    Lengths ascend.
    """
    known = [values for of_domain in domains.values() for values in of_domain.values() if len(values)]
    rarest = min(float((values == values[-1]).mean()) for values in known)
    shortest = max(1, min(int(np.quantile(values, 0.02)) for values in known))
    longest = max([int(values[-1]) for values in known] + ([limit] if limit else []) + [2 * shortest])

    def draw(axes: Axes, domain: str) -> None:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for name, values in domains[domain].items():
            lengths_, first = np.unique(values, return_index=True)
            line = axes.plot(lengths_, 1 - first / len(values), color=colors[name], linewidth=1.8)[0]
            line.set_gid(f"tip: {name}, {domain}: median {count(float(np.median(values)))} tokens")
        if limit is not None:
            axes.axvline(limit, color=color("soft"), linestyle=":", linewidth=1.2)
            axes.text(limit * 0.96, 1.0, f"limit, {limit:,}", ha="right", va="top", color=color("soft"))
        axes.set_xlim(shortest, longest * 1.1)
        axes.set_ylim(min(0.1, rarest * 0.7), 1.15)
        axes.xaxis.set_major_locator(LogLocator(base=4))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))

    plots = [Plot(each, partial(draw, domain=each), 230, "tokens") for each in domains]
    return to_svg("response lengths", plots)


def curves(shown: Sequence[Panel], description: str) -> Markup:
    """Draw panels of lines over the steps, counted from 1."""

    def draw(axes: Axes, panel: Panel) -> None:
        for line in panel.lines:
            style: dict[str, Any] = {"color": line.color, "marker": "o" if len(line.x) == 1 else None}
            if panel.is_smoothed and len(line.x) >= 2 * CYCLE_STEPS:
                axes.plot(line.x, line.y, linewidth=0.8, alpha=0.4, **style)
                smooth = np.convolve(line.y, np.full(CYCLE_STEPS, 1 / CYCLE_STEPS), "valid")
                drawn = axes.plot(line.x[CYCLE_STEPS - 1 :], smooth, linewidth=2.2, **style)[0]
            else:
                drawn = axes.plot(line.x, line.y, linewidth=1.6, **style)[0]
            if line.error is not None:
                axes.fill_between(line.x, line.y - line.error, line.y + line.error, color=line.color, alpha=0.15, lw=0)
            drawn.set_gid(f"tip: {line.name}: {line.y[0]:.3g} to {line.y[-1]:.3g}")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.margins(x=0.02, y=0.08)

    plots = [Plot(panel.title, partial(draw, panel=panel), 210, "step") for panel in shown]
    return to_svg(description, plots)


def set_rows(axes: Axes, labels: Sequence[str], num_rows: int) -> None:
    """Make room for rows, the first on top, with a grid of the horizontal axis alone."""
    axes.set_yticks(range(len(labels)), [_short(label) for label in labels])
    axes.set_ylim(num_rows - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")


def label_px(labels: Sequence[str]) -> int:
    """The pixels that labels of rows need."""
    return 18 + 7 * max(len(_short(label)) for label in labels)


def evenly(rows: Sequence[RowType], most: int) -> list[RowType]:
    """Choose at most so many rows, first and last among them."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(number * (len(rows) - 1) / (most - 1))] for number in range(most)]


def _short(name: str) -> str:
    return name if len(name) <= MOST_CHARACTERS else f"{name[: MOST_CHARACTERS - 1]}…"
