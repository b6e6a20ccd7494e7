"""Five of six workers lost, and coming back, with and without seeding and its memory, as PolyRL's Fig 12.

Without seeding the trainer's GPUs generate nothing as soon as a worker serves. With the stream trainer alone they
generate to the end of the round but for half of them, lent when they are nearly idle; PolyRL does not have that.
Without memory the time goes on from the last one when the number of workers changes, and is corrected step by step.

Throughput from the step of the loss to the end, over that of the run with seeding on the same prompts.
"""

from __future__ import annotations

from typing import Final

from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Claim, Numbers, Place, Value, comparing, paper_rows
from rollpacker.analysis.plots import compare_bars
from rollpacker.analysis.runs import Run, Runs

STEP: Final = 8
"""In which they are lost."""
THROUGHPUT = "throughput from the loss on, relative"
PARTS: Final = {
    "with seeding": "adaptive",
    "without seeding": "fixed",
    "without memory": "forgetting",
    "stream trainer alone": "off",
}


def gather(runs: Runs) -> Numbers:
    """Compare with the run that seeds."""
    paper = {row.x: row.y for row in paper_rows("elastic_recovery")}
    found = {part: runs.of(setup="elastic", study=f"elastic-recovery-{study}") for part, study in PARTS.items()}
    whole = {run.seed: _rate(run) for run in found["with seeding"]}
    points, claims = [], []
    for part, of_part in found.items():
        place = Place(panel=THROUGHPUT, x=part, unit="x")
        ours = place.ours([Value(run, _rate(run) / whole[run.seed]) for run in of_part if run.seed in whole])
        points.append(ours)
        if part in paper:
            points.append(place.paper(paper[part]))
            text = f"5 of 6 workers lost and coming back, {part}: throughput over that with it"
            claims.append(Claim(text=text, paper=paper[part], ours=ours, unit="x", neutral=1.0))
    return Numbers(points=comparing(points), claims=claims, missing=runs.missing)


def _rate(run: Run) -> float:
    steps = run.steps.loc[STEP:]
    return float(steps["tokens_trained"].sum() / steps["step_time_s"].sum()) if len(steps) else float("nan")


def draw(numbers: Numbers) -> Figure:
    """A bar for each."""
    return compare_bars(numbers, ylabel="", number="{:.2f}")


EXHIBIT = Exhibit(
    name="elastic_recovery",
    title="Five of six rollout workers lost and coming back, Qwen3-14B (PolyRL's Fig 12)",
    experiments=("elastic-recovery", "elastic-recovery-without", "elastic-recovery-forgetting"),
    gather=gather,
    draw=draw,
)
