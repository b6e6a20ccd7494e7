"""How every figure looks: one colour and one name per system, sizes that stay readable in a column.

Colours are Okabe and Ito's, which colour-blind readers can tell apart and which differ in grey, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import seaborn as sns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SYSTEM_COLORS = {"verl": "#7A7A7A", "rlhfuse": "#0072B2", "tail": "#E69F00", "rollpacker": "#D55E00"}
SYSTEM_LABELS = {"verl": "plain batches", "rlhfuse": "RLHFuse", "rollpacker": "tail batching"}
"""For people who have not read the paper: what a system does."""

PAPER_LABELS = {"verl": "veRL", "rlhfuse": "RLHFuse", "tail": "tail batching", "rollpacker": "RollPacker"}
"""Beside the paper's numbers: what it calls them."""
OTHER_COLORS = ("#009E73", "#CC79A7", "#56B4E9", "#E69F00")

FIGURE_WIDTH_INCHES = 7.0
PNG_DPI = 200


def use_style() -> None:
    """Set fonts, grids and sizes for all figures of this process."""
    mpl.use("Agg")
    sns.set_theme(
        context="paper",
        style="whitegrid",
        rc={
            "axes.edgecolor": "#444444",
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlelocation": "left",
            "axes.titleweight": "bold",
            "figure.constrained_layout.use": True,
            "grid.color": "#E4E4E4",
            "legend.frameon": False,
            "pdf.fonttype": 42,
        },
    )


def color_of(system: str, position: int) -> str:
    """The system's own colour, or one by its position among those that have none."""
    return SYSTEM_COLORS.get(system, OTHER_COLORS[position % len(OTHER_COLORS)])


def label_of(system: str) -> str:
    """Name a system for a legend."""
    return SYSTEM_LABELS.get(system, system)


def save_figure(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write `stem`.png and `stem`.pdf."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = stem.with_suffix(".png"), stem.with_suffix(".pdf")
    for path in paths:
        figure.savefig(path, dpi=PNG_DPI)
    return paths
