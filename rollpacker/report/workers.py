"""What the page shows of rollout workers: when each was there, what it made and lost, and what a token cost.

Only of runs that had workers. A number that no table has is left empty, and each cost says where its hours come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rollpacker.launch.accounts import Accounts
from rollpacker.report.figures import ROW_PX, color, evenly, label_px, set_rows
from rollpacker.report.svg import Mark, Plot, add_marks, bar, set_time_axis, to_svg
from rollpacker.report.words import count, digits, plural, seconds, share, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rollpacker.report.page import ShownRun

    Row = dict[str, Any]

MOST_LIVES: Final = 40
"""More are drawn and listed by an even choice of them."""

_SECONDS_PER_HOUR: Final = 3600.0
_SOURCES: Final = {"sacct": "Slurm's accounting (sacct)", "run": "the run's own files"}


def section(runs: Sequence[ShownRun]) -> dict[str, Any]:
    """The figure, and the rows of its tables; nothing where no run had workers."""
    shown = [(run, run.story.accounts) for run in runs if run.story.accounts and run.story.accounts.workers]
    plots = [_plot(run, accounts) for run, accounts in shown]
    return {
        "worker_lives": to_svg("rollout workers over the run", plots, is_stacked=True) if plots else "",
        "worker_rows": [
            (run, row["worker"], _cells(row)) for run, accounts in shown for row in evenly(accounts.workers, MOST_LIVES)
        ],
        "worker_sums": [
            (run, label, text)
            for run, accounts in shown
            for label, text in (*_sums(run, accounts.workers), *_costs(run, accounts.allocations))
        ],
    }


def _plot(run: ShownRun, accounts: Accounts) -> Plot:
    lives = evenly(accounts.workers, MOST_LIVES)
    until_s = float(run.story.steps["finished_at_s"].iloc[-1])
    labels = [row["worker"] for row in lives]
    marks: list[Mark] = []
    for number, row in enumerate(lives):
        place = (number - 0.4, number + 0.4)
        left_s = until_s if row["left_at_s"] is None else row["left_at_s"]
        serving_s = left_s if row["serving_at_s"] is None else row["serving_at_s"]
        coming_s = serving_s - row["joined_at_s"]
        tip = f"{row['worker']}: {seconds(coming_s)} until it served"
        marks.append(bar((row["joined_at_s"], serving_s), place, color("idle_later"), tip))
        end = "" if row["end_reason"] is None else f", then: {row['end_reason']}"
        tip = f"{row['worker']}: served for {seconds(left_s - serving_s)}{end}"
        marks.append(bar((serving_s, left_s), place, color("rollout"), tip))
    some = f", {len(lives)} of them shown" if len(lives) < len(accounts.workers) else ""
    title = f"{run.name}: {plural(len(accounts.workers), 'life')}{some}".replace("lifes", "lives")
    draw = partial(_draw, marks=marks, labels=labels, until_s=until_s)
    return Plot(title, draw, 44 + ROW_PX * len(labels), left=label_px(labels), note="Time since the run began.")


def _draw(axes: Axes, marks: Sequence[Mark], labels: Sequence[str], until_s: float) -> None:
    add_marks(axes, marks)
    set_rows(axes, labels, len(labels))
    axes.set_xlim(0, until_s * 1.01)
    set_time_axis(axes, "x", until_s)


def _cells(row: Row) -> list[str]:
    """What one life was."""
    return [
        row["node"] or "",
        seconds(row["joined_at_s"]),
        "never" if row["serving_at_s"] is None else seconds(row["serving_at_s"]),
        "is there" if row["left_at_s"] is None else seconds(row["left_at_s"]),
        row["end_reason"] or "",
        count(row["num_tokens"]),
        f"{row['num_requests']:,}",
        f"{row['num_moved_in']:,} / {row['num_moved_out']:,}",
        f"{count(row['tokens_kept'])} / {count(row['tokens_lost'])}",
        f"{row['num_pulls']:,}",
    ]


def _sums(run: ShownRun, lives: Sequence[Row]) -> list[tuple[str, str]]:
    """All lives together."""
    steps = run.story.steps
    of_members, generated = int(steps["tokens_of_members"].sum()), int(steps["tokens_generated"].sum())
    kept, lost = (sum(row[name] for row in lives) for name in ("tokens_kept", "tokens_lost"))
    num_pulls, pulled, pulling_s = (
        sum(row[name] for row in lives) for name in ("num_pulls", "pulled_bytes", "pulling_s")
    )
    own = max(0, generated - of_members)
    part = share(of_members / max(1, generated))
    tokens = f"{count(own)} by the run's own engines, {count(of_members)} by workers ({part})"
    ended = [row["end_reason"] for row in lives if row["end_reason"]]
    rate = f", {size(pulled / pulling_s)}/s" if pulled and pulling_s else ""
    pulls = f"{num_pulls:,} of {size(pulled / max(1, num_pulls))}, {seconds(pulling_s / max(1, num_pulls))} each{rate}"
    return [
        ("tokens", tokens),
        ("ends", "; ".join(f"{ended.count(reason):,} x {reason}" for reason in dict.fromkeys(ended)) or "none"),
        ("tokens when a worker was lost", f"{count(kept)} kept, about {count(lost)} lost (estimate)"),
        ("fetches of a policy", pulls),
    ]


def _costs(run: ShownRun, allocations: Sequence[Row]) -> list[tuple[str, str]]:
    """Hours of GPUs and their price, of the run's own job and of workers, and tokens per unit of money."""
    said = []
    for kind, label in (("trainer", "the run's own GPUs"), ("worker", "GPUs of workers")):
        mine = [row for row in allocations if row["kind"] == kind]
        hours = sum(row["gpu_seconds"] for row in mine) / _SECONDS_PER_HOUR
        sources = " and ".join(_SOURCES[source] for source in dict.fromkeys(row["source"] for row in mine))
        costs = [row["cost"] for row in mine]
        price = next((row["price_per_gpu_hour"] for row in mine), None)
        money = f", {digits(sum(costs))} at {price:g} an hour (the user's price)" if mine and None not in costs else ""
        billed = [row["billing"] for row in mine if row["billing"] is not None]
        units = f", {digits(sum(billed))} billing hours of Slurm" if billed else ""
        text = f"{digits(hours)} GPU-hours in {plural(len(mine), 'allocation')}{money}{units}; from {sources}"
        said.append((label, text if mine else "none"))
    costs = [row["cost"] for row in allocations]
    if costs and None not in costs and sum(costs) > 0:
        trained = int(run.story.steps["tokens_trained"].sum())
        said.append(("trained tokens per unit of money", count(trained / sum(costs))))
    else:
        wanted = "cluster.price_per_gpu_hour and elastic.price_per_gpu_hour give them"
        said.append(("trained tokens per unit of money", f"not known without prices: {wanted}"))
    return said
