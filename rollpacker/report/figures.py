"""The page's figures, by matplotlib, as SVG that stands in the page.

Each colour is written as the page's CSS variable of that name, so that a figure follows the page from light to dark.
Each figure is drawn for a wide page and for a narrow one, which shows panels below each other: the page displays the
one that fits, and no text shrinks with the window. What a mark stands for is also said in its tooltip (`<title>`).
"""

from __future__ import annotations

import io
import math
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from rollpacker.report.style import CYCLE_STEPS, PAGE_COLORS, RC, STAGES
from rollpacker.report.words import count, plural, seconds
from rollpacker.timeline.stretches import natural_order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt
    import pandas as pd
    from matplotlib.axes import Axes

    from rollpacker.report.story import EngineUse, RoundPicture

WIDTHS: Final = {2: ("wide", 1120), 1: ("narrow", 560)}
"""By panels beside each other: the page that a figure is for, and its width in pixels."""

ROW_PX: Final = 16
"""Of a chart with a row per actor."""

MOST_BARS: Final = 120
"""More steps than that share bars: a bar of 4 pixels is the narrowest that one can point at."""

MOST_ENGINES: Final = 40
"""More engines are drawn by an even choice of them."""

MOST_ACTORS: Final = 8

LOWEST: Final = 0.08
"""Of a row's height, how high one request is at least, however many others there are: a straggler must be seen."""

RowType = TypeVar("RowType")

