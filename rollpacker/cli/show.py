"""`rollpacker show`: prints what a run's policy wrote."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rollpacker.cli.command_help import CommandHelp
from rollpacker.core.errors import ConfigError, DataError
from rollpacker.report.words import plural

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pandas as pd
    from rich.text import Text

    from rollpacker.cli.arguments import Arguments
    from rollpacker.terminal import Terminal

SETTINGS = ("step", "prompt", "kind", "set", "sort", "num", "lines")
SORTS = ("", "reward", "-reward", "length", "-length", "step", "-step")
KINDS = ("", "training", "evaluation")

HELP = CommandHelp(
    purpose=(
        "Print prompts, responses and rewards of a run, finished or not: of its newest step and its newest evaluation, "
        "of one step, or of one prompt over all steps. A run keeps the texts of run.samples_per_step prompts of each "
        "step and of evaluation.num_texts prompts of each held-out set."
    ),
    usage="RUN [step=N] [prompt=ID] [kind=training|evaluation] [set=NAME] [sort=reward] [num=N] [lines=N]",
    arguments=(
        ("RUN", "The run.dir of a run."),
        ("step", "The step, counted from 1, and the evaluation after it; 0 is the evaluation before the first step."),
        ("prompt", "The id of a prompt: all that was kept of it, in the order of the steps."),
        ("kind", "Only what training generated, or only evaluations."),
        ("set", "Only evaluations of this held-out set."),
        ("sort", "By reward, length or step; with a minus the largest first."),
        ("num", "Prints so many responses at most. Default: 6"),
        ("lines", "Cuts the middle out of longer texts; 0 prints all of them. Default: 12"),
    ),
    examples=("rollpacker show runs/x", "rollpacker show runs/x sort=-length", "rollpacker show runs/x prompt=17"),
)


def run(arguments: Arguments) -> None:
    """Print some samples."""
    from rollpacker.cli.settings import choice, parse_runs, whole_number

    (run_dir,), given = parse_runs("show", arguments.words, SETTINGS, max_runs=1)
    settings = {**given, "num": given["num"] or "6", "lines": given["lines"] or "12"}
    kind, sort = choice(settings, "kind", KINDS), choice(settings, "sort", SORTS)
    num, num_lines = whole_number(settings, "num"), whole_number(settings, "lines", least=0)
    if settings["set"] and kind == "training":
        raise ConfigError(f"set={settings['set']} with kind=training.", "Sets are of evaluations.", "Leave out kind=.")
    given_values: dict[str, object] = {
        "kind": "evaluation" if settings["set"] else kind,
        "group": settings["set"],
        "prompt": settings["prompt"],
        "step": whole_number(settings, "step", least=0) if settings["step"] else "",
    }
    wanted = {column: value for column, value in given_values.items() if value != ""}

    from rollpacker.cli.screen import output
    from rollpacker.metrics.samples import parts_of
    from rollpacker.report.cuts import Cuts
    from rollpacker.report.held_out import first_of_each
    from rollpacker.timeline.run_tables import refuse_other_folders

    if not (run_dir / "evaluation" / "manifest.json").exists():  # a run may have evaluated, and trained nothing
        refuse_other_folders(run_dir)
    chosen = _chosen(run_dir, wanted)
    if sort:
        column = {"length": "length_tokens"}.get(sort.lstrip("-"), sort.lstrip("-"))
        chosen = chosen.sort_values(column, ascending=not sort.startswith("-"), kind="stable")
    shown = chosen.head(num) if sort or settings["prompt"] else first_of_each(chosen, num)
    console, record = output(), _record_of(run_dir)
    cuts, only_evaluates = Cuts(record), (record.get("run") or {}).get("num_steps") == 0
    for row in shown.to_dict("records"):
        held_out_set = row["group"] if row["kind"] == "evaluation" else None
        cut = cuts.of({**row, "num_turns": _num_turns(row)}, held_out_set)
        console.print(_heading(row, cut, only_evaluates=only_evaluates))
        for text, is_policys in parts_of(row):
            for line in _lines(console, text, num_lines):
                console.print(f"    {line}", style="" if is_policys else "dim", soft_wrap=True)
        console.print()
    if len(chosen) > num:
        console.print(f"{num} of {len(chosen)} responses; num={len(chosen)} prints all.", style="dim")


def _chosen(run_dir: Path, wanted: Mapping[str, object]) -> pd.DataFrame:
    """Read the samples with these values, and no other steps; raises `DataError` when there is none."""
    from rollpacker.cli.screen import show_notes
    from rollpacker.metrics.samples import PROBLEM, read_newest_samples, read_samples

    if "step" in wanted or "prompt" in wanted:
        step = wanted.get("step")
        samples = read_samples(run_dir, (step, step) if isinstance(step, int) else None)
    else:
        samples = read_newest_samples(run_dir)
    chosen, problem = _having(samples, wanted), samples.attrs.get(PROBLEM)
    if chosen.empty:
        raise _nothing(run_dir, read_samples(run_dir), wanted)
    if problem and wanted.get("kind") != "training":
        show_notes([problem])
    return chosen


def _having(samples: pd.DataFrame, wanted: Mapping[str, object]) -> pd.DataFrame:
    """Choose those with these values."""
    for column, value in wanted.items():
        samples = samples[samples[column] == value]
    return samples


_NAMES = {"group": "held-out set", "prompt": "prompt", "step": "step"}
"""What people call a column of the samples."""


def _nothing(run_dir: Path, samples: pd.DataFrame, wanted: Mapping[str, object]) -> DataError:
    """Name the values that there are of a column: of the first in which no sample has what was asked for."""
    from rollpacker.metrics.samples import PROBLEM

    kind = wanted.get("kind", "")
    if kind != "training" and (problem := samples.attrs.get(PROBLEM)):
        return DataError(
            f"{run_dir} has no such text of training. {problem}",
            "A run's tables are as it wrote them.",
            "Copy the file again from where the run wrote it, or ask for texts of training: kind=training",
        )
    known = _having(samples, {"kind": kind}) if kind else samples
    if known.empty:
        return DataError(
            f"{run_dir} has kept no text{f' of {kind}' if kind else ''}.",
            "A real run keeps those of run.samples_per_step prompts of each step, and of evaluation.num_texts prompts "
            "of each held-out set; a modelled one writes none.",
            "Set these above 0, and train some steps.",
        )
    asked = {column: f" of the {name} {wanted[column]!r}" for column, name in _NAMES.items() if column in wanted}
    column, there, when = "step", "", " in its newest step and evaluation"
    for each, words in asked.items():
        found = _having(known, {each: wanted[each]})
        if found.empty:
            column, when = each, ""
            break
        known, there = found, there + words
    values = list(dict.fromkeys(known[column]))
    return DataError(
        f"{run_dir} has kept no text{''.join(asked.values())}{when}.",
        f"Texts{there} are of the {_NAMES[column]}s {_some(values)}.",
        f"For example: {'set' if column == 'group' else column}={values[-1]}",
    )


def _some(values: list[object]) -> str:
    shown = [str(value) for value in values]
    return ", ".join(shown) if len(shown) <= 6 else f"{', '.join(shown[:3])} ... {', '.join(shown[-2:])}"  # noqa: PLR2004


def _record_of(run_dir: Path) -> Mapping[str, Any]:
    """The record of a run; empty where it cannot be read."""
    from rollpacker.config.record import read_record

    try:
        return read_record(run_dir) or {}
    except DataError:
        return {}


def _num_turns(row: Mapping[Any, Any]) -> int:
    """How many turns the policy wrote, as far as its environment answered them; 0 without one."""
    turns = row["response_turns"]
    return 0 if turns is None or isinstance(turns, float) else sum(map(bool, turns[::2]))


def _heading(row: Mapping[Any, Any], cut: str, *, only_evaluates: bool) -> Text:
    """Which response it is, its reward, its length and what cut it."""
    from rich.text import Text

    is_training, step = row["kind"] == "training", row["step"]
    at_first = "evaluation" if only_evaluates else "before training"
    when = f"step {step}" if is_training else f"after {plural(step, 'step')}" if step else at_first
    is_scored = not math.isnan(row["reward"])
    reward = f"reward {row['reward']:g}, {row['reward_reason']}" if is_scored else "no reward"
    fate = ", not trained" if is_training and not row["accepted"] else ""
    return Text.assemble(
        (f"{when}  ", "bold"),
        (f"{row['group']} {row['prompt']} #{row['sample']}  ", "cyan"),
        (reward, "green" if is_scored and row["reward"] > 0 else "red"),
        (f", {plural(row['length_tokens'], 'token')}{cut and f', {cut}'}{fate}", "dim"),
    )


def _lines(console: Terminal, text: str, num_lines: int) -> list[str]:
    """Wrap a text, and cut its middle out where it fills more lines than are to be printed."""
    from rich.text import Text

    lines = [line.plain.rstrip() for line in Text(text).wrap(console, max(20, console.width - 4))]
    if not num_lines or len(lines) <= num_lines:
        return lines
    num_last = num_lines // 3
    num_first = num_lines - num_last
    left_out = f"... {plural(len(lines) - num_lines, 'line')}; lines=0 prints all ..."
    return [*lines[:num_first], left_out, *lines[len(lines) - num_last :]]
