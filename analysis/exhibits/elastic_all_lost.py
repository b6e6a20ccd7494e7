"""Every worker lost one second after the trainer's engines were lent, and none comes back: the step ends all the same.

PolyRL waits for ever in this case: its local engines are off the list until the next step. Here lent engines are taken
back within the step, and the steps after it are those of a run that never had a worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Place, Point, Value
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Runs, shared_steps

STEP_TIME, MEMBERS = "step time (s)", "engines of workers that serve"
SERIES: Final = {4: "four workers, all lost in step 9", 0: "never a worker"}


def gather(runs: Runs) -> Iterator[Point | None]:
    """Every step that all seeds have, of both runs."""
    for number, series in SERIES.items():
        found = runs.of(setup="elastic", study=f"elastic-all-lost-{number}")
        for step in shared_steps(found):
            for panel, unit, column in ((STEP_TIME, "s", "step_time_s"), (MEMBERS, "engines", "num_members_mean")):
                place = Place(panel=panel, x=float(step + 1), unit=unit, series=series)
                yield place.ours([Value(run, float(run.steps[column][step])) for run in found])


EXHIBIT = Exhibit(
    name="elastic_all_lost",
    title="All rollout workers lost just after the trainer's engines were lent, Qwen3-8B (ours)",
    experiments=("elastic-all-lost",),
    gather=gather,
    draw=partial(compare_lines, xlabel="step"),
)
