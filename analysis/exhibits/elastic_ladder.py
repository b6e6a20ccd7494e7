"""Ours: what four rollout workers gain beside tail batching, and beside training one step off policy.

Speedups are over plain batches without workers, by the time of the same steps. If the gains of workers and of the
system were independent of each other, the gain of both would be their product.
"""

from __future__ import annotations

from typing import Final

from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.elastic_workers import NUM_FIRST_STEPS
from rollpacker.analysis.numbers import Numbers, Place, Point, Value, comparing
from rollpacker.analysis.plots import compare_bars
from rollpacker.analysis.runs import Run, Runs

WORKERS: Final = 4
SYSTEMS: Final = {"verl": "plain", "rollpacker": "tail", "one-step-off": "async"}
"""Plain batches, RollPacker with tail batching, and training one step off policy."""

SPEEDUP, SHARE = "speedup over plain batches", "gain of both over the product of each"


def gather(runs: Runs) -> Numbers:
    """Compare every run with plain batches without workers, seed by seed."""
    times = {
        (system, number): {
            run.seed: (run, _time_s(run))
            for run in runs.of(setup="elastic", study=f"elastic-ladder-{number}", system=system)
            if run.is_finished and len(run.steps) > NUM_FIRST_STEPS
        }
        for system in SYSTEMS
        for number in (0, WORKERS)
    }
    plain = times["verl", 0]
    gains = {
        case: {seed: Value(run, plain[seed][1] / time_s) for seed, (run, time_s) in of_case.items() if seed in plain}
        for case, of_case in times.items()
    }
    points: list[Point | None] = []
    for system, label in SYSTEMS.items():
        for number, words in ((0, label), (WORKERS, f"{label} +{WORKERS}")):
            points.append(Place(panel=SPEEDUP, x=words, unit="x").ours(list(gains[system, number].values())))
        if system != "verl":
            shares = [
                Value(both.run, both.y / (gains[system, 0][seed].y * gains["verl", WORKERS][seed].y))
                for seed, both in gains[system, WORKERS].items()
                if seed in gains[system, 0] and seed in gains["verl", WORKERS]
            ]
            points.append(Place(panel=SHARE, x=label, unit="share").ours(shares))
    return Numbers(points=comparing(points), missing=runs.missing)


def _time_s(run: Run) -> float:
    return float(run.steps["step_time_s"].loc[NUM_FIRST_STEPS:].sum())


def draw(numbers: Numbers) -> Figure:
    """A bar for each."""
    return compare_bars(numbers, ylabel="", number="{:.2f}")


EXHIBIT = Exhibit(
    name="elastic_ladder",
    title="Rollout workers beside tail batching and training one step off policy, Qwen3-8B (ours)",
    experiments=("elastic-ladder", "elastic-ladder-async"),
    gather=gather,
    draw=draw,
)
