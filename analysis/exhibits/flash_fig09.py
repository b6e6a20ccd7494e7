"""ROLL-Flash's Fig 9: trajectories that go on by themselves against batches of turns, by how environments' times vary.

256 trajectories of 20 turns, whose environments take 10 s for a step in the mean, on 8 GPUs; synchronous, so only the
pace differs. A batch of turns takes as long as its slowest environment; a batch of trajectories as long as the
one whose times add up to most. The paper's turns, lengths and numbers of trajectories are not known to us. Eight runs
of four steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Claim, Place, Point, Value, comparing, paper_rows, speedups
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Runs

TIME, SPEEDUP = "generation of a batch (s)", "speedup of going on by itself"
PACES: Final = {"batch": "batches of turns", "own": "each by itself"}
DEVIATIONS: Final = ("1", "2.5", "5", "10")
"""Of the time of a step, in seconds."""
OF_PAPER: Final = 10.0


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Times of both, and their ratio."""
    points = comparing(_points(runs))
    yield from points
    times = {row.series: row.y for row in paper_rows("flash_fig09")}
    of_paper = times["batch"] / times["own"]
    yield Place(panel=SPEEDUP, x=OF_PAPER, unit="x", series=PACES["own"]).paper(of_paper)
    yield from _papers(times)
    yield Claim(
        text="steps of 10 s with deviation 10 s: batches of turns over trajectories that go on by themselves",
        paper=of_paper,
        ours=next((point for point in points if point.panel == SPEEDUP and point.x == OF_PAPER), None),
        unit="x",
        neutral=1.0,
    )


def _points(runs: Runs) -> Iterator[Point | None]:
    for deviation in DEVIATIONS:
        found = {pace: runs.of(setup="flash", study=f"flash-fig09-{pace}-{deviation}") for pace in PACES}
        for pace, name in PACES.items():
            place = Place(panel=TIME, x=float(deviation), unit="s", series=name)
            yield place.ours(Value(run, run.mean("rollout_time_s")) for run in found[pace])
        gains = speedups(found["batch"], found["own"], column="rollout_time_s")
        yield Place(panel=SPEEDUP, x=float(deviation), unit="x", series=PACES["own"]).ours(gains)


def _papers(times: dict[str, float]) -> Iterator[Point]:
    for pace, time_s in times.items():
        yield Place(panel=TIME, x=OF_PAPER, unit="s", series=PACES[pace]).paper(time_s)


EXHIBIT = Exhibit(
    name="flash_fig09",
    title="Trajectories that go on by themselves, or in batches of turns, Qwen3-8B (ROLL-Flash, Fig 9)",
    experiments=("flash-fig09",),
    gather=gather,
    draw=partial(compare_lines, xlabel="standard deviation of a step of 10 s (s)", are_sizes=True),
)
