"""The exhibits, by the names that the command line takes: one module per table or figure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits import (
    assumptions,
    bubbles,
    elastic_all_lost,
    elastic_discounts,
    elastic_ladder,
    elastic_lengths,
    elastic_losses,
    elastic_pulls,
    elastic_recovery,
    elastic_staircase,
    elastic_workers,
    fig02a,
    fig02b,
    fig04,
    fig06,
    fig07a,
    fig09,
    fig10,
    fig11,
    fig12,
    fig13,
    fig14,
    flash_agents,
    flash_fig01b,
    flash_fig07,
    flash_fig08,
    flash_fig09,
    flash_fig10,
    flash_fig11,
    flash_interrupt,
    flash_lead,
    flash_losses,
    flash_table1,
    flash_tail,
    flash_theory,
    ladder,
    larger_models,
    learning,
    length_bias,
    limits,
    scaling,
    sensitivity,
    table1,
    table2,
    table3,
)

_PAPER = (
    *(table1.EXHIBIT, table2.EXHIBIT, table3.EXHIBIT, fig02a.EXHIBIT, fig02b.EXHIBIT, fig04.FIG04A, fig04.FIG04B),
    *(fig06.EXHIBIT, fig07a.EXHIBIT, learning.FIG08, fig09.EXHIBIT, fig10.FIG10A, fig10.FIG10B, fig10.FIG10C),
    *(fig11.EXHIBIT, fig12.EXHIBIT, fig13.EXHIBIT, fig14.EXHIBIT),
)
_FLASH = (
    *(flash_table1.EXHIBIT, flash_fig01b.EXHIBIT, flash_losses.EXHIBIT, flash_fig07.EXHIBIT, flash_fig08.EXHIBIT),
    *(flash_theory.EXHIBIT, flash_lead.EXHIBIT, flash_interrupt.EXHIBIT, flash_tail.EXHIBIT),
    *(flash_fig09.EXHIBIT, flash_fig10.EXHIBIT, flash_fig11.EXHIBIT, flash_agents.EXHIBIT),
)
_OURS = (
    *(bubbles.EXHIBIT, length_bias.EXHIBIT, sensitivity.CORRELATION, sensitivity.TAIL_WEIGHT, limits.EXHIBIT),
    *(larger_models.EXHIBIT, scaling.EXHIBIT, ladder.EXHIBIT, assumptions.EXHIBIT, learning.LEARNING),
    *(elastic_workers.EXHIBIT, elastic_losses.EXHIBIT, elastic_all_lost.EXHIBIT),
    *(elastic_recovery.EXHIBIT, elastic_staircase.EXHIBIT, elastic_discounts.EXHIBIT),
    *(elastic_lengths.EXHIBIT, elastic_ladder.EXHIBIT, elastic_pulls.EXHIBIT),
)

EXHIBITS: Mapping[str, Exhibit] = MappingProxyType({exhibit.name: exhibit for exhibit in (*_PAPER, *_OURS, *_FLASH)})
"""In the paper's order, then ours, then those of asynchronous training (ROLL-Flash and ours)."""

ARTIFACT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "e2e_performance": ("fig09", "fig10a", "fig10b", "bubbles"),
        "sensitive_analysis_fig11": ("fig11",),
        "benchmark_fig13": ("fig13",),
        "stream_trainer_table3": ("table3",),
    }
)
"""The experiments of the paper's artifact, by its names: the exhibits of each."""
