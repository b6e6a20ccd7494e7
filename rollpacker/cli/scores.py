"""The table of held-out scores that `rollpacker evaluate` prints; it fits 80 columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from rollpacker.evaluation.comparison import Rewards, paired_difference, rewards_by_set
from rollpacker.metrics.evaluation_files import read_newest_responses
from rollpacker.metrics.tables import read_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rich.console import RenderableType


_WIDTH = 80
"""Columns; wider tables are printed as two."""

_GAP = 2
"""Columns between two of a table."""

_LEGEND = "+-: standard error with other samples of these prompts (with other prompts of their kind)"
_OF_ONE_SAMPLE = "; ?: unknown, from one sample of each prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTable:
    """Scores, as numbers and as they are shown."""

    scores: Mapping[tuple[int, str], float]
    """Mean rewards, by step and set."""
    shown: Sequence[RenderableType]


def score_table(run_dirs: Mapping[int, Path], others: Mapping[str, Rewards] | None, *, other: str) -> ScoreTable:
    """Make the table of evaluations.

    Args:
        run_dirs: Runs of no steps, by the step of the policy that they evaluated.
        others: Rewards to compare with, by set; None without any.
        other: Where these come from.
    """
    rows = {step: read_table(run_dir, "evaluations").to_pylist() for step, run_dir in run_dirs.items()}
    of_pass = {
        (step, row["set"], row["k"]): row["value"]
        for step, run_dir in run_dirs.items()
        for row in read_table(run_dir, "pass_at_k").to_pylist()
    }
    has_steps = len(run_dirs) > 1
    shown = _scores(rows, of_pass, has_steps=has_steps)
    if others is not None:
        mine = {step: rewards_by_set(read_newest_responses(run_dir)) for step, run_dir in run_dirs.items()}
        shown += ["", _differences(rows, mine, others, other, has_steps=has_steps)]
    is_unknown = any(row["se_given_prompts"] is None for of_step in rows.values() for row in of_step)
    legend = _LEGEND + _OF_ONE_SAMPLE * is_unknown
    return ScoreTable(
        scores={(step, row["set"]): row["reward_mean"] for step, of_step in rows.items() for row in of_step},
        shown=[*shown, Text(legend, style="dim")],
    )


def _scores(
    rows: Mapping[int, Sequence[Mapping[str, Any]]], of_pass: Mapping[tuple[int, str, int], float], *, has_steps: bool
) -> list[RenderableType]:
    """One table, or a second one with the lengths where the names leave no room for them."""
    k = max((k for _, _, k in of_pass), default=1)
    names = [*(["step"] if has_steps else []), "set"]
    scores, lengths = ["n x k", "reward", "+-", f"pass@{k}"], ["truncated", "length p50/p90"]
    named, scored, long = [], [], []
    for step, of_step in rows.items():
        for row in of_step:
            passed = of_pass.get((step, row["set"], k))
            named.append([*([str(step)] if has_steps else []), row["set"]])
            scored.append(
                [
                    f"{row['num_prompts']} x {row['num_samples']}",
                    f"{row['reward_mean']:.3f}",
                    _errors(row["se_given_prompts"], row["se_over_prompts"]),
                    "" if passed is None else f"{passed:.3f}",
                ]
            )
            long.append([f"{row['truncated_share']:.1%}", f"{row['length_p50_tokens']}/{row['length_p90_tokens']}"])
    whole = [[*first, *second, *third] for first, second, third in zip(named, scored, long, strict=True)]
    if _width([[*names, *scores, *lengths], *whole]) <= _WIDTH:
        return [_table(names, [*scores, *lengths], whole)]
    return [
        _table(names, scores, [[*first, *second] for first, second in zip(named, scored, strict=True)]),
        "",
        _table(names, lengths, [[*first, *second] for first, second in zip(named, long, strict=True)]),
    ]


def _differences(
    rows: Mapping[int, Sequence[Mapping[str, Any]]],
    mine: Mapping[int, Mapping[str, Rewards]],
    others: Mapping[str, Rewards],
    other: str,
    *,
    has_steps: bool,
) -> Table:
    compared = []
    for step, of_step in rows.items():
        for row in of_step:
            if (theirs := others.get(row["set"])) is None:
                continue
            difference = paired_difference(mine[step][row["set"]], theirs)
            compared.append(
                [
                    *([str(step)] if has_steps else []),
                    row["set"],
                    f"{row['reward_mean']:.3f}",
                    f"{sum(theirs.values()) / len(theirs):.3f}",
                    *(
                        ("other samples", "")
                        if difference is None
                        else (
                            f"{difference.value:+.3f}",
                            _errors(difference.se_given_prompts, difference.se_over_prompts),
                        )
                    ),
                ]
            )
    names = [*(["step"] if has_steps else []), f"against {other}"]
    return _table(names, ["reward", "its reward", "difference", "+-"], compared)


def _table(names: Sequence[str], numbers: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Only the last of the names, a set's, may take several lines."""
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold cyan")
    for name in names:
        table.add_column(name, overflow="fold", no_wrap=name != names[-1])
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _width(rows: Sequence[Sequence[str]]) -> int:
    """Columns that a table needs, so that no cell takes two lines."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return sum(widths) + _GAP * (len(widths) - 1)


def _errors(given: float | None, over: float | None) -> str:
    """Such as `0.011 (0.050)`; the first is unknown with one sample to a prompt."""
    first = "?" if given is None else f"{given:.3f}"
    return first if over is None else f"{first} ({over:.3f})"
