"""Draws one pair of axes as SVG that stands in the page.

Each colour is written as the page's CSS variable of that name, so that a picture follows the page from light to dark.
Plots that stand side by side are drawn once, with the title in HTML, and the page places as many beside each other as
fit. A plot that has the whole width is drawn for a wide page and for a narrow one, and the page displays the one that
fits: no text shrinks with the window.

Margins are fixed, and all bars of a plot are one collection: a layout that measures every text, and an artist for each
bar, take four times as long.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from rollpacker.report.style import PAGE_COLORS, RC

WIDTHS: Final = {"wide": 1120, "narrow": 560, "panel": 550}
"""Pixels of a picture, by the CSS class that says where the page displays it."""

_TOP_PX, _BOTTOM_PX, _RIGHT_PX, _LABEL_PX = 8, 24, 20, 16

_NEXT_TIP: Final = "\x1f"
"""Separates the tooltips of a collection's marks."""

_VARIABLES: Final = {light.lower(): name for name, (light, _) in PAGE_COLORS.items()}
_PAGE_RC: Final = RC | {
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.edgecolor": PAGE_COLORS["rule"][0],
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.left": False,
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11.5,
    "grid.color": PAGE_COLORS["grid"][0],
    "svg.fonttype": "none",
    "text.color": PAGE_COLORS["ink"][0],
    "text.parse_math": False,
    "xtick.bottom": False,
    "xtick.color": PAGE_COLORS["soft"][0],
    "ytick.color": PAGE_COLORS["soft"][0],
    "ytick.left": False,
}


class Plot(NamedTuple):
    """A picture with one pair of axes."""

    title: str
    draw: Callable[[Axes], None]
    """Given empty axes; it sets their limits."""
    height: int
    label: str = ""
    """Of the horizontal axis."""
    left: int = 60
    """Pixels for the texts of the vertical axis."""
    note: str = ""
    """After the title."""


class Mark(NamedTuple):
    """A filled outline in the coordinates of its axes."""

    corners: Any
    color: str
    """Or none, of a place to point at."""
    tip: str
    """Its tooltip."""


def bar(x: tuple[float, float], y: tuple[float, float], color: str, tip: str) -> Mark:
    """A rectangle."""
    return Mark(((x[0], y[0]), (x[0], y[1]), (x[1], y[1]), (x[1], y[0])), color, tip)


def add_marks(axes: Axes, marks: Sequence[Mark]) -> None:
    """Draw marks, later ones above earlier ones."""
    collection = PolyCollection(
        [mark.corners for mark in marks],
        closed=False,
        facecolors=[mark.color for mark in marks],
        edgecolors="none",
        linewidths=0,
        clip_on=False,
        gid="tip: " + _NEXT_TIP.join(mark.tip for mark in marks),
    )
    axes.add_collection(collection, autolim=False)


def set_time_axis(axes: Axes, which: str, highest: float) -> None:
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


def to_svg(description: str, plots: Sequence[Plot], *, is_stacked: bool = False) -> Markup:
    """Draw a figure.

    Args:
        description: For people who hear the page; no other figure of the page has it.
        plots: At least one.
        is_stacked: Each plot has the whole width, as a single one always has.
    """
    is_stacked = is_stacked or len(plots) == 1
    figures = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the browser has glyphs that the font of this machine lacks
        for plot in plots:
            title = Markup("<figcaption><b>{}</b> {}</figcaption>").format(plot.title, plot.note)
            kinds = ("wide", "narrow") if is_stacked else ("panel",)
            drawn = Markup().join(_svg(plot, kind, f"{description}: {plot.title}") for kind in kinds)
            figures.append(Markup("<figure>{}{}</figure>").format(title if plot.title else "", drawn))
    joined = Markup().join(figures)
    return joined if is_stacked else Markup('<div class="panels">{}</div>').format(joined)


def _svg(plot: Plot, kind: str, description: str) -> Markup:
    width, height, bottom = WIDTHS[kind], plot.height, _BOTTOM_PX + (_LABEL_PX if plot.label else 0)
    inner_width = width - plot.left - _RIGHT_PX
    # an id that two pictures shared would be looked up in the one that is not displayed
    with mpl.rc_context(_PAGE_RC | {"svg.hashsalt": f"{description}, {kind}"}):
        figure = Figure(figsize=(width / 72, height / 72))
        inner = (plot.left / width, bottom / height, inner_width / width, (height - _TOP_PX - bottom) / height)
        axes = figure.add_axes(inner)
        plot.draw(axes)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_label_coords(
                0, 0
            )  # of a label that is not there: matplotlib would measure all ticks for its place
        if plot.label:
            middle = (plot.left + inner_width / 2) / width
            figure.text(middle, 4 / height, plot.label, ha="center", color=PAGE_COLORS["soft"][0])
        file = io.StringIO()
        FigureCanvasSVG(figure).print_svg(file)  # `savefig` would draw everything twice
    drawn = file.getvalue().partition("<defs>")[2].removesuffix("\n")
    drawn = re.sub(r"""<g id=(["'])tip: (.*?)\1>(.*?)</g>""", _add_tips, drawn, flags=re.DOTALL)
    drawn = re.sub(r"<!--.*?-->|(?<=>)\s+(?=<)", "", drawn, flags=re.DOTALL)
    drawn = re.sub("<[^>]*>", _shorten, drawn)
    start = f'<svg class="{kind}" viewBox="0 0 {width} {height:g}" role="img" aria-label="{escape(description)}"><defs>'
    return Markup(start + drawn)  # noqa: S704  (matplotlib escapes text; all else is numbers)


def _shorten(tag: re.Match[str]) -> str:
    """Round a tag's numbers, drop its id and write its colours as variables. What texts say is left as it is."""
    short = re.sub(r'(?<= )(?:d|x|y|width|height|transform)="[^"]*"', _round, tag[0])
    short = re.sub(r' id="[a-z0-9]+_\d+"', "", short)
    return re.sub("#[0-9a-f]{6}", lambda match: f"var(--{_VARIABLES.get(match[0], 'ink')})", short)


def _round(attribute: re.Match[str]) -> str:
    """Round to a tenth of a pixel."""
    short = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), attribute[0])
    return re.sub(r" ?\n", "", short).replace(" L ", "L").replace("M ", "M")


def _add_tips(group: re.Match[str]) -> str:
    """Give a group its tooltip, or each of its marks its own."""
    tips = group[2].split(_NEXT_TIP)
    if len(tips) == 1:
        return f"<g><title>{tips[0]}</title>{group[3]}</g>"
    *marks, rest = group[3].split("/>")
    titled = (f"{mark}><title>{tip}</title></path>" for mark, tip in zip(marks, tips, strict=True))
    return f"<g>{''.join(titled)}{rest}</g>"
