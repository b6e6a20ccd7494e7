"""Ours: larger models by the engines' tensor parallelism, and under the parallelism planner.

Throughput, rollout time and preemptions, as Fig 6 has them of Qwen3-8B. Each model's runs are compared over the steps
that all of them have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Numbers, Place, Point
from rollpacker.analysis.plots import compare_bars
from rollpacker.analysis.rounds import means
from rollpacker.analysis.runs import Run, Runs, shared_steps

PANELS = {
    "tokens per second": ("tokens_per_second", "tokens/s"),
    "rollout (s)": ("rollout_time_s", "s"),
    "preemptions": ("num_preemptions", "preemptions"),
}

KINDS = ("short", "long")


def gather(runs: Runs) -> Iterator[Point | None]:
    """Means over the rounds of a kind, for each degree and for the planner."""
    for model, of_model in _runs_by_model(runs).items():
        shared = shared_steps(run for found in of_model.values() for run in found)
        of_shared = {
            label: [replace(run, steps=run.steps.loc[shared]) for run in found] for label, found in of_model.items()
        }
        for kind in KINDS:
            for title, (column, unit) in PANELS.items():
                for label, found in of_shared.items():
                    place = Place(panel=f"{model}, {kind}:\n{title}", x=label, unit=unit)
                    yield place.ours(means(found, kind, column))


def _runs_by_model(runs: Runs) -> dict[str, dict[str, list[Run]]]:
    """Of each model the runs by degree, and those of the planner; the paper's own setup is in Table 2 for 14B."""

    def fixed(model: str, *degrees: int) -> dict[str, list[Run]]:
        return {
            f"TP {degree}": runs.of(study="fig12", model=model, system="tail-reward", tensor_parallel=degree)
            for degree in degrees
        }

    smaller, larger = "Qwen2.5-14B", "Qwen2.5-32B"
    of_smaller = fixed(smaller, 1, 4)
    of_smaller["TP 2"] = runs.of(model=smaller, system="tail-reward", task="mix")
    return {
        "14B": {label: of_smaller[label] for label in sorted(of_smaller)}
        | {"planner": runs.of(model=smaller, system="tail-reward-planner", task="mix")},
        "32B": fixed(larger, 2, 4, 8) | {"planner": runs.of(study="fig12", model=larger, system="tail-reward-planner")},
    }


def draw(numbers: Numbers) -> Figure:
    """A row per model and kind of round; preemptions only if there were any."""
    panels = {point.panel for point in numbers.points if point.y}
    shown = replace(numbers, points=[point for point in numbers.points if point.panel in panels])
    num_columns = max(Counter(panel.partition("\n")[0] for panel in panels).values(), default=1)
    return compare_bars(shown, number="{:,.0f}", num_columns=num_columns)


EXHIBIT = Exhibit(
    name="larger_models",
    title="Larger models by tensor parallelism, and under the planner (ours)",
    experiments=("fig12", "table2"),
    gather=gather,
    draw=draw,
)
