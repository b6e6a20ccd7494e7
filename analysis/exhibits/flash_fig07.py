"""ROLL-Flash's Fig 7: how long dynamic sampling generates a batch of 8 prompts x 8 responses, by what waits for what.

`batch` scores a batch after its last response and generates as many prompts as were dropped, and so on; `queue`
replaces a dropped prompt at once; 16 redundant prompts race, and the slower are deferred to long rounds (ROLL aborts
and loses them, so the paper's number stands beside our short rounds); or they go on into the next steps, two batches
ahead. Qwen3-8B on 8 GPUs with the lengths of a base model; about a third of the prompts is dropped: the paper's setup
is not known to us. Four runs of 20 steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Claim, Place, Point, Value, over, paper_rows
from rollpacker.analysis.plots import compare_bars
from rollpacker.analysis.rounds import rounds_of
from rollpacker.analysis.runs import Run, Runs

TIME, WASTE = "generation of a batch (s)", "tokens wasted (%)"
BATCH, QUEUE, RACED, WHOLE, AHEAD = "batch", "queue", "+16 raced,\nshort rounds", "+16 raced,\nall rounds", "+16 ahead"
SYSTEMS: Final = {BATCH: "batch", QUEUE: "queue", RACED: "race", WHOLE: "race", AHEAD: "ahead"}
OF_PAPER: Final = {"batch": BATCH, "queue": RACED}
"""Where the paper's two bars stand."""


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Means over the steps, and the speedup that the paper has."""
    found = {name: runs.of(setup="flash", study="flash-fig07", system=system) for name, system in SYSTEMS.items()}
    of_paper = {OF_PAPER[row.x]: row.y for row in paper_rows("flash_fig07")}
    times = {name: [Value(run, _generation_s(run, name)) for run in of_system] for name, of_system in found.items()}
    for name, of_system in found.items():
        if name in of_paper:
            yield Place(panel=TIME, x=name, unit="s").paper(of_paper[name])
        yield Place(panel=TIME, x=name, unit="s").ours(times[name])
        if name != RACED:  # a run has one waste
            wasted = [Value(run, run.wasted_percent) for run in of_system]
            yield Place(panel=WASTE, x=name, unit="%").ours(wasted)
    for name in (RACED, AHEAD):
        yield Claim(
            text=f"dynamic sampling, whole batches over {' '.join(name.split())}: generation",
            paper=of_paper[BATCH] / of_paper[RACED],
            ours=Place(panel=TIME, x=name, unit="x").ours(over(times[BATCH], times[name])),
            unit="x",
            neutral=1.0,
        )


def _generation_s(run: Run, name: str) -> float:
    """Mean time until a batch was complete, rewards too."""
    steps = rounds_of(run, "short") if name == RACED else run.steps
    return float((steps["rollout_time_s"] + steps["exposed_reward_time_s"]).mean())


EXHIBIT = Exhibit(
    name="flash_fig07",
    title="Generating a batch with dynamic sampling, 8 prompts x 8 responses (ROLL-Flash, Fig 7)",
    experiments=("flash-fig07",),
    gather=gather,
    draw=partial(compare_bars, num_columns=1),
)
