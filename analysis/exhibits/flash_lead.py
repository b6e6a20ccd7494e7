"""Ours: what an asynchronous run's lead does, and what its bound, beside RollPacker on as many GPUs.

The lead is how many batches of prompts are admitted ahead of the trainer, the bound how old a trained token may be.
Engines and trainer have GPUs of their own, or take turns on all of them (partial rollouts). Lengths are those of a
model that thinks, assumed (`workload=think`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Place, Point, Value, speedups
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Runs

LEADS: Final = {
    "bound 2, divided GPUs": {lead: f"flash-lead-2-{lead}" for lead in ("0.25", "0.5", "1", "2")},
    "bound 8, divided GPUs": {lead: f"flash-lead-8-{lead}" for lead in ("0.25", "0.5", "1", "2", "4")},
    "bound 8, in turns": {lead: f"flash-lead-turns-{lead}" for lead in ("0.25", "0.5", "1", "2", "4")},
}
"""The studies of each series, by the lead as it is written."""

SPEEDUP, STALENESS = "speedup over veRL", "mean age of trained tokens (versions)"
TAIL: Final = "rollpacker"


def gather(runs: Runs) -> Iterator[Point | None]:
    """Whole runs, from the first step, in which the pipeline fills, to the last, in which nothing more is admitted."""
    plain, tail = (runs.of(setup="flash", study="flash-lead-sync", system=system) for system in ("verl", TAIL))
    leads = [float(lead) for studies in LEADS.values() for lead in studies]
    for end in (min(leads), max(leads)):  # a level line: it has no lead
        yield Place(panel=SPEEDUP, x=end, unit="x", series=TAIL).ours(speedups(plain, tail))
    for series, studies in LEADS.items():
        for lead, study in studies.items():
            found = runs.of(setup="flash", study=study)
            yield Place(panel=SPEEDUP, x=float(lead), unit="x", series=series).ours(speedups(plain, found))
            ages = [Value(run, run.mean("staleness_mean")) for run in found]
            yield Place(panel=STALENESS, x=float(lead), unit="versions", series=series).ours(ages)


EXHIBIT = Exhibit(
    name="flash_lead",
    title="Lead and bound of asynchronous runs, Qwen3-8B with assumed lengths of thinking, 32 GPUs (ours)",
    experiments=("flash-lead", "flash-lead-2", "flash-lead-turns", "flash-lead-sync"),
    gather=gather,
    draw=partial(compare_lines, xlabel="lead (batches)", are_sizes=True),
)