_VARIABLES: Final = {light.lower(): name for name, (light, _) in PAGE_COLORS.items()}
_PAGE_RC: Final = RC | {
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.edgecolor": PAGE_COLORS["rule"][0],
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.labelcolor": PAGE_COLORS["soft"][0],
    "axes.spines.left": False,
    "axes.titlecolor": PAGE_COLORS["ink"][0],
    "axes.titlesize": 12.5,
    "font.size": 11.5,
    "grid.color": PAGE_COLORS["grid"][0],
    "legend.fontsize": 11.5,
    "legend.labelcolor": PAGE_COLORS["soft"][0],
    "svg.fonttype": "none",
    "text.color": PAGE_COLORS["ink"][0],
    "text.parse_math": False,
    "xtick.color": PAGE_COLORS["soft"][0],
    "xtick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.color": PAGE_COLORS["soft"][0],
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a panel."""

    name: str
    color: str
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Lines over steps."""

    title: str
    lines: Sequence[Line]
    is_smoothed: bool = True
    """Drawn thin, with the mean over a cycle of rounds as the thick line."""


def color(name: str) -> str:
    """The light colour of a CSS variable, by which a figure is drawn."""
    return PAGE_COLORS[name][0]


def svg(draw: Callable[[Figure, int], None], height: Callable[[int], float], description: str) -> Markup:
    """Draw a figure for each width of the page.

    Args:
        draw: Given an empty figure and the number of panels that fit beside each other.
        height: Pixels, by the same number.
        description: For people who hear the page.
    """
    return _svg(draw, 2, height(2), description) + _svg(draw, 1, height(1), description)


def _svg(draw: Callable[[Figure, int], None], columns: int, height: float, description: str) -> Markup:
    kind, width = WIDTHS[columns]
    # an id that two figures shared would be looked up in the one that is not displayed
    own = {"svg.hashsalt": f"{description}, {kind}"}
    with mpl.rc_context(_PAGE_RC | own), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the browser has glyphs that the font of this machine lacks
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        draw(figure, columns)
        file = io.StringIO()
        FigureCanvasSVG(figure).print_svg(file)  # `savefig` would draw everything twice
    drawn = file.getvalue().partition("<defs>")[2].removesuffix("\n")
    drawn = re.sub(r'<g id="tip: ([^"]*)">', r"<g><title>\1</title>", drawn)
    drawn = re.sub(r' id="[a-z0-9]+_\d+"', "", drawn)
    drawn = re.sub("#[0-9a-f]{6}", lambda match: f"var(--{_VARIABLES.get(match[0], 'ink')})", drawn)
    start = f'<svg class="{kind}" viewBox="0 0 {width} {height:g}" role="img" aria-label="{escape(description)}"><defs>'
    return Markup(start + drawn)  # noqa: S704  (matplotlib escapes text; all else is numbers)


def panels(figure: Figure, number: int, columns: int, **options: Any) -> list[Axes]:
    """So many panels, some beside each other."""
    columns = min(columns, number)
    axes = figure.subplots(math.ceil(number / columns), columns, squeeze=False, **options).flatten().tolist()
    for unused in axes[number:]:
        unused.remove()
    return list(axes[:number])


def _tip(artist: object, *lines: str) -> None:
    artist.set_gid("tip: " + "\n".join(lines))  # type: ignore[attr-defined]


def _time_axis(axes: Axes, which: str, highest: float) -> None:
    """Give an axis of durations one unit, and round numbers of it."""
    unit, scale = next(
        (unit, scale)
        for limit, scale, unit in ((7200.0, 3600.0, "h"), (300.0, 60.0, "min"), (1.0, 1.0, "s"), (0.0, 1e-3, "ms"))
        if highest >= limit
    )
    axis = axes.xaxis if which == "x" else axes.yaxis
    ticks = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(0, highest / scale)
    axis.set_major_locator(FixedLocator([tick * scale for tick in ticks if 0 <= tick * scale <= highest * 1.05]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / scale:g} {unit}"))


def mean_steps(rows: Mapping[str, Mapping[str, float]]) -> Markup:
    """Draw a bar per run, its mean step by stage, on one axis of seconds."""

    def draw(figure: Figure, columns: int) -> None:
        axes = figure.subplots()
        highest = max(sum(stages.values()) for stages in rows.values())
        for position, (name, stages) in enumerate(rows.items()):
            left, whole = 0.0, sum(stages.values()) or 1.0
            for stage, value in stages.items():
                bar = axes.barh(position, value, left=left, height=0.72, color=color(stage))[0]
                percent = f"{100 * value / whole:.0f} %"
                _tip(bar, f"{name}, {STAGES[stage][0]}: {seconds(value)}, {percent}")
                if value > 0.055 * highest * (2 / columns):  # room for the number
                    axes.text(left + value / 2, position, percent, ha="center", va="center", color=color("on"))
                left += value
            axes.text(left + 0.01 * highest, position, seconds(left), va="center", fontweight="bold")
        axes.set_yticks(range(len(rows)), list(rows))
        axes.set_xlim(0, highest * (1.0 + 0.08 * 2 / columns))
        axes.invert_yaxis()
        axes.grid(visible=True, axis="x")
        axes.grid(visible=False, axis="y")
        _time_axis(axes, "x", highest)

    return svg(draw, lambda _: 40 + 36 * len(rows), "mean step by stage")


def per_step(
    frames: Mapping[str, pd.DataFrame],
    notes: Mapping[str, Sequence[str]],
    *,
    is_time: bool,
    description: str,
) -> Markup:
    """Draw stacked bars over the steps, a panel per run; columns are stages, the index is the step from 0."""

    def draw(figure: Figure, columns: int) -> None:
        axes_of = panels(figure, len(frames), columns, sharey=True)
        say = seconds if is_time else count
        highest = 0.0
        for axes, (name, frame) in zip(axes_of, frames.items(), strict=True):
            width = -(-len(frame) // MOST_BARS)
            bars = frame.groupby(np.arange(len(frame)) // width).mean()
            edges = np.append(np.arange(len(bars)) * width + 0.5, len(frame) + 0.5) + frame.index[0]
            base = np.zeros(len(bars))
            for stage in bars:
                top = base + bars[stage].to_numpy()
                axes.stairs(top, edges, baseline=base, fill=True, color=color(str(stage)), linewidth=0)
                base = top
            highest = max(highest, float(base.max()))
            hit = axes.bar(edges[:-1], base, width=np.diff(edges), align="edge", color=color("ink"), alpha=0.004)
            for number, bar in enumerate(hit):
                first, last = (
                    frame.index[number * width] + 1,
                    frame.index[min((number + 1) * width, len(frame)) - 1] + 1,
                )
                which = f"step {first}, {notes[name][number]}" if width == 1 else f"steps {first} to {last}, mean"
                parts = [
                    f"{STAGES[str(key)][0]}: {say(value)}" for key, value in bars.iloc[number].items() if value > 0
                ]
                _tip(bar, f"{which}: {say(float(base[number]))}", *parts)
            axes.set_title(name)
            axes.set_xlabel("step")
            axes.set_xlim(edges[0], edges[-1])
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        for axes in axes_of:
            axes.set_ylim(0, highest * 1.05 or 1.0)
            if is_time:
                _time_axis(axes, "y", highest)
            else:
                axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))

    return svg(draw, lambda columns: 250 * math.ceil(len(frames) / columns), description)


def one_step(pictures: Mapping[str, RoundPicture]) -> Markup:
    """Draw a step of each run on one time axis: a row per actor, and a row per engine with its requests."""
    actors = {name: _actor_rows(picture) for name, picture in pictures.items()}
    engines = {name: evenly(picture.engines, MOST_ENGINES) for name, picture in pictures.items()}
    num_rows = {name: len(actors[name]) + len(engines[name]) for name in pictures}
    longest_s = max(picture.ended_s - picture.began_s for picture in pictures.values())

    def draw(figure: Figure, columns: int) -> None:
        axes_of = panels(figure, len(pictures), 1, height_ratios=[rows + 3 for rows in num_rows.values()])
        for axes, (name, picture) in zip(axes_of, pictures.items(), strict=True):
            spans = [(row, actor, span) for row, (actor, spans) in enumerate(actors[name]) for span in spans]
            first = len(actors[name])
            most = max((int(row.num_requests.max()) for row in engines[name] if len(row.num_requests)), default=1)
            for number, row in enumerate(engines[name], first):
                spans += [(number, row.engine, span) for span in row.others]
                if len(row.times_s):
                    heights = np.where(row.num_requests, np.maximum(LOWEST, 0.84 * row.num_requests / most), 0.0)
                    area = axes.fill_between(
                        row.times_s - picture.began_s,
                        number + 0.42,
                        number + 0.42 - heights,
                        step="post",
                        color=color("requests"),
                        linewidth=0,
                    )
                    _tip(area, f"{row.engine}: at most {int(row.num_requests.max())} requests at once")
            for number, actor, (activity, began_s, ended_s) in spans:
                stage = stage_of(activity)
                start_s, end_s = (min(max(at - picture.began_s, 0.0), longest_s) for at in (began_s, ended_s))
                length_s = max(end_s - start_s, longest_s / 1500)  # a pixel
                bar = axes.barh(number, length_s, left=start_s, height=0.8, color=color(stage))[0]
                _tip(bar, f"{actor}, {STAGES[stage][0]}: {seconds(ended_s - began_s)}")
            labels = [actor for actor, _ in actors[name]] + [row.engine for row in engines[name]]
            axes.set_yticks(range(len(labels)), [_short(label) for label in labels], fontsize=10)
            axes.set_ylim(num_rows[name] - 0.4, -0.6)
            axes.set_xlim(0, longest_s * 1.01)
            axes.grid(visible=True, axis="x")
            axes.grid(visible=False, axis="y")
            _time_axis(axes, "x", longest_s)
            axes.set_title(_step_title(name, picture, len(engines[name])), wrap=columns == 1)
            axes.set_xlabel(f"since the step began; the row of an engine is as high as its requests, at most {most}")

    return svg(draw, lambda _: sum(76 + ROW_PX * rows for rows in num_rows.values()), "one step, actor by actor")


def stage_of(activity: str) -> str:
    """The stage by whose colour an activity is drawn."""
    stage = {"judge": "score", "load_weights": "weight_sync"}.get(activity, activity)
    return stage if stage in STAGES else "other"


def _step_title(name: str, picture: RoundPicture, num_shown: int) -> str:
    title = (
        f"{name}: step {picture.step + 1}, a {picture.round_kind} round, {seconds(picture.ended_s - picture.began_s)}"
    )
    if picture.num_moves:
        title += f", {plural(picture.num_moves, 'migration')}"
    return title + (f", {num_shown} of {len(picture.engines)} engines" if num_shown < len(picture.engines) else "")


def _actor_rows(picture: RoundPicture) -> list[tuple[str, list[tuple[str, float, float]]]]:
    """Driver first, then the trainer, then the others by name."""
    rows: dict[str, list[tuple[str, float, float]]] = {}
    for actor, activity, began_s, ended_s in sorted(picture.actors, key=lambda each: (each[0], each[2])):
        if activity != "quiesce":
            rows.setdefault(actor, []).append((activity, began_s, ended_s))
    order = {"driver": 0, "trainer": 1}
    return sorted(rows.items(), key=lambda row: (order.get(row[0], 2), row[0]))[:MOST_ACTORS]


def engine_use(uses: Mapping[str, Mapping[str, EngineUse]]) -> Markup:
    """Draw a bar per engine, what it did as shares of the time that it was there; a panel per run."""
    shown = {name: evenly(sorted(of_run, key=natural_order), MOST_ENGINES) for name, of_run in uses.items()}
    rows = [len(engines) for engines in shown.values()]

    def draw(figure: Figure, columns: int) -> None:
        for axes, (name, engines) in zip(panels(figure, len(uses), columns), shown.items(), strict=True):
            for row, engine in enumerate(engines):
                parts = uses[name][engine].parts
                whole, left = sum(parts.values()) or 1.0, 0.0
                for stage, value in parts.items():
                    bar = axes.barh(row, 100 * value / whole, left=left, height=0.78, color=color(stage))[0]
                    _tip(bar, f"{engine}, {STAGES[stage][0]}: {seconds(value)}, {100 * value / whole:.0f} %")
                    left += 100 * value / whole
            axes.set_yticks(range(len(engines)), [_short(engine) for engine in engines], fontsize=10)
            axes.set_ylim((max(rows) if columns > 1 else len(engines)) - 0.4, -0.6)
            axes.set_xlim(0, 100)
            axes.xaxis.set_major_formatter("{x:.0f} %")
            axes.grid(visible=False)
            some = f", {len(engines)} of them shown" if len(engines) < len(uses[name]) else ""
            axes.set_title(f"{name}: {plural(len(uses[name]), 'engine')}{some}")

    return svg(
        draw,
        lambda columns: sum(56 + ROW_PX * n for n in ([max(rows)] if columns > 1 else rows)),
        "what engines did",
    )


def lengths(
    domains: Mapping[str, Mapping[str, npt.NDArray[np.int64]]], colors: Mapping[str, str], limit: int | None
) -> Markup:
    """Draw which share of responses has at least so many tokens: a panel per domain, a line per run.

    Lengths ascend.
    """
    known = [values for of_domain in domains.values() for values in of_domain.values() if len(values)]
    rarest = 1.0 / max(map(len, known))
    shortest = max(1, min(int(np.quantile(values, 0.02)) for values in known))
    longest = max([int(values[-1]) for values in known] + ([limit] if limit else []) + [2 * shortest])

    def draw(figure: Figure, columns: int) -> None:
        axes_of = panels(figure, len(domains), columns, sharex=True, sharey=True)
        for axes, (domain, of_domain) in zip(axes_of, domains.items(), strict=True):
            for name, values in of_domain.items():
                lengths_, first = np.unique(values, return_index=True)
                line = axes.plot(lengths_, 1 - first / len(values), color=colors[name], label=name, linewidth=1.8)[0]
                _tip(line, f"{name}, {domain}: median {count(float(np.median(values)))} tokens")
            if limit is not None:
                axes.axvline(limit, color=color("soft"), linestyle=":", linewidth=1.2, label=f"limit, {limit:,}")
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xlim(shortest, longest * 1.1)
            axes.set_ylim(min(0.1, rarest * 0.8), 1.15)
            axes.xaxis.set_major_locator(LogLocator(base=4))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
            axes.set_title(domain)
            axes.set_xlabel("tokens")
        axes_of[0].legend(loc="lower left")

    return svg(draw, lambda columns: 250 * math.ceil(len(domains) / columns), "response lengths")


def curves(shown: Sequence[Panel], description: str) -> Markup:
    """Draw panels of lines over the steps, counted from 1."""

    def draw(figure: Figure, columns: int) -> None:
        axes_of = panels(figure, len(shown), columns)
        for axes, panel in zip(axes_of, shown, strict=True):
            for line in panel.lines:
                style: dict[str, Any] = {"color": line.color, "marker": "o" if len(line.x) == 1 else None}
                if panel.is_smoothed and len(line.x) >= 2 * CYCLE_STEPS:
                    axes.plot(line.x, line.y, linewidth=0.8, alpha=0.4, **style)
                    smooth = np.convolve(line.y, np.full(CYCLE_STEPS, 1 / CYCLE_STEPS), "valid")
                    drawn = axes.plot(line.x[CYCLE_STEPS - 1 :], smooth, linewidth=2.2, label=line.name, **style)[0]
                else:
                    drawn = axes.plot(line.x, line.y, linewidth=1.6, label=line.name, **style)[0]
                _tip(drawn, f"{line.name}: {line.y[0]:.3g} to {line.y[-1]:.3g}")
            axes.set_title(panel.title)
            axes.set_xlabel("step")
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(5))
            axes.margins(x=0.02, y=0.08)
            if len(panel.lines) > 1 or panel is shown[0]:
                axes.legend(loc="best")

    return svg(draw, lambda columns: 240 * math.ceil(len(shown) / columns), description)


def evenly(rows: Sequence[RowType], most: int) -> list[RowType]:
    """Choose at most so many rows, first and last among them."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(number * (len(rows) - 1) / (most - 1))] for number in range(most)]


def _short(name: str, most: int = 14) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
