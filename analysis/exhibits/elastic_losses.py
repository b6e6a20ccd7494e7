"""Three of six workers lost in the middle of a step: their tokens kept, or generated again, as PolyRL's Fig 14.

The overhead is what the step takes longer than the same step of a run that loses none: the batch is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Claim, Place, Point, Value, over, paper_rows
from rollpacker.analysis.plots import compare_bars
from rollpacker.analysis.runs import Run, Runs

STEP: Final = 10
"""In which they are lost."""
DELAYS_S: Final = (100, 200)
NEVER: Final = "9999-0"

OVERHEAD, RATIO = "overhead of the loss (s)", "overhead: kept over generated again"
SERIES: Final = {"true": "kept", "false": "again"}


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Compare the step in which workers are lost with the same step without a loss."""
    paper = {int(row.x): row.y for row in paper_rows("elastic_losses")}
    for delay_s in DELAYS_S:
        overheads = {kept: _overheads(runs, kept, delay_s) for kept in SERIES}
        for kept, series in SERIES.items():
            yield Place(panel=OVERHEAD, x=f"{delay_s} s, {series}", unit="s").ours(overheads[kept])
        place = Place(panel=RATIO, x=f"{delay_s} s", unit="x")
        ours = place.ours(over(overheads["true"], overheads["false"]))
        yield place.paper(paper[delay_s])
        yield ours
        text = f"3 of 6 workers lost at {delay_s} s: overhead with tokens kept over that of generating them again"
        yield Claim(text=text, paper=paper[delay_s], ours=ours, unit="x", neutral=1.0)


def _overheads(runs: Runs, kept: str, delay_s: int) -> Sequence[Value]:
    def of(study: str) -> list[Run]:
        found = runs.of(setup="elastic", study=f"elastic-losses-{kept.capitalize()}-{study}")
        return [run for run in found if STEP in run.steps.index]

    whole = {run.seed: _step_s(run) for run in of(NEVER)}
    return [Value(run, _step_s(run) - whole[run.seed]) for run in of(f"{STEP}-{delay_s}") if run.seed in whole]


def _step_s(run: Run) -> float:
    return float(run.steps["step_time_s"][STEP])


EXHIBIT = Exhibit(
    name="elastic_losses",
    title="Three of six rollout workers lost 100 s or 200 s into a step, Qwen3-14B (PolyRL's Fig 14)",
    experiments=("elastic-losses",),
    gather=gather,
    draw=partial(compare_bars, number="{:.3g}"),
)
