"""ROLL-Flash's Fig 9: trajectories that go on by themselves against batches of turns, by how environments' times vary.

256 trajectories of 20 turns, whose environments take 10 s for a step in the mean, on 8 GPUs; synchronous, so only the
pace differs. A batch of turns takes as long as its slowest environment; a batch of trajectories as long as the
one whose times add up to most. The paper's turns, lengths and numbers of trajectories are not known to us. Eight runs
of four steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Claim, Numbers, Place, Point, Value, comparing, paper_rows, speedups
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Runs

TIME, SPEEDUP = "generation of a batch (s)", "speedup of going on by itself"
PACES: Final = {"batch": "batches of turns", "own": "each by itself"}
DEVIATIONS: Final = ("1", "2.5", "5", "10")
"""Of the time of a step, in seconds."""
OF_PAPER: Final = 10.0


def gather(runs: Runs) -> Numbers:
    """Times of both, and their ratio."""
    points = comparing(_points(runs))
    times = {row.series: row.y for row in paper_rows("flash_fig09")}
    ours = next((point for point in points if point.panel == SPEEDUP and point.x == OF_PAPER), None)
    of_paper = times["batch"] / times["own"]
    claim = Claim(
        text="steps of 10 s with deviation 10 s: batches of turns over trajectories that go on by themselves",
        paper=of_paper,
        ours=ours,
        unit="x",
        neutral=1.0,
    )
    beside = Place(panel=SPEEDUP, x=OF_PAPER, unit="x", series=PACES["own"]).paper(of_paper)
    return Numbers(points=[*points, beside, *_papers(times)], claims=[claim], missing=runs.missing)


def _points(runs: Runs) -> Iterator[Point | None]:
    for deviation in DEVIATIONS:
        found = {pace: runs.of(setup="flash", study=f"flash-fig09-{pace}-{deviation}") for pace in PACES}
        for pace, name in PACES.items():
            place = Place(panel=TIME, x=float(deviation), unit="s", series=name)
            yield place.ours(Value(run, float(run.steps["rollout_time_s"].mean())) for run in found[pace])
        gains = speedups(found["batch"], found["own"], column="rollout_time_s")
        yield Place(panel=SPEEDUP, x=float(deviation), unit="x", series=PACES["own"]).ours(gains)


def _papers(times: dict[str, float]) -> Iterator[Point]:
    for pace, time_s in times.items():
        yield Place(panel=TIME, x=OF_PAPER, unit="s", series=PACES[pace]).paper(time_s)


def draw(numbers: Numbers) -> Figure:
    """Times, and what they come to."""
    return compare_lines(numbers, xlabel="standard deviation of a step of 10 s (s)", ylabel="", are_sizes=True)


EXHIBIT = Exhibit(
    name="flash_fig09",
    title="Trajectories that go on by themselves, or in batches of turns, Qwen3-8B (ROLL-Flash, Fig 9)",
    experiments=("flash-fig09",),
    gather=gather,
    draw=draw,
)
