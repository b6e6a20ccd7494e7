"""The exhibits, by the names that the command line takes: one module per table or figure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits import (
    bubbles,
    correlation,
    fig02a,
    fig02b,
    fig04a,
    fig04b,
    fig06,
    fig07a,
    fig08,
    fig09,
    fig10a,
    fig10b,
    fig10c,
    fig11,
    fig12,
    fig13,
    fig14,
    length_bias,
    limits,
    scaling,
    table1,
    table2,
    table3,
    table4,
    tail_weight,
)

EXHIBITS: Mapping[str, Exhibit] = MappingProxyType(
    {
        module.EXHIBIT.name: module.EXHIBIT
        for module in (
            table1,
            table2,
            table3,
            table4,
            fig02a,
            fig02b,
            fig04a,
            fig04b,
            fig06,
            fig07a,
            fig08,
            fig09,
            fig10a,
            fig10b,
            fig10c,
            fig11,
            fig12,
            fig13,
            fig14,
            bubbles,
            length_bias,
            correlation,
            tail_weight,
            limits,
            scaling,
        )
    }
)
"""In the paper's order, then ours."""

ARTIFACT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "e2e_performance": ("fig09", "fig10a", "fig10b", "bubbles"),
        "sensitive_analysis_fig11": ("fig11",),
        "benchmark_fig13": ("fig13",),
        "stream_trainer_table3": ("table3",),
    }
)
"""The experiments of the paper's artifact, by its names: the exhibits of each."""
