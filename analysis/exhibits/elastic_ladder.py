"""Ours: what four rollout workers gain beside tail batching, and beside training one step off policy.

Speedups are over plain batches without workers, by the time of the same steps, from the sixth on. If the gains of
workers and of the system were independent of each other, the gain of both would be their product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.elastic_workers import NUM_FIRST_STEPS
from rollpacker.analysis.numbers import Place, Point, Value, speedups
from rollpacker.analysis.plots import compare_bars
from rollpacker.analysis.runs import Run, Runs, shared_steps

WORKERS: Final = 4
SYSTEMS: Final = {"verl": "plain", "rollpacker": "tail", "one-step-off": "async"}
"""Plain batches, RollPacker with tail batching, and training one step off policy."""

SPEEDUP, SHARE = "speedup over plain batches", "gain of both over the product of each"


def gather(runs: Runs) -> Iterator[Point | None]:
    """Compare every run with plain batches without workers, seed by seed."""
    found = {
        (system, number): [
            replace(run, steps=run.steps.loc[NUM_FIRST_STEPS:])
            for run in runs.of(setup="elastic", study=f"elastic-ladder-{number}", system=system)
        ]
        for system in SYSTEMS
        for number in (0, WORKERS)
    }
    plain, with_workers = found["verl", 0], found["verl", WORKERS]
    for system, label in SYSTEMS.items():
        for number, words in ((0, label), (WORKERS, f"{label} +{WORKERS}")):
            yield Place(panel=SPEEDUP, x=words, unit="x").ours(speedups(plain, found[system, number]))
        if system != "verl":
            shares = _shares(found[system, WORKERS], found[system, 0], with_workers, plain)
            yield Place(panel=SHARE, x=label, unit="share").ours(shares)


def _shares(both: Sequence[Run], *others: Sequence[Run]) -> Iterator[Value]:
    """Of each seed that all have, over the steps that all have; the others are the system's, the workers' and plain."""
    for run in both:
        of_seed = [run, *(other for each in others for other in each if other.seed == run.seed)]
        if len(of_seed) == 1 + len(others) and (shared := shared_steps(of_seed)):
            both_s, system_s, workers_s, plain_s = (each.steps["step_time_s"][shared].sum() for each in of_seed)
            yield Value(run, float(system_s * workers_s / (both_s * plain_s)))


EXHIBIT = Exhibit(
    name="elastic_ladder",
    title="Rollout workers beside tail batching and training one step off policy, Qwen3-8B (ours)",
    experiments=("elastic-ladder", "elastic-ladder-async"),
    gather=gather,
    draw=partial(compare_bars, number="{:.2f}"),
)
