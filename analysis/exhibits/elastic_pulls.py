"""Ours: how long one to eight rollout workers take to pull a policy that they all want at once.

All pull from the trainer's node, so the time grows as soon as their links together are faster than its own, unless they
relay: each begins at another bucket, and takes one from any node that has it, chosen by chance, as Ray does.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import pandas as pd

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.elastic_workers import NUM_FIRST_STEPS, WORKERS
from rollpacker.analysis.numbers import Place, Point, Value
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Run, Runs

PANEL: Final = "from publication to serving (s)"
FIRST, LAST, RELAYED = "first worker", "last worker", "last worker, relayed"


def gather(runs: Runs) -> Iterator[Point | None]:
    """Means over the publications of the steps from the sixth on."""
    for number in WORKERS[1:]:
        found, relayed = (
            [(run, _pulls(run)) for run in runs.of(setup="elastic", study=study)]
            for study in (f"elastic-workers-{number}", f"elastic-pulls-{number}")
        )
        for series, pick, of_series in ((FIRST, "min", found), (LAST, "max", found), (RELAYED, "max", relayed)):
            values = [
                Value(run, float(pulls.groupby("started_at_s")["time_s"].agg(pick).mean())) for run, pulls in of_series
            ]
            yield Place(panel=PANEL, x=float(number), unit="s", series=series).ours(values)


def _pulls(run: Run) -> pd.DataFrame:
    """The pulls of a run after its first steps, with their begin and time."""
    pulls: pd.DataFrame = run.intervals.query("activity == 'catching_up'")
    settled_at_s = max(run.steps["finished_at_s"].loc[: NUM_FIRST_STEPS - 1], default=0.0)
    return pulls[pulls["started_at_s"] >= settled_at_s].assign(time_s=pulls["ended_at_s"] - pulls["started_at_s"])


EXHIBIT = Exhibit(
    name="elastic_pulls",
    title="Pulls of a policy by rollout workers, Qwen3-8B (ours)",
    experiments=("elastic-workers", "elastic-pulls"),
    gather=gather,
    draw=partial(compare_lines, xlabel="rollout workers that pull at once"),
)
