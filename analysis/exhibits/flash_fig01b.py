"""ROLL-Flash's Fig 1b: synchronous and asynchronous throughput as GPUs are added to a fixed batch.

Each asynchronous point is the best of three splits. The ratio of the bounds is (W + L) / (W + L / 3), of
`sim/theory.py` with these lengths at staleness 2: what to expect, no limit, since neither bound need be reached. The
paper's batch and lengths are not known to us; of its curves we have one number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Final

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.flash_sizes import (
    BEST_SPLIT,
    EXPERIMENTS,
    NUM_GPUS,
    WORKLOADS,
    best_splits,
    in_turns,
    theory,
)
from rollpacker.analysis.numbers import Claim, Place, Point, Value, comparing, largest, paper_rows, speedups
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Runs

THROUGHPUT, SPEEDUP = "samples/s", "speedup over synchronous"
SYNCHRONOUS, BOUNDS = "verl", "ratio of the bounds, staleness 2"
DIVIDED: Final = "roll-flash, best split"
MOST: Final = 2.24
"""Over synchronous training, RLVR, equal GPUs: the paper's text; with which model, ratio and GPUs we do not know."""
RATIO: Final = 2
"""Of `system=roll-flash`."""


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Throughput and speedup by lengths and number of GPUs."""
    points = comparing(_points(runs))
    yield from points
    yield from _papers()
    yield from _claims(points)


def _points(runs: Runs) -> Iterator[Point | None]:
    for workload, title in WORKLOADS.items():
        for num_gpus in NUM_GPUS:
            plain = in_turns(runs, "verl", num_gpus, workload)
            series = {
                SYNCHRONOUS: plain,
                DIVIDED: [run for run, _ in best_splits(runs, num_gpus, workload)],
                "roll-flash, in turns": in_turns(runs, "roll-flash", num_gpus, workload),
                "flash, in turns": in_turns(runs, "flash", num_gpus, workload),
            }
            for name, found in series.items():
                rates = [Value(run, run.samples_per_s) for run in found]
                place = Place(panel=f"{title}: {THROUGHPUT}", x=float(num_gpus), unit="samples/s", series=name)
                yield place.ours(rates)
                if name != SYNCHRONOUS:
                    gains = speedups(plain, found)
                    yield Place(panel=f"{title}: {SPEEDUP}", x=float(num_gpus), unit="x", series=name).ours(gains)
            bounds = [(run, theory(run)) for run in plain]
            limits = [Value(run, of.synchronous_s / of.asynchronous_s(RATIO)) for run, of in bounds if of]
            yield Place(panel=f"{title}: {SPEEDUP}", x=float(num_gpus), unit="x", series=BOUNDS).ours(limits)


def _papers() -> Iterator[Point]:
    for row in paper_rows("flash_fig01b"):
        place = Place(panel=f"{row.series}: {SPEEDUP}", x=float(row.x), unit="x", series=DIVIDED)
        yield place.paper(row.y)


def _claims(points: list[Point]) -> Iterator[Claim]:
    roll_flash = {
        point.quantity[::2]: point for point in points if point.series == DIVIDED and point.panel.endswith(SPEEDUP)
    }
    for row in paper_rows("flash_fig01b"):
        ours = roll_flash.get((f"{row.series}: {SPEEDUP}", float(row.x)))
        text = f"{row.series} on {row.x} GPUs: roll-flash at its best split over synchronous"
        yield Claim(text=text, paper=row.y, ours=ours, unit="x", neutral=1.0)
    quantities = itertools.product((f"{title}: {SPEEDUP}" for title in WORKLOADS.values()), map(float, NUM_GPUS))
    text = "the most that roll-flash gains over synchronous, of any lengths and number of GPUs"
    yield Claim(text=text, paper=MOST, ours=largest(map(roll_flash.get, quantities)), unit="x", neutral=1.0)


EXHIBIT = Exhibit(
    name="flash_fig01b",
    title="More GPUs for a fixed batch, synchronous and asynchronous, Qwen3-8B (ROLL-Flash, Fig 1b)",
    experiments=EXPERIMENTS,
    note=BEST_SPLIT,
    gather=gather,
    draw=partial(compare_lines, xlabel="GPUs", are_sizes=True, num_columns=2),
)
