"""Table 4: what the paper shows in it is not known to us, and the artifact has no experiment for it.

It stands in the list so that a search for it has an answer; nothing is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Numbers
from rollpacker.analysis.plots import compare_bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rollpacker.analysis.runs import Runs


def gather(runs: Runs) -> Numbers:
    """Say that there is nothing to compute."""
    return Numbers(points=[], missing=[*runs.missing, "what the paper's Table 4 shows is not known; nothing is drawn"])


def draw(numbers: Numbers) -> Figure:
    """Draw whatever there is one day."""
    return compare_bars(numbers, ylabel="", number="{:.2f}")


EXHIBIT = Exhibit(
    name="table4",
    title="Not known to us; nothing is drawn (Table 4)",
    experiments=(),
    gather=gather,
    draw=draw,
)
