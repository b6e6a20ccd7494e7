"""Ours: what the systems of ours gain, and what they train, where the guesses behind them fail.

The ladder assumes that a drafted token is accepted with 0.6, that a prompt's lengths are correlated with 0.3, and that
the policy writes as long responses at the end as at the beginning. Each is varied here with the others as they are.
`ours` needs the second: a prompt's history says little of its next lengths where they are unrelated. Every point is
compared with plain batches of the same prompts, lengths and drift, as in `ladder`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits import ladder
from rollpacker.analysis.numbers import Numbers, Place, Point
from rollpacker.analysis.plots import draw_line, origin_of
from rollpacker.analysis.runs import Runs
from rollpacker.analysis.style import FIGURE_WIDTH_INCHES, color_of, use_style

ACCEPTANCE, CORRELATION, DRIFT = "acceptance of a draft token", "correlation within a prompt", "growth per step (%)"
MODEL: Final = "Qwen2.5-14B"
SYSTEMS: Final = ("ours-fast", "ours", "ours-exact")
USUAL: Final = {ACCEPTANCE: 0.6, CORRELATION: 0.3, DRIFT: 0.0}
"""In all other exhibits."""
VALUES: Final = {
    ACCEPTANCE: {value: f"assumptions-{value}-0.3-0.0" for value in (0.0, 0.3, 0.6, 0.72)},
    CORRELATION: {value: f"assumptions-0.6-{value}-0.0" for value in (0.1, 0.3, 0.5, 0.8)},
    DRIFT: {100 * value: f"assumptions-0.6-0.3-{value}" for value in (0.0, 0.02, 0.04)},
}
"""The study of each value."""
_USUAL_STUDY: Final = VALUES[ACCEPTANCE][0.6]


def gather(runs: Runs) -> Iterator[Point | None]:
    """Compare each system with plain batches, at each value of each assumption."""
    for assumption, studies in VALUES.items():
        for value, study in studies.items():
            for system in SYSTEMS:
                plain = _USUAL_STUDY if assumption == ACCEPTANCE else study  # plain batches draft nothing
                beside = ladder.beside_plain(runs, system, model=MODEL, study=study, plain_study=plain)
                for measure, values in beside.items():
                    place = Place(panel=f"{measure}: {assumption}", x=value, unit=ladder.UNITS[measure], series=system)
                    yield place.ours(values)


def draw(numbers: Numbers) -> Figure:
    """Draw a column per assumption and a row per measure, on one scale."""
    use_style()
    frame = numbers.frame()
    figure: Figure
    figure, panels = plt.subplots(3, 3, figsize=(FIGURE_WIDTH_INCHES, 6.2), sharex="col", sharey="row")
    for row, (measure, neutral) in zip(panels, ladder.NEUTRAL.items(), strict=True):
        for axes, assumption in zip(row, VALUES, strict=True):
            _draw_panel(axes, frame[frame["panel"] == f"{measure}: {assumption}"])
            axes.axhline(neutral, color=ladder.NEUTRAL_COLOR, linewidth=0.8, zorder=1)
            axes.axvline(USUAL[assumption], color=ladder.NEUTRAL_COLOR, linewidth=1.0, linestyle=":", zorder=1)
            axes.tick_params(labelsize=7.5)
        row[0].set_ylabel(measure, fontsize=7.5)
    panels[0][0].set_ylim(bottom=0)
    panels[2][0].set_ylim(bottom=-2)
    for axes, (assumption, studies) in zip(panels[2], VALUES.items(), strict=True):
        axes.set_xlabel(assumption, fontsize=8.5)
        axes.set_xticks(list(studies))
    handles = [Line2D([], [], color=color_of(name, 0), linestyle="--", marker="o", label=name) for name in SYSTEMS]
    handles.append(Line2D([], [], color=ladder.NEUTRAL_COLOR, label="plain batches"))
    origin = f"{origin_of(frame, MODEL)}; dotted: as in all other exhibits"
    figure.legend(handles=handles, title=origin, title_fontsize=8, loc="outside lower center", ncols=4)
    return figure


def _draw_panel(axes: Axes, rows: pd.DataFrame) -> None:
    for system in SYSTEMS:
        draw_line(axes, rows[rows["series"] == system], color_of(system, 0), marker="o")


EXHIBIT = Exhibit(
    name="assumptions",
    title="What is left of ours where its assumptions fail (ours)",
    experiments=("assumptions-drafts", "assumptions-lengths", "assumptions-drift"),
    gather=gather,
    draw=draw,
)
