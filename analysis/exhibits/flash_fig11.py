"""ROLL-Flash's Fig 11: asynchronous training and redundant environments of agents, over synchronous training.

128 trajectories of 30 turns on 8 GPUs in turns: in ALFWorld, whose environments answer at once but for one in a hundred
that hangs, and in software engineering, where a command takes 10 s in the mean, and some take minutes. The paper joins
asynchronous training and redundancy; here the one waits for what the other aborts, so they are two systems. The paper
gives the greatest gain alone, which the greatest of ours stands beside. Eight runs of 15 steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.flash_sizes import steady
from rollpacker.analysis.numbers import Claim, Place, Point, largest, paper_rows, speedups
from rollpacker.analysis.plots import compare_bars
from rollpacker.analysis.runs import Runs

MOST: Final = "the most of all systems"
SPEEDUP: Final = "speedup over synchronous"
AGENTS: Final = {"agents-alfworld": "ALFWorld", "agents-swe": "software engineering"}
SYSTEMS: Final = {
    "tail": "redundant",
    "flash": "one batch\nahead",
    "roll-flash": "two batches\nahead",
}
"""Tail batching, and asynchronous training with one and with two batches admitted ahead."""


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """What each system gains with each kind of agents."""
    points = list(_points(runs))
    yield from points
    (of_paper,) = (row.y for row in paper_rows("flash_fig11"))
    best = largest(points)
    if best:
        most = Place(panel=MOST, x="agents", unit="x").paper(of_paper)
        yield replace(best, panel=most.panel, x=most.x)
        yield most
    yield Claim(
        text="agents: the most that asynchronous training or redundant environments gain",
        paper=of_paper,
        ours=best,
        unit="x",
        neutral=1.0,
    )


def _points(runs: Runs) -> Iterator[Point | None]:
    for agents, title in AGENTS.items():
        plain, *others = (
            steady(runs.of(setup="flash", study="flash-fig11", system=system, workload=agents))
            for system in ("verl", *SYSTEMS)
        )
        for name, found in zip(SYSTEMS.values(), others, strict=True):
            yield Place(panel=title, x=name, unit="x").ours(speedups(plain, found))


EXHIBIT = Exhibit(
    name="flash_fig11",
    title="Asynchronous training and redundant environments of agents, over synchronous training (ROLL-Flash, Fig 11)",
    experiments=("flash-fig11",),
    gather=gather,
    draw=partial(compare_bars, ylabel=SPEEDUP),
)
