"""ROLL-Flash's Fig 10: redundant environments, in more groups or in each, where one environment in a hundred stalls.

32 groups of 8 trajectories are needed. With 36 groups the four slowest are deferred, to every ninth round, in which
nothing races; ROLL stops and loses them, so the paper's numbers stand beside the rounds that race. With more
environments in a group and no more groups nothing is deferred. The paper's turns and times are not known to us: there
are four, of 8.8 s, fitted to its time for 36 x 9. What stalls cost without redundancy is predicted.
Seven runs of 18 steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Claim, Place, Point, Value, over, paper_rows
from rollpacker.analysis.plots import compare_bars
from rollpacker.analysis.runs import Run, Runs

RACED: Final = "generation of a round (s); with redundancy, of those that race"
ALL: Final = "mean of all rounds, the long ones too (s)"
SPEEDUP: Final = "speedup over 32 x 8, all rounds"
NEEDED, REDUNDANT = "32 x 8", "36 x 9"
SIZES: Final = {
    NEEDED: "1-1",
    "32 x 9": "1-1.125",
    "32 x 10": "1-1.25",
    "36 x 8": "1.125-1",
    REDUNDANT: "1.125-1.125",
    "36 x 10": "1.125-1.25",
    "32 x 8,\n60 s limit": "limit",
}
"""Groups and environments in each, as the studies' names end."""


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Generation times of the rounds that race and of all, and what is gained."""
    found = {name: runs.of(setup="flash", study=f"flash-fig10-{size}") for name, size in SIZES.items()}
    of_paper = {row.x: row.y for row in paper_rows("flash_fig10")}
    racing = {name: [Value(run, _racing_s(run)) for run in of_size] for name, of_size in found.items()}
    whole = {name: [Value(run, run.mean("rollout_time_s")) for run in of_size] for name, of_size in found.items()}
    for name in SIZES:
        if name in of_paper:
            yield Place(panel=RACED, x=name, unit="s").paper(of_paper[name])
        yield Place(panel=RACED, x=name, unit="s").ours(racing[name])
        yield Place(panel=ALL, x=name, unit="s").ours(whole[name])
        if name != NEEDED:
            yield Place(panel=SPEEDUP, x=name, unit="x").ours(over(whole[NEEDED], whole[name]))
    for which, times in (("rounds that race", racing), ("with the rounds that train what was deferred", whole)):
        yield Claim(
            text=f"32 groups of 8 over 36 of 9 environments, {which}",
            paper=of_paper[NEEDED] / of_paper[REDUNDANT],
            ours=Place(panel=RACED, x=REDUNDANT, unit="x").ours(over(whole[NEEDED], times[REDUNDANT])),
            unit="x",
            neutral=1.0,
        )


def _racing_s(run: Run) -> float:
    """Of the rounds that race; of a run without redundancy, of all."""
    return float(run.steps.loc[run.steps["round_kind"] != "long", "rollout_time_s"].mean())


EXHIBIT = Exhibit(
    name="flash_fig10",
    title="Redundant environments, one in a hundred of which stalls for 210 s (ROLL-Flash, Fig 10)",
    experiments=("flash-fig10", "flash-fig10-limit"),
    note="Number and time of the turns are fitted to the paper's time for 36 x 9; the other times are predicted.",
    gather=gather,
    draw=partial(compare_bars, num_columns=1),
)
