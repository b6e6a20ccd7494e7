"""Ours: what each lever adds, alone and left out: time, trained length and waste side by side.

Every system trains the same prompts, each once in each of five epochs, so that a length compares the same work: trained
tokens over those of plain batches say how much shorter its training data are than what the policy writes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Numbers, Place, Point, Value
from rollpacker.analysis.plots import origin_of
from rollpacker.analysis.runs import Run, Runs
from rollpacker.analysis.style import FIGURE_WIDTH_INCHES, OTHER_COLORS, use_style

SPEEDUP, LENGTH, WASTE = "speedup over plain batches (x)", "trained over policy's length", "tokens wasted (%)"
MODELS: Final = ("Qwen2.5-7B", "Qwen2.5-14B", "Qwen2.5-32B")
BASELINE: Final = "verl"
GROUPS: Final = {
    "systems": ("rollpacker", "ours-fast", "ours", "ours-exact"),
    "and tail escalation": ("ours-fast-tail", "ours-tail", "ours-exact-tail"),
    "plain batches and": ("rewards", "stream", "drafts", "cp", "tail-escalation"),
    "ours without": ("no-history", "no-race", "no-stream", "no-drafts", "no-cp"),
}
"""Names of systems, in the order of the figure."""
_LABELS: Final = {
    "rewards": "reward scheduler",
    "stream": "stream trainer",
    "drafts": "draft tokens",
    "cp": "CP by length",
    "tail-escalation": "tail escalation",
    "ours-fast-tail": "ours-fast",
    "ours-tail": "ours",
    "ours-exact-tail": "ours-exact",
    "no-history": "length history",
    "no-race": "any race",
    "no-stream": "stream trainer",
    "no-drafts": "draft tokens",
    "no-cp": "CP by length",
}
UNITS: Final = {SPEEDUP: "x", LENGTH: "x", WASTE: "%"}
NEUTRAL: Final = {SPEEDUP: 1.0, LENGTH: 1.0, WASTE: 0.0}
"""Of plain batches."""
NEUTRAL_COLOR: Final = "#444444"


def gather(runs: Runs) -> Iterator[Point | None]:
    """Compare every system with plain batches of the same model and seed."""
    for model in MODELS:
        for system in itertools.chain.from_iterable(GROUPS.values()):
            for measure, values in beside_plain(runs, system, model=model, study="ladder").items():
                yield Place(panel=measure, x=system, unit=UNITS[measure], series=model).ours(values)


def beside_plain(runs: Runs, system: str, *, plain_study: str = "", **wanted: str) -> dict[str, list[Value]]:
    """Each measure of a system's runs, beside plain batches of the same seed.

    Args:
        runs: To take them from.
        system: To compare.
        plain_study: Of the plain batches; empty: the system's own.
        **wanted: Study and model.
    """
    of_plain = wanted | ({"study": plain_study} if plain_study else {})
    plain = {run.seed: run for run in runs.of(system=BASELINE, **of_plain) if run.is_finished}
    finished = [run for run in runs.of(system=system, **wanted) if run.is_finished]
    pairs = [(run, plain[run.seed]) for run in finished if run.seed in plain]
    return {
        SPEEDUP: [Value(run, _sum(base, "step_time_s") / _sum(run, "step_time_s")) for run, base in pairs],
        LENGTH: [Value(run, _sum(run, "tokens_trained") / _sum(base, "tokens_trained")) for run, base in pairs],
        WASTE: [Value(run, run.wasted_percent) for run, _ in pairs],
    }


def _sum(run: Run, column: str) -> float:
    return float(run.steps[column].sum())


def draw(numbers: Numbers) -> Figure:
    """Draw a row per system and a panel per measure, with a mark for each model."""
    use_style()
    frame = numbers.frame()
    figure: Figure
    figure, panels = plt.subplots(1, 3, figsize=(FIGURE_WIDTH_INCHES, 4.6), sharey=True, width_ratios=(5, 5, 4))
    for axes, (panel, neutral) in zip(panels, NEUTRAL.items(), strict=True):
        _draw_panel(axes, frame[frame["panel"] == panel])
        axes.axvline(neutral, color=NEUTRAL_COLOR, linewidth=0.8, zorder=1)
        axes.set_title(panel, fontsize=7.5)
        axes.tick_params(labelsize=7.5)
    rows = _rows()
    panels[0].set_yticks(range(len(rows)), [_LABELS.get(row, row) for row in rows])
    for label, row in zip(panels[0].get_yticklabels(), rows, strict=True):
        if row in GROUPS:
            label.set_fontweight("bold")
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    handles = [
        *(
            Line2D([], [], color=color, marker="o", linestyle="none", label=model)
            for model, color in zip(MODELS, OTHER_COLORS, strict=False)
        ),
        Line2D([], [], color=NEUTRAL_COLOR, label="plain batches"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, title=origin_of(frame, ""), title_fontsize=8)
    return figure


def _rows() -> Sequence[str]:
    """The groups' names, each above its systems."""
    return [row for group, systems in GROUPS.items() for row in (group, *systems)]


def _draw_panel(axes: Axes, rows: pd.DataFrame) -> None:
    places = {row: place for place, row in enumerate(_rows())}
    for group in GROUPS:
        axes.axhspan(places[group] - 0.5, places[group] + 0.5, color="0.94", linewidth=0, zorder=0)
    for position, model in enumerate(MODELS):
        of_model = rows[rows["series"] == model]
        y = [places[system] + 0.2 * (position - 1) for system in of_model["x"]]
        spread = [of_model["y"] - of_model["y_low"], of_model["y_high"] - of_model["y"]]
        color = OTHER_COLORS[position]
        axes.errorbar(of_model["y"], y, xerr=spread, fmt="o", color=color, markersize=3.5, elinewidth=0.9, zorder=2)
    axes.grid(visible=False, axis="y")


EXHIBIT = Exhibit(
    name="ladder",
    title="What each lever adds, alone and left out (ours)",
    experiments=("ladder",),
    gather=gather,
    draw=draw,
)
