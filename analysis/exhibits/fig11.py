"""Fig 11: what speculation pays: rollout time per step over the factors for prompts and for responses."""

from __future__ import annotations

from operator import attrgetter

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import ALL_SETUPS, Exhibit
from rollpacker.analysis.numbers import Numbers, Place, Point, Source, Value, comparing
from rollpacker.analysis.runs import Run, Runs
from rollpacker.analysis.style import FIGURE_WIDTH_INCHES, use_style

FACTORS = (1.0, 1.125, 1.25, 1.5)
ROLLOUT, WASTE = "rollout time per step (s)", "tokens wasted (%)"


def gather(runs: Runs) -> Numbers:
    """Means over the steps, long rounds included. The paper's own numbers of this figure are not at hand."""
    points: list[Point | None] = []
    for prompts in FACTORS:
        for responses in FACTORS:
            found = runs.of(system=system_name(prompts, responses))
            for panel, unit, value_of in ((ROLLOUT, "s", _rollout_s), (WASTE, "%", attrgetter("wasted_percent"))):
                place = Place(panel=panel, x=f"{responses:g}", unit=unit, series=f"{prompts:g}")
                points.append(place.ours(Value(run, value_of(run)) for run in found))
    return Numbers(points=comparing(points), missing=runs.missing)


def system_name(prompts: float, responses: float) -> str:
    """The system's name, as the experiment makes it of what the sweep says."""
    return f"eta-{prompts:g}-{responses:g}"


def _rollout_s(run: Run) -> float:
    return float(run.steps["rollout_time_s"].mean())


def draw(numbers: Numbers) -> Figure:
    """A heat map per panel; the darker, the worse."""
    use_style()
    frame = numbers.frame()
    figure: Figure
    figure, panels = plt.subplots(1, 2, figsize=(FIGURE_WIDTH_INCHES, 3.0))
    for panel, axes in zip((ROLLOUT, WASTE), panels, strict=True):
        grid = frame[frame["panel"] == panel].pivot(index="series", columns="x", values="y")
        sns.heatmap(grid, ax=axes, annot=True, fmt=".0f", cmap="Blues", cbar=False, linewidths=1, square=True)
        axes.set_title(panel)
        axes.set_xlabel("factor for responses")
        axes.set_ylabel("factor for prompts")
    is_modelled = (frame["source"] == Source.MODELLED).any()
    figure.supxlabel("modelled, Qwen2.5-7B" if is_modelled else "measured", fontsize=8, color="#555555")
    return figure


EXHIBIT = Exhibit(
    name="fig11",
    title="What speculation pays: rollout time and waste over both factors (Fig 11)",
    experiments=("sensitive_analysis_fig11",),
    gather=gather,
    draw=draw,
    setups=ALL_SETUPS,
)
