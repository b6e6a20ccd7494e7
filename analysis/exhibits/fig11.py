"""Fig 11: what speculation pays: rollout time per step over the factors for prompts and for responses.

The paper races responses alone ("Fixed P"), prompts alone ("Fixed R"), and both at 1.25, with length limits of 8k, 16k
and 32k: those of its 7B, 14B and 32B. Its seconds are printed truncated. Its baseline at 32k, 673 s, contradicts Fig
10b, 567 s. Ours are of 7B.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import ALL_SETUPS, Exhibit
from rollpacker.analysis.numbers import Claim, Numbers, Place, Point, Value, paper_rows, speedups
from rollpacker.analysis.plots import compare_panels
from rollpacker.analysis.runs import Run, Runs

MODEL = "Qwen2.5-7B"
FACTORS = (1.0, 1.125, 1.25, 1.5)
ROLLOUT, WASTE = "rollout time per step (s)", "tokens wasted (%)"

RESPONSES = "rollout (%), responses race"
PROMPTS = "rollout (%), prompts race"
BOTH = "rollout (%), both at 1.25"
"""Of that without a race."""

PAPER_PANELS = {"Fixed P": RESPONSES, "Fixed R": PROMPTS, "Ours": BOTH}

BASELINE_S = 82.0
"""Rollout at 8k without a race, as printed."""

SHARE_UNIT = "% of the rollout time without a race"


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Means over the steps, long rounds included."""
    model = runs.model(MODEL)
    grid = {(p, r): runs.of(model=model, system=system_name(p, r), task="mix") for p in FACTORS for r in FACTORS}
    for (prompts, responses), found in grid.items():
        place = Place(panel=ROLLOUT, x=f"{responses:g}", unit="s", series=f"{prompts:g}")
        yield place.ours(Value(run, run.mean("rollout_time_s")) for run in found)
        place = Place(panel=WASTE, x=f"{responses:g}", unit="%", series=f"{prompts:g}")
        yield place.ours(Value(run, run.wasted_percent) for run in found)
    if not runs.are_papers_size:
        return
    yield from sorted(_of_paper(), key=lambda point: point.panel != BOTH)
    without = grid[1.0, 1.0]
    for factor in FACTORS:
        for panel, found in ((RESPONSES, grid[1.0, factor]), (PROMPTS, grid[factor, 1.0])):
            place = Place(panel=panel, x=factor, unit=SHARE_UNIT, series="8k")
            yield place.ours(_shares(without, found))
    both = _shares(without, grid[1.25, 1.25])
    yield Place(panel=BOTH, x="8k", unit=SHARE_UNIT).ours(both)
    yield from _claims(without, both)


def system_name(prompts: float, responses: float) -> str:
    """The system's name, as the experiment makes it of what the sweep says."""
    return f"eta-{prompts:g}-{responses:g}"


def _shares(without: Iterable[Run], found: Iterable[Run]) -> list[Value]:
    """Rollout time over that of the run of its seed without a race, in per cent, over the steps that both have."""
    return [Value(run, 100 / speedup) for run, speedup in speedups(without, found, column="rollout_time_s")]


def _of_paper() -> Iterator[Point]:
    for row in paper_rows("fig11"):
        panel, limit = PAPER_PANELS[row.panel], row.series.removeprefix("Length=")
        place = Place(panel=panel, x=float(row.x), unit=SHARE_UNIT, series=limit)
        yield (Place(panel=BOTH, x=limit, unit=SHARE_UNIT) if panel == BOTH else place).paper(row.y)


def _claims(without: Iterable[Run], both: Iterable[Value]) -> Iterator[Claim]:
    yield Claim(
        text=f"{MODEL}: rollout time per step without a race",
        paper=BASELINE_S,
        ours=Place(panel=ROLLOUT, x="none", unit="s").ours(Value(run, run.mean("rollout_time_s")) for run in without),
        unit="s",
    )
    [of_paper] = [point.y for point in _of_paper() if (point.panel, point.x) == (BOTH, "8k")]
    yield Claim(
        text=f"{MODEL}: rollout time that races both at 1.25 over that without a race",
        paper=of_paper,
        ours=Place(panel=BOTH, x="8k", unit="%").ours(both),
        unit="%",
        neutral=100.0,
    )


def draw(numbers: Numbers) -> Figure:
    """Heat maps over both factors, the darker the worse; then what each race saves, beside the paper's."""
    special = dict.fromkeys((ROLLOUT, WASTE), _draw_grid)
    xlabels = {RESPONSES: "factor for responses", PROMPTS: "factor for prompts"}
    shares = {RESPONSES, PROMPTS, BOTH}
    return compare_panels(
        numbers, xlabels=xlabels, num_columns=3, axis_of=lambda panel: "" if panel in shares else panel, special=special
    )


def _draw_grid(axes: Axes, rows: pd.DataFrame) -> None:
    grid = rows.pivot(index="series", columns="x", values="y")
    sns.heatmap(grid, ax=axes, annot=True, fmt=".0f", cmap="Blues", cbar=False, linewidths=1, square=True)
    axes.set_title(str(rows["panel"].iloc[0]))
    axes.set_xlabel("factor for responses")
    axes.set_ylabel("factor for prompts")


EXHIBIT = Exhibit(
    name="fig11",
    title="What speculation pays: rollout time and waste over both factors (Fig 11)",
    experiments=("sensitive_analysis_fig11",),
    gather=gather,
    draw=draw,
    setups=ALL_SETUPS,
)
