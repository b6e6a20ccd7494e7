"""How every figure looks: names of systems and sizes that stay readable in a column. Colours are `report.style`'s."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib as mpl
import seaborn as sns
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure

from rollpacker.metrics.files import write_atomically
from rollpacker.report.style import CYCLE_STEPS, OTHER_COLORS, RC, SYSTEM_COLORS, color_of

__all__ = ["CYCLE_STEPS", "OTHER_COLORS", "SYSTEM_COLORS", "color_of"]

SYSTEM_LABELS = {"verl": "plain batches", "rlhfuse": "RLHFuse", "rollpacker": "tail batching"}
"""For people who have not read the paper: what a system does."""

PAPER_LABELS = {"verl": "veRL", "rlhfuse": "RLHFuse", "tail": "tail batching", "rollpacker": "RollPacker"}
"""Beside the paper's numbers: what it calls them."""

FIGURE_WIDTH_INCHES = 7.0
PNG_DPI = 200


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
