"""Ours: tail batching and asynchronous training of agents, where environments, and not lengths, have the tail.

128 trajectories of 10 turns on 8 GPUs, whose environments take 10 s for a step in the mean: hardly varying, log-normal
with a moderate and with a heavy tail, with one in a hundred that stalls for 210 s, and with one in a hundred that hangs
and is begun again after two minutes. How much faster than synchronous training each system is on the same GPUs in
turns, which share of the generated tokens is not trained, and how old a trained token is. 20 runs of 15 steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.flash_sizes import steady
from rollpacker.analysis.numbers import Numbers, Place, Point, Value, speedups
from rollpacker.analysis.plots import compare_situations
from rollpacker.analysis.runs import Runs

SPEEDUP, WASTE, AGE = "speedup over synchronous", "tokens wasted", "mean age of trained tokens"
TAILS: Final = {
    "agents-steady": "10 ± 1 s",
    "agents-spread": "log-normal,\n10 ± 10 s",
    "agents-heavy": "log-normal,\n10 ± 30 s",
    "agents-stalls": "10 ± 1 s,\n1 % stall 210 s",
    "agents-hangs": "10 ± 1 s,\n1 % hang",
}
"""Of environments' times, by the name of the workload."""
SYSTEMS: Final = {
    "tail": "tail batching",
    "tail-prompts": "tail batching,\ngroups race alone",
    "flash": "flash\nin turns",
}


def gather(runs: Runs) -> Iterator[Point | None]:
    """Three numbers for each system and tail."""
    for tail, title in TAILS.items():
        plain, *others = (
            steady(runs.of(setup="flash", study="flash-agents", system=system, workload=tail))
            for system in ("verl", *SYSTEMS)
        )
        for name, found in zip(SYSTEMS.values(), others, strict=True):
            yield Place(panel=SPEEDUP, x=name, unit="x", series=title).ours(speedups(plain, found))
            wasted = [Value(run, run.wasted_percent) for run in found]
            yield Place(panel=WASTE, x=name, unit="%", series=title).ours(wasted)
            ages = [Value(run, run.mean("staleness_mean")) for run in found]
            yield Place(panel=AGE, x=name, unit="versions", series=title).ours(ages)


def draw(numbers: Numbers) -> Figure:
    """A table: a row for each tail, a column for each system."""
    told = {WASTE: "{:.0f} % wasted", AGE: "age {:.1f}"}
    caption = f"{SPEEDUP}; {WASTE}; {AGE} (versions)"
    model = "Qwen3-8B, 16 prompts x 8 trajectories of 10 turns"
    return compare_situations(numbers, panel=SPEEDUP, told=told, caption=caption, model=model)


EXHIBIT = Exhibit(
    name="flash_agents",
    title="Tail batching and asynchronous training of agents, by the tail of their environments (ours)",
    experiments=("flash-agents",),
    gather=gather,
    draw=draw,
)
