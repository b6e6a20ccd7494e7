"""ROLL-Flash's bounds held against the model: a step's time over its bound, and which share of the GPUs should train.

Synchronous: W + L, with L of each step. Asynchronous at staleness 2, at its best split of three: the tighter bound of
`sim/theory.py` at that split. It draws the runs of `flash_fig01b`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.flash_fig01b import RATIO
from rollpacker.analysis.exhibits.flash_sizes import (
    BEST_SPLIT,
    EXPERIMENTS,
    NUM_GPUS,
    WORKLOADS,
    best_splits,
    in_turns,
    theory,
)
from rollpacker.analysis.numbers import Place, Point, Value
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Runs

OVER_BOUND, SHARE = "step over its bound", "GPUs that train (%)"
SYNCHRONOUS, DIVIDED = "verl", "roll-flash, best split"
FORMULAS: Final = {"ROLL-Flash's formula": "trainer_share", "tighter bound": "tighter_trainer_share"}


def gather(runs: Runs) -> Iterator[Point | None]:
    """Ratios to the bounds, and shares of the GPUs, by lengths and number of GPUs."""
    for workload, title in WORKLOADS.items():
        for num_gpus in NUM_GPUS:
            plain = [(run, theory(run)) for run in in_turns(runs, "verl", num_gpus, workload)]
            best = [(split, theory(split.run)) for split in best_splits(runs, num_gpus, workload)]
            x = float(num_gpus)
            bounded = Place(panel=f"{title}: {OVER_BOUND}", x=x, unit="ratio", series=SYNCHRONOUS)
            yield bounded.ours(
                Value(run, run.mean("step_time_s") / bound.synchronous_s) for run, bound in plain if bound
            )
            bounded = Place(panel=f"{title}: {OVER_BOUND}", x=x, unit="ratio", series=DIVIDED)
            yield bounded.ours(
                Value(run, run.mean("step_time_s") / bound.split_s(share, RATIO))
                for (run, share), bound in best
                if bound
            )
            shares = Place(panel=f"{title}: {SHARE}", x=x, unit="%", series=DIVIDED)
            yield shares.ours(Value(run, 100 * share) for (run, share), _ in best)
            for name, formula in FORMULAS.items():
                shares = Place(panel=f"{title}: {SHARE}", x=x, unit="%", series=name)
                yield shares.ours(Value(run, 100 * getattr(bound, formula)(RATIO)) for (run, _), bound in best if bound)


EXHIBIT = Exhibit(
    name="flash_theory",
    title="Bounds on a step's time, and the split that they suggest, against the model (ROLL-Flash, propositions)",
    experiments=EXPERIMENTS,
    note=f"{BEST_SPLIT} The bounds leave out weights, rewards and what ends a step: a ratio may exceed 1 by a little.",
    gather=gather,
    draw=partial(compare_lines, xlabel="GPUs", are_sizes=True, num_columns=2),
)
