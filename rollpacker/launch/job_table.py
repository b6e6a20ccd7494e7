"""The table of runs: a line for each, and below the table why some wait or did not finish.

Fits 80 columns. Colours only repeat the states. Draws what `collect_status.py` collects.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rollpacker.launch.run_status_view import RunState, RunStatusView
from rollpacker.runtime.run.progress import format_duration

_STYLES: Mapping[RunState, str] = {
    "running": "green",
    "starting": "cyan",
    "ending": "cyan",
    "waiting": "yellow",
    "requeued": "yellow",
    "preempted": "yellow",
    "interrupted": "yellow",
    "finished": "blue",
    "failed": "bold red",
    "died": "bold red",
    "cancelled": "magenta",
    "unknown": "dim",
}
"""In the order in which the summary lists them."""

_LONGEST_NODE_LIST = 14
"""Characters; instead of a longer list the number of nodes is shown."""


def job_table(views: Sequence[RunStatusView], *, now: float, complaint: str = "") -> RenderableType:
    """Draw runs; `now` is in seconds since the epoch, `complaint` is that of `CollectedStatus`."""
    folder, names = run_names([view.run_dir for view in views])
    parts: list[RenderableType] = [_summary(views, folder), Text(), _lines(views, names, now)]
    if reasons := _reasons(views, [str(folder / name) for name in names]):
        parts += [Text(), reasons]
    for view, name in zip(views, names, strict=True):
        if view.workers and view.state in {"running", "starting"}:
            parts.append(Text(f"workers of {folder / name}: {view.workers}"))
    if complaint:
        answered = any(view.job for view in views)
        lacking = "Slurm's accounting did not answer; of jobs that squeue has forgotten, the runs tell how they ended."
        nothing = "Slurm did not answer; this is the status that the runs wrote themselves."
        parts += [Text(), Text(f"{lacking if answered else nothing} {complaint}", "yellow")]
    return Group(*parts)


def run_names(run_dirs: Sequence[Path]) -> tuple[Path, tuple[str, ...]]:
    """Give the folder that the runs share, as other commands take it, and each run's path below that."""
    absolute = [Path(os.path.normpath(run_dir.absolute())) for run_dir in run_dirs]
    shared = Path(os.path.commonpath(absolute)) if len(set(absolute)) > 1 else absolute[0].parent
    here = Path.cwd()
    shown = shared.relative_to(here) if shared.is_relative_to(here) else shared
    return shown, tuple(os.path.relpath(path, shared) for path in absolute)


def _summary(views: Sequence[RunStatusView], folder: Path) -> Text:
    counts = Counter(view.state for view in views)
    text = Text(f"{len(views)} run{'' if len(views) == 1 else 's'}", style="bold")
    for number, state in enumerate(state for state in _STYLES if counts[state]):
        text.append(", " if number else ": ", style="not bold")
        text.append(f"{counts[state]} {state}", style=f"not bold {_STYLES[state]}")
    return text.append(f"; below {folder}", style="not bold")


def _lines(views: Sequence[RunStatusView], names: Sequence[str], now: float) -> Table:
    has_jobs = any(view.submission or view.job for view in views)
    has_scores = any(view.held_out for view in views)
    was_requeued = any(view.job and view.job.num_restarts for view in views)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    table.add_column("run", overflow="fold", ratio=1)
    table.add_column("state", no_wrap=True)
    if has_jobs:
        table.add_column("job", no_wrap=True)
    table.add_column("nodes" if has_jobs else "host", overflow="fold")
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("reward", justify="right", no_wrap=True)
    if has_scores:
        table.add_column("held out", overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    if was_requeued:
        table.add_column("try", justify="right", no_wrap=True)
    for view, name in zip(views, names, strict=True):
        job = [] if not has_jobs else [_job(view)]
        attempt = [] if not was_requeued else [_attempt(view)]
        table.add_row(
            name,
            Text(view.state, style=_STYLES[view.state]),
            *job,
            _place(view),
            _step(view),
            f"{view.progress.reward_mean:.3f}" if view.progress else "",
            *([view.held_out] if has_scores else []),
            _time(view, now),
            *attempt,
        )
    return table


def _reasons(views: Sequence[RunStatusView], names: Sequence[str]) -> RenderableType | None:
    """List each reason once, under the runs that share it, and how to continue."""
    runs_by_reason: dict[tuple[RunState, str], list[str]] = {}
    for view, name in zip(views, names, strict=True):
        if reason := "\n".join(part for part in (view.reason, view.how_to_go_on) if part):
            runs_by_reason.setdefault((view.state, reason), []).append(name)
    blocks: list[RenderableType] = []
    for (state, reason), runs in runs_by_reason.items():
        others = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        # a path longer than a line is not broken, so that it can be copied
        blocks.append(Text.assemble((state, _STYLES[state]), f" {runs[0]}{others}", no_wrap=True, overflow="ignore"))
        blocks.append(Padding(Text(reason), (0, 0, 0, 2)))
    return Group(*blocks) if blocks else None


def _job(view: RunStatusView) -> str:
    if view.job is not None:  # the submitted one, or a later one in which the run was continued by hand
        return view.job.job_id
    return view.submission.job_id if view.submission is not None else ""


def _attempt(view: RunStatusView) -> str:
    return str(view.job.num_restarts + 1) if view.job is not None else ""


def _place(view: RunStatusView) -> str:
    job = view.job
    if job is not None and 0 < len(job.node_list) <= _LONGEST_NODE_LIST:
        return job.node_list
    if job is not None and job.num_nodes:
        return str(job.num_nodes)
    if view.submission is not None:
        return str(view.submission.num_nodes)
    return view.status.host if view.status is not None else ""


def _step(view: RunStatusView) -> str:
    finished = view.num_finished_steps
    if finished is None:
        return ""
    return f"{finished}/{view.status.num_steps}" if view.status is not None else str(finished)


def _time(view: RunStatusView, now: float) -> str:
    """How long the last attempt of a job ran; of a run without a job, how long its steps took in all attempts."""
    if (span := view.started_and_ended(now)) is not None:
        return format_duration(max(0.0, span[1] - span[0]))  # Slurm's clock may be ahead
    if view.job is None and view.progress is not None:
        modelled = " modelled" if view.progress.is_modelled else ""
        return f"{format_duration(view.progress.elapsed_s)}{modelled}"
    return ""
