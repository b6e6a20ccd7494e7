"""Five of six workers lost, and coming back, with and without seeding and its memory, as PolyRL's Fig 12.

Without seeding the trainer's GPUs generate nothing as soon as a worker serves. With the stream trainer alone they
generate to the end of the round but for half of them, lent when they are nearly idle; PolyRL does not have that.
Without memory the time goes on from the last one when the number of workers changes, and is corrected step by step.

Throughput from the step of the loss to the end, over that of the run with seeding on the same prompts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.elastic_workers import throughputs
from rollpacker.analysis.numbers import Claim, Place, Point, over, paper_rows
from rollpacker.analysis.plots import compare_bars
from rollpacker.analysis.runs import Runs

STEP: Final = 8
"""In which they are lost."""
THROUGHPUT = "throughput from the loss on, relative"
PARTS: Final = {
    "with seeding": "adaptive",
    "without seeding": "fixed",
    "without memory": "forgetting",
    "stream trainer alone": "off",
}


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Compare with the run that seeds."""
    paper = {row.x: row.y for row in paper_rows("elastic_recovery")}
    found = {part: runs.of(setup="elastic", study=f"elastic-recovery-{study}") for part, study in PARTS.items()}
    rates = {part: throughputs(of_part, first=STEP) for part, of_part in found.items()}
    for part, of_part in rates.items():
        place = Place(panel=THROUGHPUT, x=part, unit="x")
        ours = place.ours(over(of_part, rates["with seeding"]))
        yield ours
        if part in paper:
            yield place.paper(paper[part])
            text = f"5 of 6 workers lost and coming back, {part}: throughput over that with it"
            yield Claim(text=text, paper=paper[part], ours=ours, unit="x", neutral=1.0)


EXHIBIT = Exhibit(
    name="elastic_recovery",
    title="Five of six rollout workers lost and coming back, Qwen3-14B (PolyRL's Fig 12)",
    experiments=("elastic-recovery", "elastic-recovery-without", "elastic-recovery-forgetting"),
    gather=gather,
    draw=partial(compare_bars, number="{:.2f}"),
)
