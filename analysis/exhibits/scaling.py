"""Ours: from 16 to 8,192 GPUs with a batch that grows with them, and what it takes to model so many."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Numbers, Place, Point, Value, speedups
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.rounds import rounds_of
from rollpacker.analysis.runs import Runs

GPUS = (16, 128, 1024, 8192)
SYSTEMS = ("verl", "rollpacker")
SHORT = "RollPacker's short rounds"

STEP_TIME, SPEEDUP, COST = "step time (s)", "speedup over veRL", "to model a step (s)"


def gather(runs: Runs) -> Iterator[Point | None]:
    """Means over the steps, of tail batching only where a run has a long round; processor time on this machine."""
    for num_gpus in GPUS:
        found = {system: runs.of(study="scaling", system=system, num_gpus=num_gpus) for system in SYSTEMS}
        cycles = [run for run in found["rollpacker"] if len(rounds_of(run, "long"))]
        times = {
            "verl": [Value(run, run.mean("step_time_s")) for run in found["verl"]],
            "rollpacker": [Value(run, run.mean("step_time_s")) for run in cycles],
            SHORT: [Value(run, float(rounds_of(run, "short")["step_time_s"].mean())) for run in found["rollpacker"]],
        }
        for series, values in times.items():
            yield Place(panel=STEP_TIME, x=float(num_gpus), unit="s", series=series).ours(values)
        place = Place(panel=SPEEDUP, x=float(num_gpus), unit="x", series="rollpacker")
        yield place.ours(speedups(found["verl"], cycles))
        for system in SYSTEMS:
            place = Place(panel=COST, x=float(num_gpus), unit="s of a processor", series=system)
            yield place.ours(
                Value(run, run.processor_s / len(run.steps))
                for run in found[system]
                if run.is_modelled and run.processor_s is not None
            )


def draw(numbers: Numbers) -> Figure:
    """Step time and speedup over the number of GPUs, and what modelling them takes on logarithmic axes."""
    figure = compare_lines(numbers, xlabel="GPUs", are_sizes=True)
    for axes in figure.axes:
        if axes.get_title(loc="left") == COST:
            axes.set_ylim(auto=True)
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
    return figure


EXHIBIT = Exhibit(
    name="scaling",
    title="From 16 to 8,192 GPUs, Qwen2.5-32B, and the processor time of a modelled step (ours)",
    experiments=("scaling", "scaling-8192"),
    gather=gather,
    draw=draw,
)
