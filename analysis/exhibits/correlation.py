"""Ours: what tail batching saves when a prompt's responses are more or less alike in length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.sensitivity import compare_variants, draw_variants

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rollpacker.analysis.numbers import Numbers
    from rollpacker.analysis.runs import Runs

STUDIES: Final = {rho: f"lengths-{rho}-1.0" for rho in (0.0, 0.3, 0.6, 0.9)}
"""By the correlation, as conf/experiment/correlation.yaml names them."""


def gather(runs: Runs) -> Numbers:
    """Vary the correlation of lengths within a prompt; the lengths of all responses together stay as they are."""
    return compare_variants(runs, STUDIES)


def draw(numbers: Numbers) -> Figure:
    """Draw the three panels over the correlation."""
    return draw_variants(numbers, xlabel="correlation of lengths within a prompt", usual=0.3)


EXHIBIT = Exhibit(
    name="correlation",
    title="Tail batching over the correlation of lengths within a prompt (ours)",
    experiments=("correlation",),
    gather=gather,
    draw=draw,
)
