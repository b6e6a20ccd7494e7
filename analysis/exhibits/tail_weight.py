"""Ours: what tail batching saves when the longest tenth of responses is shorter or longer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.sensitivity import compare_variants, draw_variants

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rollpacker.analysis.numbers import Numbers
    from rollpacker.analysis.runs import Runs

STUDIES: Final = {scale: f"lengths-0.3-{scale}" for scale in (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)}
"""By the factor on the tail, as conf/experiment/tail_weight.yaml names them."""


def gather(runs: Runs) -> Numbers:
    """Vary what a length has above the 90 % quantile of its domain."""
    return compare_variants(runs, STUDIES)


def draw(numbers: Numbers) -> Figure:
    """Draw the three panels over the factor."""
    return draw_variants(numbers, xlabel="factor on what a length has above P90 of its domain (0: no tail)", usual=1.0)


EXHIBIT = Exhibit(
    name="tail_weight",
    title="Tail batching over the weight of the tail of lengths (ours)",
    experiments=("tail_weight",),
    gather=gather,
    draw=draw,
)
