"""Fig 7a: run times of sandboxed programs, as a share of the programs that took no longer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Place, Point, Value, paper_rows
from rollpacker.analysis.plots import compare_curves
from rollpacker.analysis.runs import Runs

PANEL = "sandboxed programs"


def gather(runs: Runs) -> Iterator[Point | None]:
    """Quantiles of the reward times of code under plain batches, whose limit is fixed, where a program ran.

    A truncated response is scored without. Modelled times are drawn from this very figure, so there they must agree.
    """
    of_paper = [row for row in paper_rows("fig07a") if row.panel == "a-main"]  # the inset repeats those at the limit
    plain = runs.of(model="Qwen2.5-14B", system="verl", task="code")
    times = [(run, run.responses[run.responses["reward_reason"] != "truncated"]["reward_time_s"]) for run in plain]
    for row in of_paper:
        place = Place(panel=PANEL, x=row.y, unit="s", series="code")
        ours = place.ours(Value(run, float(times_s.quantile(row.y / 100))) for run, times_s in times)
        yield place.paper(float(row.x))
        yield ours


EXHIBIT = Exhibit(
    name="fig07a",
    title="Run times of sandboxed programs (Fig 7a)",
    experiments=("table1",),
    gather=gather,
    draw=partial(compare_curves, xlabel="run time of a program (s)", ylabel="programs that took no longer (%)"),
)
