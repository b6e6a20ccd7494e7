"""How every figure looks: names of systems and sizes that stay readable in a column. Colours are `report.style`'s."""

from __future__ import annotations

import io
import math
import textwrap
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath

from rollpacker.metrics.files import write_atomically
from rollpacker.report.style import CYCLE_STEPS, OTHER_COLORS, RC, SYSTEM_COLORS, color_of

__all__ = ["CYCLE_STEPS", "OTHER_COLORS", "SYSTEM_COLORS", "color_of"]

SYSTEM_LABELS = {"verl": "plain batches", "rlhfuse": "RLHFuse", "rollpacker": "tail batching"}
"""For people who have not read the paper: what a system does."""

PAPER_LABELS = {"verl": "veRL", "rlhfuse": "RLHFuse", "tail": "tail batching", "rollpacker": "RollPacker"}
"""Beside the paper's numbers: what it calls them."""

FIGURE_WIDTH_INCHES = 7.0
PNG_DPI = 200

_LEGEND_POINTS = 7.5
"""Size of a legend's text; its other lengths are in these."""
_HANDLE_LENGTH, _HANDLE_GAP, _COLUMN_GAP = 1.6, 0.8, 1.2
_BESIDE_POINTS = _LEGEND_POINTS * (_HANDLE_LENGTH + _HANDLE_GAP + _COLUMN_GAP)
"""What a legend's entry takes beside its name."""
_LEGEND_MARGIN = 2.0
"""Left free of the figure's width, in all."""


def use_style() -> None:
    """Set fonts, grids and sizes for all figures of this process."""
    mpl.use("Agg")
    sns.set_theme(
        context="paper",
        style="whitegrid",
        rc=RC
        | {
            "axes.edgecolor": "#444444",
            "figure.constrained_layout.use": True,
            "grid.color": "#E4E4E4",
            "pdf.fonttype": 42,
        },
    )


def label_of(system: str) -> str:
    """Name a system for a legend."""
    return SYSTEM_LABELS.get(system, system)


def title_figure(figure: Figure, title: str, incomplete: str = "") -> None:
    """Say above a figure what it shows; with the file that says what is missing where runs or steps are."""
    if incomplete:
        title = f"INCOMPLETE: runs or steps are missing, see {incomplete}\n{title}"
    color = "tab:red" if incomplete else "#333333"
    figure.suptitle(title, x=0.01, ha="left", color=color, fontsize=8.5, wrap=True)


def legend_below(figure: Figure, handles: Sequence[Artist], loc: str = "outside lower center") -> None:
    """Name what is drawn below all panels, in as few rows as fit between the figure's edges; breaks longer names."""
    room = 72 * figure.get_figwidth() - _LEGEND_POINTS * (_LEGEND_MARGIN - _COLUMN_GAP)
    labels = [_folded(str(handle.get_label()), room - _BESIDE_POINTS) for handle in handles]
    figure.legend(
        handles=handles,
        labels=labels,
        loc=loc,
        ncols=_num_columns(labels, room),
        fontsize=_LEGEND_POINTS,
        handlelength=_HANDLE_LENGTH,
        handletextpad=_HANDLE_GAP,
        columnspacing=_COLUMN_GAP,
    )


def _folded(label: str, room_points: float) -> str:
    """Break a name that is wider than this into lines."""

    def folded(num_characters: int) -> str:
        return "\n".join(textwrap.wrap(label, num_characters))

    if _width_points(label) <= room_points:
        return label
    too_many = bisect_right(range(len(label)), room_points, lo=2, key=lambda number: _width_points(folded(number)))
    return folded(too_many - 1)


def _width_points(label: str) -> float:
    """Of the widest line of a legend's entry, without its handle."""
    return max(
        (TextPath((0, 0), line, size=_LEGEND_POINTS).get_extents().width for line in label.split("\n")), default=0
    )


def _num_columns(labels: Sequence[str], room_points: float) -> int:
    """Of a legend, each as wide as its widest entry with its handle."""
    widths = [_width_points(label) for label in labels]
    for num_rows in range(1, len(labels)):
        num_columns = math.ceil(len(labels) / num_rows)
        if sum(max(column) + _BESIDE_POINTS for column in np.array_split(widths, num_columns)) <= room_points:
            return num_columns
    return 1


def save_figure(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write `stem`.png and `stem`.pdf, both in the layout of the first; the figure is not for drawing again."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, pdf = stem.with_suffix(".png"), stem.with_suffix(".pdf")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=PNG_DPI)
    write_atomically(png, drawn.getbuffer())
    figure.set_layout_engine("none")
    drawn = io.BytesIO()
    FigureCanvasPdf(figure).print_pdf(drawn)  # `savefig` would draw everything twice
    write_atomically(pdf, drawn.getbuffer())
    return png, pdf
