"""Ours: tail batching against asynchronous training on as many GPUs: when which.

Of each system on 16 to 128 GPUs, with short and with long responses: how much faster it is than synchronous training,
how old a trained token is in the mean, and how long trained responses are against those of synchronous training, which
are the policy's. RollPacker is tail batching with scheduled rewards, planner and stream trainer; the tail batching
beside it is without these, and without a race of responses. It draws the runs of `flash_fig01b`; divided runs are at
their best split of three.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.flash_sizes import BEST_SPLIT, EXPERIMENTS, NUM_GPUS, WORKLOADS, best_splits, in_turns
from rollpacker.analysis.numbers import Numbers, Place, Point, Value, over, speedups
from rollpacker.analysis.plots import compare_situations
from rollpacker.analysis.runs import Run, Runs

SPEEDUP, AGE, LENGTH = "speedup over synchronous", "mean age of trained tokens", "trained over policy's length"
IN_TURNS: Final = {
    "rollpacker": "RollPacker",
    "tail-prompts": "tail batching,\nprompts race alone",
    "flash": "flash\nin turns",
    "roll-flash": "roll-flash\nin turns",
}
DIVIDED: Final = "roll-flash\ndivided"


def gather(runs: Runs) -> Iterator[Point | None]:
    """Three numbers for each system, lengths and number of GPUs."""
    for workload, title in WORKLOADS.items():
        for num_gpus in NUM_GPUS:
            plain = in_turns(runs, "verl", num_gpus, workload)
            found = {name: in_turns(runs, system, num_gpus, workload) for system, name in IN_TURNS.items()}
            found[DIVIDED] = [run for run, _ in best_splits(runs, num_gpus, workload)]
            for name, of_system in found.items():
                situation = f"{title}, {num_gpus} GPUs"
                yield Place(panel=SPEEDUP, x=name, unit="x", series=situation).ours(speedups(plain, of_system))
                ages = [Value(run, run.mean("staleness_mean")) for run in of_system]
                yield Place(panel=AGE, x=name, unit="versions", series=situation).ours(ages)
                lengths = over(_lengths(of_system), _lengths(plain))
                yield Place(panel=LENGTH, x=name, unit="x", series=situation).ours(lengths)


def _lengths(found: Sequence[Run]) -> list[Value]:
    """Mean tokens of a trained response."""
    return [Value(run, run.ratio("tokens_trained", "num_responses")) for run in found]


def draw(numbers: Numbers) -> Figure:
    """A table: a row for each situation, a column for each system, the fastest of a row in bold."""
    told = {AGE: "age {:.1f}", LENGTH: "length {:.2f}"}
    caption = f"{SPEEDUP}; {AGE} (versions); {LENGTH}"
    return compare_situations(
        numbers, panel=SPEEDUP, told=told, caption=caption, model="Qwen3-8B, 128 prompts x 8 responses"
    )


EXHIBIT = Exhibit(
    name="flash_tail",
    title="Tail batching against asynchronous training on as many GPUs: when which (ours)",
    experiments=EXPERIMENTS,
    note=BEST_SPLIT,
    gather=gather,
    draw=draw,
)
