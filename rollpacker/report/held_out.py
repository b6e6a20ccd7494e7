"""What the page shows of held-out scores and of texts.

A score is drawn with its 95 % band over prompts. The training reward of the same run stands beside it, in grey: a race
trains short responses and a long round hard prompts, so that two systems cannot be compared by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from rollpacker.core.errors import DataError
from rollpacker.metrics.samples import PROBLEM, has_evaluations, parts_of, read_newest_samples
from rollpacker.metrics.tables import read_frame
from rollpacker.protocols.rollout import FinishReason
from rollpacker.report.cuts import FAILED_END, held_out_ends
from rollpacker.report.figures import Line, Panel, color, curves
from rollpacker.report.style import CYCLE_STEPS
from rollpacker.report.words import count, share

if TYPE_CHECKING:
    from pathlib import Path

    from rollpacker.report.page import ShownRun

NUM_TEXTS = 12
"""Responses on the page, the newest; `rollpacker show` prints the others."""

_LONGEST_TEXT = 4_000
"""Characters of one text on the page."""

_NORMAL_95 = 1.96
"""Standard errors on each side."""


class HeldOut(NamedTuple):
    """The evaluations of a run, and its newest texts; frames without rows where it has none."""

    scores: pd.DataFrame
    of_pass: pd.DataFrame
    ends: Counter[tuple[int, str, str]]
    """As `held_out_ends` counts them."""
    texts: pd.DataFrame
    alone_s: pd.Series[float]
    """Seconds of each evaluation in a round of its own, which is part of no step, by the number of finished steps."""
    problem: str = ""
    """Why they are not known, in a sentence; empty where they are, or there are none."""


def read_held_out(run_dir: Path) -> HeldOut:
    """Read what there is; evaluations that cannot be read leave all empty but texts of training."""
    nothing = pd.DataFrame()
    found = HeldOut(nothing, nothing, Counter(), nothing, pd.Series(dtype=float))
    try:
        found = _scores_of(run_dir)
    except DataError as error:
        found = found._replace(problem=f"Held-out scores and texts are not shown: {error.problem}.")
    try:
        samples = read_newest_samples(run_dir)
    except DataError as error:
        return found._replace(problem=found.problem or f"Texts are not shown: {error.problem}.")
    return found._replace(
        texts=first_of_each(samples, NUM_TEXTS), problem=found.problem or samples.attrs.get(PROBLEM, "")
    )


def _scores_of(run_dir: Path) -> HeldOut:
    """All but the texts."""
    scores = of_pass = pd.DataFrame()
    ends: Counter[tuple[int, str, str]] = Counter()
    if has_evaluations(run_dir):
        scores, of_pass = read_frame(run_dir, "evaluations"), read_frame(run_dir, "pass_at_k")
        ends = held_out_ends(run_dir)
    alone_s = pd.Series(dtype=float)
    if len(scores):
        alone_s = scores.loc[scores["mode"] == "alone"].groupby("step")["time_s"].first()
    scores = scores.dropna(subset=["reward_mean"]) if len(scores) else scores  # a set that was cut has none
    return HeldOut(scores, of_pass, ends, pd.DataFrame(), alone_s)


def first_of_each(samples: pd.DataFrame, num: int) -> pd.DataFrame:
    """Choose so many samples, in their order: the first of training and of evaluations, and of each domain and set.

    As many of each kind, and within it of each domain or set; more of one where there are less of the others.
    """
    in_turn = samples.iloc[samples.groupby(["kind", "group"]).cumcount().argsort(kind="stable")]
    chosen = in_turn[in_turn.groupby("kind").cumcount().rank(method="first") <= num]
    return chosen.sort_index()


def section(runs: Sequence[ShownRun]) -> dict[str, Any]:
    """The figures, tables and texts of the section."""
    evaluated = [run for run in runs if len(run.story.held_out.scores)]
    sets = list(dict.fromkeys(name for run in evaluated for name in run.story.held_out.scores["set"]))
    panels = [Panel(f"held-out score, {name}", list(_lines(evaluated, name)), is_smoothed=False) for name in sets]
    return {
        "held_out": curves(panels, "held-out scores") if panels else "",
        "held_out_rows": [row for run in evaluated for row in _rows(run)],
        "texts": [
            (run, list(_texts(run))) for run in runs if len(run.story.held_out.texts) or not run.story.held_out.problem
        ],
    }


def _lines(runs: Sequence[ShownRun], name: str) -> Iterator[Line]:
    """Of each run that has the set: its training reward, then its score."""
    for run in runs:
        scores = run.story.held_out.scores
        of_set = scores[scores["set"] == name]
        if not len(of_set):
            continue
        rewards = run.story.steps["reward_mean"].rolling(CYCLE_STEPS, min_periods=1).mean()
        steps = run.story.steps["step"].to_numpy(dtype=float) + 1
        yield Line(f"{run.name}, training reward", color("rule"), steps, rewards.to_numpy(dtype=float))
        x, y, error = (of_set[column].to_numpy(dtype=float) for column in ("step", "reward_mean", "se_over_prompts"))
        yield Line(run.name, run.color, x, y, _NORMAL_95 * np.nan_to_num(error))


def _rows(run: ShownRun) -> Iterator[tuple[Any, ...]]:
    """The first and the last score of each set."""
    scores, of_pass = run.story.held_out.scores, run.story.held_out.of_pass
    for name, of_set in scores.groupby("set", sort=False):
        for step in dict.fromkeys((of_set["step"].iloc[0], of_set["step"].iloc[-1])):
            row = of_set[of_set["step"] == step].iloc[0]
            passes = of_pass[(of_pass["set"] == name) & (of_pass["step"] == step)]
            named = ", ".join(
                f"{100 * value:.1f} % of {k}" for k, value in zip(passes["k"], passes["value"], strict=True)
            )
            yield (
                run,
                name,
                int(step),
                [
                    f"{row['num_prompts']} x {row['num_samples']}",
                    f"{row['reward_mean']:.3f}",
                    _error(row["se_given_prompts"]),
                    _error(row["se_over_prompts"]),
                    named,
                    _cut_share(run.story.held_out.ends, row),
                    f"{count(row['length_p50_tokens'])} / {count(row['length_p90_tokens'])}",
                ],
            )


def _cut_share(ends: Counter[tuple[int, str, str]], row: pd.Series[Any]) -> str:
    """Such as `12 %, 3.0 % failed`: those whose environments failed are not among the cut ones."""
    of_set = row["step"], row["set"]
    num_responses = row["num_prompts"] * row["num_samples"]
    cut, failed = (ends[*of_set, end] / num_responses for end in (FinishReason.LENGTH.value, FAILED_END))
    return share(cut) + (f", {share(failed)} failed" if failed else "")


def _error(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.3f}"


def _texts(run: ShownRun) -> Iterator[dict[str, Any]]:
    """A dictionary per response, for the template."""
    for row in run.story.held_out.texts.to_dict("records"):
        when = f"step {row['step']}" if row["kind"] == "training" else f"evaluation after step {row['step']}"
        reward = "no reward" if np.isnan(row["reward"]) else f"reward {row['reward']:g}, {row['reward_reason']}"
        yield {
            "title": f"{when}, {row['group']}, {row['prompt']} #{row['sample']}: {reward}",
            "parts": [(_cut(text), is_policys) for text, is_policys in parts_of(row)],
        }


def _cut(text: str) -> str:
    if len(text) <= _LONGEST_TEXT:
        return text
    half = _LONGEST_TEXT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half:,} characters ...\n{text[-half:]}"
