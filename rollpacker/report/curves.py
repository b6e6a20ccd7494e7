"""Curves of the page over steps: rewards by domain, the long-prompt queue, what only real trainers know, and ages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rollpacker.report import figures
from rollpacker.report.figures import Line, Panel
from rollpacker.report.words import share

if TYPE_CHECKING:
    from rollpacker.report.page import ShownRun

_LEARNING = {
    "loss": "training loss",
    "grad_norm": "norm of the gradient",
    "entropy": "entropy per token, nats",
    "kl_to_reference": "KL to the reference per token",
    "clip_fraction": "share of tokens clipped",
    "logprob_mismatch_mean": "mismatch of engine and trainer, mean per token, nats",
    "surprisal_z": "surprisal less entropy, standard deviations",
}
"""Columns that only real trainers fill."""


def curves_of(runs: Sequence[ShownRun]) -> dict[str, Any]:
    """Draw every curve that some run has, and say which are missing."""
    shown = [Panel(title="mean reward of the trained responses", lines=_lines(runs, "reward_mean"))]
    domains = sorted({domain for run in runs for domain in run.story.domains["domain"].unique()})
    if len(domains) > 1:
        shown += [
            Panel(title=f"reward, {domain}", lines=list(_domain_lines(runs, domain, "reward_mean")))
            for domain in domains
        ]
    notes = []
    queue = [line for line in _lines(runs, "long_queue_length") if line.y.any()]
    if queue:
        title = "long-prompt queue: deferred prompts after each step"
        shown.append(Panel(title=title, lines=queue, is_smoothed=False))
    if idle := [run.name for run in runs if not run.story.steps["long_queue_length"].any()]:
        notes.append(f"The long-prompt queue was always empty: {', '.join(idle)}.")
    learning = [Panel(title=title, lines=_lines(runs, column)) for column, title in _LEARNING.items()]
    learned = [panel for panel in learning if any(line.y.any() for line in panel.lines)]
    if not learned:
        notes.append("A modelled trainer has neither loss nor log-probabilities: they are not shown.")
    return {"curves": figures.curves([*shown, *learned], "rewards, queue and learning"), "curve_notes": notes}


def ages_of(runs: Sequence[ShownRun]) -> dict[str, Any]:
    """Draw how old trained tokens were, and give each run's share of them by age; nothing where all were current."""
    runs = [run for run in runs if run.story.steps["staleness_max"].any()]
    if not runs:
        return {"ages": "", "age_rows": [], "num_ages": 0}
    shown = [
        Panel(title="age of trained tokens: mean, versions", lines=_lines(runs, "staleness_mean")),
        Panel(title="age of the oldest one", lines=_lines(runs, "staleness_max"), is_smoothed=False),
    ]
    domains = sorted({domain for run in runs for domain in run.story.domains["domain"].unique()})
    if len(domains) > 1:
        by_domain = {domain: list(_domain_lines(runs, domain, "staleness_mean")) for domain in domains}
        shown += [Panel(title=f"mean age, {domain}", lines=lines) for domain, lines in by_domain.items() if lines]
    num_ages = 1 + max(int(run.story.steps["staleness_max"].max()) for run in runs)
    rows = [(run, [share(part) for part in run.story.share_by_age(num_ages)]) for run in runs]
    return {"ages": figures.curves(shown, "ages of trained tokens"), "age_rows": rows, "num_ages": num_ages}


def _lines(runs: Sequence[ShownRun], column: str) -> list[Line]:
    """A column of `steps` of each run that has a number there."""
    known = [(run, run.story.steps.dropna(subset=[column])) for run in runs]
    return [_line(run, steps, column) for run, steps in known if len(steps)]


def _domain_lines(runs: Sequence[ShownRun], domain: str, column: str) -> Iterator[Line]:
    for run in runs:
        rows = run.story.domains[run.story.domains["domain"] == domain].dropna(subset=[column])
        if len(rows):
            yield _line(run, rows, column)


def _line(run: ShownRun, rows: Any, column: str) -> Line:
    x, y = (rows[name].to_numpy(dtype=float) for name in ("step", column))
    return Line(name=run.name, color=run.color, x=x + 1, y=y)
