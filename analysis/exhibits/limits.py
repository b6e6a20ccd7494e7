"""Ours: where tail batching does not pay.

It throws away the work of a race, and wins when engines stand idle at the end of a rollout. So it loses where they
never stand idle: without a tail, or with so many responses per GPU that decoding is as fast as it gets. And whatever it
saves in the rollout is a share of the step that shrinks as rewards or training grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Numbers, Place, Point, Value, speedups
from rollpacker.analysis.plots import draw_map, origin_of
from rollpacker.analysis.runs import Runs
from rollpacker.analysis.style import FIGURE_WIDTH_INCHES, OTHER_COLORS, SYSTEM_COLORS, use_style

MODEL, BASELINE, TAIL = "Qwen2.5-7B", "verl", "tail"
LOAD, STAGES, SHARE = "speedup over plain batches, 2 GPUs", "speedup over plain batches, 16 GPUs", "rollout share"
TAIL_SCALES: Final = ("0.0", "0.2", "1.0")
NUM_PROMPTS: Final = (4, 32, 128)

CASES: Final = {
    "as usual": "lengths-0.3-1.0",
    "cap 2,048": "cap-2048",
    "cap 512": "cap-512",
    "judge reads 8k": "judge-8192",
    "judge reads 32k": "judge-32768",
    "training, 1 s/sequence": "training-1.0",
    "training, 4 s/sequence": "training-4.0",
}
"""Steps of 16 GPUs by what they are bound by, with the study that their runs name."""


def gather(runs: Runs) -> Iterator[Point | None]:
    """Speedups of step times, over tail and load, and over the share of a plain step that is rollout."""
    yield from _map(runs)
    yield from _cases(runs)


def _map(runs: Runs) -> Iterator[Point | None]:
    for scale in TAIL_SCALES:
        for num_prompts in NUM_PROMPTS:
            plain, tail = (
                runs.of(model=MODEL, study=f"load-{scale}", system=system, num_prompts=num_prompts)
                for system in (BASELINE, TAIL)
            )
            load = [run.num_prompts * run.num_responses // run.num_gpus for run in plain]
            x = str(load[0]) if load else ""
            yield Place(panel=LOAD, x=x, unit="x", series=scale).ours(speedups(plain, tail))


def _cases(runs: Runs) -> Iterator[Point | None]:
    for name, study in CASES.items():
        plain, tail = (runs.of(model=MODEL, study=study, system=system) for system in (BASELINE, TAIL))
        yield Place(panel=STAGES, x=name, unit="x", series="step").ours(speedups(plain, tail))
        rollouts = speedups(plain, tail, column="rollout_time_s")
        yield Place(panel=STAGES, x=name, unit="x", series="rollout").ours(rollouts)
        shares = (Value(run, 100 * run.ratio("rollout_time_s", "step_time_s")) for run in plain)
        yield Place(panel=SHARE, x=name, unit="%", series="plain").ours(shares)


def draw(numbers: Numbers) -> Figure:
    """Draw a map of tail and load with the line of no gain, and steps by their share of rollout."""
    use_style()
    frame = numbers.frame()
    figure: Figure
    figure, (load, stages) = plt.subplots(1, 2, figsize=(FIGURE_WIDTH_INCHES, 3.1), width_ratios=(5, 6))
    _draw_map(load, frame[frame["panel"] == LOAD])
    _draw_cases(stages, frame[frame["panel"] == STAGES], frame[frame["panel"] == SHARE])
    figure.supxlabel(f"below 1, and below the black line: it loses; {origin_of(frame, has_range=False)}", fontsize=8)
    return figure


def _draw_map(axes: Axes, rows: pd.DataFrame) -> None:
    axes.set_title("a  tail and load, 2 GPUs")
    if rows.empty:
        return
    columns = sorted(dict.fromkeys(rows["x"]), key=int)
    scales = sorted(dict.fromkeys(rows["series"]), key=float)
    grid = rows.pivot(index="series", columns="x", values="y").loc[scales, columns]
    speedup = grid.to_numpy(dtype=float)
    draw_map(axes, speedup, "{:.2f}x")
    _draw_border(axes, speedup)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(scales)), [f"{float(scale):g}" for scale in scales])
    axes.set(xlabel="responses per GPU", ylabel="factor on lengths above P90")


def _draw_border(axes: Axes, speedup: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> None:
    """The line between the cells that gain and those that lose."""
    gains = speedup >= 1
    for row, column in np.ndindex(*gains.shape):
        if column + 1 < gains.shape[1] and gains[row, column] != gains[row, column + 1]:
            axes.plot([column + 0.5] * 2, [row - 0.5, row + 0.5], color="black", linewidth=2)
        if row + 1 < gains.shape[0] and gains[row, column] != gains[row + 1, column]:
            axes.plot([column - 0.5, column + 0.5], [row + 0.5] * 2, color="black", linewidth=2)


def _draw_cases(axes: Axes, rows: pd.DataFrame, shares: pd.DataFrame) -> None:
    axes.set_title("b  what bounds the step, 16 GPUs")
    if rows.empty:
        return
    names: Sequence[str] = list(dict.fromkeys(rows["x"]))
    share_of = dict(zip(shares["x"], shares["y"], strict=True))
    for series, color, offset in (("step", SYSTEM_COLORS["tail"], -0.2), ("rollout", OTHER_COLORS[3], 0.2)):
        of_series = rows[rows["series"] == series]
        places = [names.index(name) + offset for name in of_series["x"]]
        axes.barh(places, of_series["y"], height=0.36, color=color, edgecolor="white", hatch="////", label=series)
        for place, value in zip(places, of_series["y"], strict=True):
            beside = (max(value, 1.0), place)  # never on the line of no gain
            axes.annotate(f"{value:.2f}", beside, xytext=(2, 0), textcoords="offset points", va="center", fontsize=7)
    axes.axvline(1, color="black", linewidth=1.5)
    axes.set_yticks(range(len(names)), [f"{name}\n{share_of.get(name, float('nan')):.0f} % rollout" for name in names])
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=7)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1.6 * float(rows["y"].max()))  # the legend stands beside the longest bar
    axes.set_xlabel("speedup over plain batches (x)")
    axes.legend(fontsize=7, loc="center right")


EXHIBIT = Exhibit(
    name="limits",
    title="Where tail batching does not pay (ours)",
    experiments=("limits", "limits-cap", "limits-judge", "limits-training", "tail_weight"),
    gather=gather,
    draw=draw,
)
