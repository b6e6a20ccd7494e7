"""ROLL-Flash's Fig 8: the responses of a prompt spread over engines, or kept together on one, by their number.

64 prompts of Qwen3-8B on 16 GPUs, synchronous; the paper's GPUs and lengths are not known to us, so its times stand
here as their ratio, at 16 responses. 16 runs of four steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.flash_sizes import WORKLOADS
from rollpacker.analysis.numbers import Claim, Place, Point, Value, paper_rows, speedups
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Run, Runs

ROUTINGS: Final = {"sample": "spread over engines", "prompt": "kept together"}
NUM_RESPONSES: Final = (4, 8, 16, 32)
OF_PAPER: Final = 16
"""Responses of a prompt."""
PAPERS_LENGTHS: Final = "ROLL-Flash, its own lengths"
SPEEDUP: Final = "speedup of spreading"


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Rollout times, and their ratios."""
    times = {row.x: row.y for row in paper_rows("flash_fig08")}
    of_paper = times["prompt"] / times["sample"]
    yield Place(panel=SPEEDUP, x=float(OF_PAPER), unit="x", series=PAPERS_LENGTHS).paper(of_paper)
    for workload, title in WORKLOADS.items():
        for number in NUM_RESPONSES:
            found = {routing: _runs(runs, routing, workload, number) for routing in ROUTINGS}
            yield from _times(title, number, found)
            gains = speedups(found["prompt"], found["sample"], column="rollout_time_s")
            ours = Place(panel=SPEEDUP, x=float(number), unit="x", series=title).ours(gains)
            yield ours
            if number == OF_PAPER:
                text = f"{title}, 64 prompts x {number}: responses together over spread: rollout"
                yield Claim(text=text, paper=of_paper, ours=ours, unit="x", neutral=1.0)


def _runs(runs: Runs, routing: str, workload: str, number: int) -> list[Run]:
    study = f"flash-fig08-{routing}"
    return runs.of(setup="flash", study=study, workload=workload, num_responses=number)


def _times(title: str, number: int, found: dict[str, list[Run]]) -> Iterator[Point | None]:
    for routing, name in ROUTINGS.items():
        place = Place(panel=f"{title}: rollout (s)", x=float(number), unit="s", series=name)
        yield place.ours(Value(run, run.mean("rollout_time_s")) for run in found[routing])


EXHIBIT = Exhibit(
    name="flash_fig08",
    title="Responses of a prompt spread over engines or kept together, 64 prompts (ROLL-Flash, Fig 8)",
    experiments=("flash-fig08",),
    gather=gather,
    draw=partial(compare_lines, xlabel="responses per prompt", are_sizes=True),
)
