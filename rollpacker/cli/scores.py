"""The table of held-out scores that `rollpacker evaluate` prints; it fits 80 columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rollpacker.evaluation.comparison import Rewards, differences_by_prompt, paired_difference, rewards_by_set
from rollpacker.metrics.evaluation_files import read_newest_responses
from rollpacker.metrics.tables import read_table
from rollpacker.protocols.rollout import FinishReason
from rollpacker.report.cuts import FAILED_END, held_out_ends
from rollpacker.report.words import plural

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.console import RenderableType


_WIDTH = 80
"""Columns; wider tables are printed as two."""

_GAP = 2
"""Columns between two of a table."""

_LEGEND = "+-: standard error with other samples of these prompts (with other prompts of their kind)"
_OF_ONE_SAMPLE = "; ?: unknown, from one sample of each prompt"
_OF_FAILED = "; failed: their environment failed, so they are not among the truncated"

_NUM_DROPS = 3
"""Prompts that are named of each set: the first to look at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTable:
    """Scores, as numbers and as they are shown."""

    scores: Mapping[tuple[int, str], float]
    """Mean rewards, by step and set."""
    shown: Sequence[RenderableType]


def score_table(
    run_dirs: Mapping[int, Path], others: Mapping[str, Rewards] | None, *, other: str, has_steps: bool = False
) -> ScoreTable:
    """Make the table of evaluations.

    Args:
        run_dirs: Runs of no steps, by the step of the policy that they evaluated.
        others: Rewards to compare with, by set; None without any.
        other: Where these come from.
        has_steps: Whether the step of each policy is shown.
    """
    rows = {step: read_table(run_dir, "evaluations").to_pylist() for step, run_dir in run_dirs.items()}
    of_pass = {
        (step, row["set"], row["k"]): row["value"]
        for step, run_dir in run_dirs.items()
        for row in read_table(run_dir, "pass_at_k").to_pylist()
    }
    ends = {step: held_out_ends(run_dir) for step, run_dir in run_dirs.items()}
    has_failed = any(end == FAILED_END for of_run in ends.values() for _, _, end in of_run)
    shown = _scores(rows, of_pass, ends, has_steps=has_steps, has_failed=has_failed)
    if others is not None:
        mine = {step: rewards_by_set(read_newest_responses(run_dir)) for step, run_dir in run_dirs.items()}
        shown += ["", *_differences(rows, mine, others, other, has_steps=has_steps)]
    is_unknown = any(row["se_given_prompts"] is None for of_step in rows.values() for row in of_step)
    legend = _LEGEND + _OF_ONE_SAMPLE * is_unknown + _OF_FAILED * has_failed
    return ScoreTable(
        scores={(step, row["set"]): row["reward_mean"] for step, of_step in rows.items() for row in of_step},
        shown=[*shown, Text(legend, style="dim")],
    )


def _scores(
    rows: Mapping[int, Sequence[Mapping[str, Any]]],
    of_pass: Mapping[tuple[int, str, int], float],
    ends: Mapping[int, Counter[tuple[int, str, str]]],
    *,
    has_steps: bool,
    has_failed: bool,
) -> list[RenderableType]:
    """One table, or a second one with the lengths where the names leave no room for them."""
    k = max((k for _, _, k in of_pass), default=1)
    names = [*(["step"] if has_steps else []), "set"]
    scores = ["n x k", "reward", "+-", f"pass@{k}"]
    kinds = {"truncated": FinishReason.LENGTH.value} | ({"failed": FAILED_END} if has_failed else {})
    lengths = [*kinds, "length p50/p90"]
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
            num_responses = row["num_prompts"] * row["num_samples"]
            numbers = [ends[step][row["step"], row["set"], end] for end in kinds.values()]
            shares = [f"{number / num_responses:.1%}" for number in numbers]
            long.append([*shares, f"{row['length_p50_tokens']}/{row['length_p90_tokens']}"])
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
) -> list[RenderableType]:
    """A table, and in words the prompts of each set whose samples are the same."""
    compared: list[list[str]] = []
    of_prompts: list[RenderableType] = []
    has_drops = False
    for step, of_step in rows.items():
        for row in of_step:
            if (theirs := others.get(row["set"])) is None:
                continue
            difference = paired_difference(mine[step][row["set"]], theirs)
            found = ["other samples", ""]
            if difference is not None:
                found = [f"{difference.value:+.3f}", _errors(difference.se_given_prompts, difference.se_over_prompts)]
                name = f"step {step}, {row['set']}" if has_steps else row["set"]
                changes = differences_by_prompt(mine[step][row["set"]], theirs)
                of_prompts += _prompts(name, changes, other)
                has_drops |= min(changes.values()) < 0
            compared.append(
                [
                    *([str(step)] if has_steps else []),
                    row["set"],
                    f"{row['reward_mean']:.3f}",
                    f"{sum(theirs.values()) / len(theirs):.3f}",
                    *found,
                ]
            )
    names = [*(["step"] if has_steps else []), f"against {other}"]
    table = _table(names, ["reward", "its reward", "difference", "+-"], compared)
    folder = f"DIR/step-{max(rows):06d}" if has_steps else "DIR"
    hint = (
        f"With run.dir=DIR evaluation.num_texts=N, `rollpacker show {folder} kind=evaluation prompt=ID` prints the "
        "first answer to each of the first N prompts of a set."
    )
    return [table, *([""] if of_prompts else []), *of_prompts, *([Text(hint, style="dim")] if has_drops else [])]


def _prompts(name: str, changes: Mapping[str, float], other: str) -> Iterator[RenderableType]:
    """How many prompts of a set are better, and those that lost most."""
    drops = sorted((change, prompt) for prompt, change in changes.items() if change < 0)
    num_better = sum(change > 0 for change in changes.values())
    num_same = len(changes) - num_better - len(drops)
    yield f"{name}: {plural(num_better, 'prompt')} better than {other}, {len(drops):,} worse, {num_same:,} the same"
    if drops:
        named = ", ".join(f"{prompt} {change:+.3f}" for change, prompt in drops[:_NUM_DROPS])
        yield Padding(Text(f"lost most: {named}"), (0, 0, 0, 2))


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
