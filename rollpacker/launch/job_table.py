"""Shows how runs stand: a line for each, and below them why some wait or did not finish.

Fits 80 columns. Colours repeat what the words say, so nothing is lost where there are none. Only draws: what is shown
comes from `survey.py`.
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

from rollpacker.launch.standing import RunStatusView, Word

_STYLES: Mapping[Word, str] = {
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
"""Also the order in which they are counted."""

_LONGEST_NODE_LIST = 14
"""Characters; of longer ones only the number of nodes is shown."""


def job_table(standings: Sequence[RunStatusView], *, now: float, complaint: str = "") -> RenderableType:
    """Draw runs; `now` is in seconds since the epoch, `complaint` says why Slurm could not be asked."""
    folder, names = run_names([standing.run_dir for standing in standings])
    parts: list[RenderableType] = [_summary(standings, folder), Text(), _lines(standings, names, now)]
    if reasons := _reasons(standings, [str(folder / name) for name in names]):
        parts += [Text(), reasons]
    if complaint:
        parts += [
            Text(),
            Text(f"Slurm could not be asked, so this is what the runs say themselves. {complaint}", "yellow"),
        ]
    return Group(*parts)


def run_names(run_dirs: Sequence[Path]) -> tuple[Path, tuple[str, ...]]:
    """Give the folder that the runs share, as other commands take it, and each run's path below that."""
    absolute = [Path(os.path.normpath(run_dir.absolute())) for run_dir in run_dirs]
    shared = Path(os.path.commonpath(absolute)) if len(set(absolute)) > 1 else absolute[0].parent
    here = Path.cwd()
    shown = shared.relative_to(here) if shared.is_relative_to(here) else shared
    return shown, tuple(os.path.relpath(path, shared) for path in absolute)


def duration(seconds: float) -> str:
    """Write a duration as Slurm does: [days-]hours:minutes:seconds."""
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-{hour:02d}:{minute:02d}:{second:02d}" if days else f"{hour}:{minute:02d}:{second:02d}"


def _summary(standings: Sequence[RunStatusView], folder: Path) -> Text:
    counts = Counter(standing.word for standing in standings)
    text = Text(f"{len(standings)} run{'' if len(standings) == 1 else 's'}", style="bold")
    for number, word in enumerate(word for word in _STYLES if counts[word]):
        text.append(", " if number else ": ", style="not bold")
        text.append(f"{counts[word]} {word}", style=f"not bold {_STYLES[word]}")
    return text.append(f"; below {folder}", style="not bold")


def _lines(standings: Sequence[RunStatusView], names: Sequence[str], now: float) -> Table:
    has_jobs = any(standing.submission or standing.job for standing in standings)
    was_requeued = any(standing.job and standing.job.num_restarts for standing in standings)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    table.add_column("run", overflow="fold", ratio=1)
    table.add_column("state", no_wrap=True)
    if has_jobs:
        table.add_column("job", no_wrap=True)
    table.add_column("nodes" if has_jobs else "host", overflow="fold")
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("reward", justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    if was_requeued:
        table.add_column("try", justify="right", no_wrap=True)
    for standing, name in zip(standings, names, strict=True):
        word = standing.word
        job = [] if not has_jobs else [_job(standing)]
        attempt = [] if not was_requeued else [_attempt(standing)]
        table.add_row(
            name,
            Text(word, style=_STYLES[word]),
            *job,
            _place(standing),
            _step(standing),
            f"{standing.progress.reward_mean:.3f}" if standing.progress else "",
            _time(standing, now),
            *attempt,
        )
    return table


def _reasons(standings: Sequence[RunStatusView], names: Sequence[str]) -> RenderableType | None:
    """List each reason once, under the runs that share it, and how to go on."""
    runs_by_reason: dict[tuple[Word, str], list[str]] = {}
    for standing, name in zip(standings, names, strict=True):
        if reason := "\n".join(part for part in (standing.reason, standing.how_to_go_on) if part):
            runs_by_reason.setdefault((standing.word, reason), []).append(name)
    blocks: list[RenderableType] = []
    for (word, reason), runs in runs_by_reason.items():
        others = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        # a path that is longer than a line stays whole, so that it can be copied
        blocks.append(Text.assemble((word, _STYLES[word]), f" {runs[0]}{others}", no_wrap=True, overflow="ignore"))
        blocks.append(Padding(Text(reason), (0, 0, 0, 2)))
    return Group(*blocks) if blocks else None


def _job(standing: RunStatusView) -> str:
    if standing.submission is not None:
        return standing.submission.job_id
    return standing.job.job_id if standing.job is not None else ""


def _attempt(standing: RunStatusView) -> str:
    return str(standing.job.num_restarts + 1) if standing.job is not None else ""


def _place(standing: RunStatusView) -> str:
    job = standing.job
    if job is not None and 0 < len(job.node_list) <= _LONGEST_NODE_LIST:
        return job.node_list
    if job is not None and job.num_nodes:
        return str(job.num_nodes)
    if standing.submission is not None:
        return str(standing.submission.num_nodes)
    return standing.status.host if standing.status is not None else ""


def _step(standing: RunStatusView) -> str:
    finished = standing.num_finished_steps
    if finished is None:
        return ""
    return f"{finished}/{standing.status.num_steps}" if standing.status is not None else str(finished)


def _time(standing: RunStatusView, now: float) -> str:
    """Of the last attempt of a job; of a run without a job, all that its steps took."""
    if (span := standing.started_and_ended(now)) is not None:
        return duration(span[1] - span[0])
    if standing.job is None and standing.progress is not None:
        modelled = " modelled" if standing.progress.is_modelled else ""
        return f"{duration(standing.progress.elapsed_s)}{modelled}"
    return ""
