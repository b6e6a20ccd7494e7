"""What tail batching saved in the demo: a table, and rollout time and held-out score over the steps of both systems.

    rollpacker analysis demo RUN [RUN ...] [out=DIR]

The first run is the baseline. All numbers come from the `steps` table; runs are compared over the steps that all of
them have. Speedups are ratios of sums over the steps, as in the paper.

How well a system learned is what its policy scores on held-out prompts. The reward of the batches that it trained
stands beside it, in grey: a race selects short responses and a long round hard prompts, so it is not the policy's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from rich.table import Table

from rollpacker.analysis.runs import Run, read_runs, shared_steps
from rollpacker.analysis.style import (
    CYCLE_STEPS,
    FIGURE_WIDTH_INCHES,
    color_of,
    label_of,
    legend_below,
    save_figure,
    use_style,
)
from rollpacker.core.errors import ConfigError
from rollpacker.terminal import Terminal

NUM_END_STEPS = 2 * CYCLE_STEPS
"""First and last reward are means over two cycles."""

ROUND_MARKERS = {"plain": "o", "short": "o", "long": "D"}

_NAME_HEIGHT = 0.15
"""Share of the upper panel's height that the name of a mean takes, in two lines."""


def summarise(run: Run, baseline: Run, shared: list[int]) -> dict[str, float]:
    """Compute one run's column of the table over the steps that all runs have."""
    steps, base = run.steps.loc[shared], baseline.steps.loc[shared]
    num_end = max(1, min(NUM_END_STEPS, len(shared) // 2))
    idle, busy = steps["decode_slot_steps_idle"].sum(), steps["decode_slot_steps_busy"].sum()
    return {
        "step_time_s": steps["step_time_s"].mean(),
        "rollout_time_s": steps["rollout_time_s"].mean(),
        "longest_response_tokens": steps["response_length_max_tokens"].mean(),
        "bubble_ratio": idle / (idle + busy) if idle + busy else float("nan"),
        "wasted_share": steps["tokens_wasted"].sum() / max(1, steps["tokens_generated"].sum()),
        "reward_first": steps["reward_mean"].head(num_end).mean(),
        "reward_last": steps["reward_mean"].tail(num_end).mean(),
        **_held_out(run, shared[-1] + 1),
        "rollout_speedup": base["rollout_time_s"].sum() / steps["rollout_time_s"].sum(),
        "step_speedup": base["step_time_s"].sum() / steps["step_time_s"].sum(),
    }


def _held_out(run: Run, num_steps: int) -> dict[str, float]:
    """First and last score up to so many finished steps, mean over the sets, and the last one's error.

    None where nothing was held out.
    """
    scores = run.evaluations
    scores = scores[scores["step"] <= num_steps] if len(scores) else scores
    if scores.empty:
        return {}
    means = scores.groupby("step")["reward_mean"].mean()
    errors = scores.groupby("step")["se_over_prompts"].apply(lambda each: (each**2).sum() ** 0.5 / len(each))
    return {"held_out_first": means.iloc[0], "held_out_last": means.iloc[-1], "held_out_error": errors.iloc[-1]}


def _seconds(value: float) -> str:
    return f"{value:.3f} s" if value < 1 else f"{value:.1f} s"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("step time", "step_time_s", _seconds),
    ("rollout time", "rollout_time_s", _seconds),
    ("longest response", "longest_response_tokens", lambda value: f"{value:.0f} tokens"),
    ("bubble ratio (idle slots)", "bubble_ratio", _percent),
    ("tokens wasted", "wasted_share", _percent),
    ("held-out score before", "held_out_first", lambda value: f"{value:.3f}"),
    ("held-out score after", "held_out_last", lambda value: f"{value:.3f}"),
    ("its standard error", "held_out_error", lambda value: f"{value:.3f}"),
    ("training reward, first steps", "reward_first", lambda value: f"{value:.2f}"),
    ("training reward, last steps", "reward_last", lambda value: f"{value:.2f}"),
    ("rollout speedup", "rollout_speedup", lambda value: f"{value:.2f} x"),
    ("step speedup", "step_speedup", lambda value: f"{value:.2f} x"),
)
"""Title, key and format of each row; times and lengths are means per step."""


def table_of(runs: Sequence[Run]) -> Table:
    """Lay out the comparison, the baseline first."""
    shared = shared_steps(runs)
    summaries = [summarise(run, runs[0], shared) for run in runs]
    origin = "modelled" if any(run.is_modelled for run in runs) else "measured on this machine"
    table = Table(title=f"{len(shared)} steps, {origin}; means per step", title_style="bold", title_justify="left")
    table.add_column("")
    for run in runs:
        table.add_column(run.system, justify="right")
    for title, key, render in ROWS:
        if any(key in summary for summary in summaries):
            table.add_row(title, *(render(summary[key]) if key in summary else "" for summary in summaries))
    return table


def draw(runs: Sequence[Run], shared: list[int], stem: Path) -> tuple[Path, Path]:
    """Write the figure as PNG and PDF: rollout times above, with their means over the shared steps; reward below."""
    use_style()
    figure, (times, rewards) = plt.subplots(2, 1, figsize=(FIGURE_WIDTH_INCHES, 5.2), sharex=True, height_ratios=(3, 2))
    for position, run in enumerate(runs):
        color = color_of(run.system, position)
        _draw_times(times, run, color)
        _draw_rewards(rewards, run, color)
    origin = "modelled" if any(run.is_modelled for run in runs) else "measured"
    times.set_title(f"Rollout time of each step ({origin})")
    times.set_ylabel("seconds")
    times.set_ylim(bottom=0)
    times.margins(x=0.02)
    _draw_means(times, runs, shared)
    legend_below(figure, times.get_legend_handles_labels()[0], "outside lower left")
    if any(len(run.evaluations) for run in runs):
        rewards.set_title(f"Held-out score with its 95 % band; in grey the training reward over {CYCLE_STEPS} steps")
    else:
        rewards.set_title(f"Mean reward of each batch, and over {CYCLE_STEPS} steps (thick)")
    rewards.set_ylabel("reward")
    rewards.set_xlabel("training step")
    paths = save_figure(figure, stem)
    plt.close(figure)
    return paths


def _draw_times(axes: Axes, run: Run, color: str) -> None:
    steps = run.steps
    axes.plot(steps["step"] + 1, steps["rollout_time_s"], color=color, linewidth=0.8, alpha=0.4)
    for kind, rows in steps.groupby("round_kind", sort=False):
        is_long = kind == "long"
        axes.scatter(
            rows["step"] + 1,
            rows["rollout_time_s"],
            marker=ROUND_MARKERS.get(str(kind), "o"),
            s=42 if is_long else 18,
            facecolor="white" if is_long else color,
            edgecolor=color,
            linewidth=1.4,
            zorder=3,
            label=label_of(run.system) if kind == "plain" else f"{label_of(run.system)}, {kind} round",
        )


def _draw_means(axes: Axes, runs: Sequence[Run], shared: list[int]) -> None:
    """Draw each mean, and write it at the right end of its line, or as near as the others leave room."""
    means = [float(run.steps["rollout_time_s"][shared].mean()) for run in runs]
    top = axes.get_ylim()[1]
    places = _apart([mean / top for mean in means], _NAME_HEIGHT)
    for position, (run, mean, place) in enumerate(zip(runs, means, places, strict=True)):
        color = color_of(run.system, position)
        axes.axhline(mean, color=color, linestyle="--", linewidth=1.4)
        axes.annotate(
            f"mean\n{_seconds(mean)}",
            xy=(1.01, place),
            xycoords="axes fraction",
            va="center",
            color=color,
            fontweight="bold",
        )


def _apart(places: Sequence[float], distance: float) -> list[float]:
    """Move places up, or down from 1, until they lie at least a distance apart, in their order."""
    order = sorted(range(len(places)), key=lambda number: places[number])
    apart = list(places)
    lowest = distance / 2
    for number in order:
        apart[number] = max(apart[number], lowest)
        lowest = apart[number] + distance
    highest = 1 - distance / 2
    for number in reversed(order):
        apart[number] = min(apart[number], highest)
        highest = apart[number] - distance
    return apart


def _draw_rewards(axes: Axes, run: Run, color: str) -> None:
    steps, scores = run.steps, run.evaluations
    smooth = steps["reward_mean"].rolling(CYCLE_STEPS).mean()
    if len(scores):
        axes.plot(
            steps["step"] + 1, smooth, color="0.75", linewidth=1.4, linestyle="-" if run.system == "verl" else ":"
        )
        for _, of_set in scores.groupby("set"):
            band = 1.96 * of_set["se_over_prompts"].fillna(0)
            low, high = of_set["reward_mean"] - band, of_set["reward_mean"] + band
            axes.fill_between(of_set["step"], low, high, color=color, alpha=0.15, linewidth=0)
            axes.plot(of_set["step"], of_set["reward_mean"], color=color, linewidth=2.2, marker="o", markersize=4)
        axes.margins(x=0.02)
        return
    axes.plot(steps["step"] + 1, steps["reward_mean"], color=color, alpha=0.3, linewidth=0.8)
    axes.plot(steps["step"] + 1, smooth, color=color, linewidth=2.2)
    axes.margins(x=0.02)


def show(folders: Sequence[Path], out: Path) -> None:
    """Print the table and write the figure; what cannot be read is left out.

    Raises:
        ConfigError: No run could be read, or they have no step in common.
    """
    console = Terminal()
    runs, problems = read_runs(folders)
    for problem in problems:
        Terminal(stderr=True).print(f"left out: {problem}", soft_wrap=True)
    shared = shared_steps(runs)
    if not shared:
        missing = "step that all runs have" if runs else "run with a finished step"
        raise ConfigError(
            f"There is no {missing} in {', '.join(map(str, folders)) or 'what was given'}.",
            "The demo's table and figure compare runs with the first of them.",
            "For example: rollpacker analysis demo runs/demo/DATE/verl runs/demo/DATE/rollpacker",
        )
    console.print(table_of(runs))
    lengths = sorted({len(run.steps) for run in runs})
    if lengths != [len(shared)]:
        said = ", ".join(map(str, lengths))
        console.print(f"The runs have {said} steps; all means are over the {len(shared)} that all of them have.")
    for path in draw(runs, shared, out / "demo"):
        console.print(f"figure: {path}", soft_wrap=True)
