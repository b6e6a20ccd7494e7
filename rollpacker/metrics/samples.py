"""The responses of a run that were kept as text, of training and of evaluations, as one table for people.

`responses` and `evaluation_responses` hold each text once, beside its reward. Here they are together, and steps are
counted as people do: what was generated in the tenth step, and the evaluation after ten steps, both have the step 10.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow.compute as pc

from rollpacker.core.errors import DataError
from rollpacker.metrics.tables import EVALUATION_FOLDER, METRICS_FOLDER, load_manifest, read_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

COLUMNS = (
    *("step", "kind", "group", "prompt", "sample", "length_tokens", "reward", "reward_reason", "accepted"),
    *("finish_reason", "prompt_text", "response_text", "response_turns"),
)
"""`kind` is training or evaluation, `group` the domain or the held-out set; `accepted` is null in an evaluation."""


PROBLEM = "problem"
"""In `attrs` of the table: why evaluations are left out, in a sentence. Absent where none are."""


def read_samples(run_dir: Path, steps: tuple[int, int] | None = None) -> pd.DataFrame:
    """Read every response that has a text, by step; within one training first, then as they stand in their tables.

    Evaluations that cannot be read are left out beside those of training, and `attrs` says so.

    Args:
        run_dir: Of the run.
        steps: The first and the last, both included, as this table counts them; None is all.

    Raises:
        DataError: The run has no metrics, or these cannot be read.
    """
    return _together(run_dir, steps or (0, sys.maxsize))


def read_newest_samples(run_dir: Path) -> pd.DataFrame:
    """Read those of the newest step and of the newest evaluation; leaves out and raises as `read_samples` does."""
    return _together(run_dir, None)


def has_evaluations(run_dir: Path) -> bool:
    """True when an evaluation is in the tables; raises `DataError` when it cannot be told."""
    manifest = load_manifest(run_dir / EVALUATION_FOLDER)
    return manifest is not None and bool(manifest.parts)


def parts_of(sample: Mapping[Any, Any]) -> Iterator[tuple[str, bool]]:
    """Give the texts of a sample in order, each with whether the policy wrote it: the prompt, then the response.

    The response is one text, or the turns of the policy and its environment, without empty ones.
    """
    yield sample["prompt_text"], False
    turns = sample["response_turns"]
    if turns is None or isinstance(turns, float):  # null
        yield sample["response_text"], True
    else:
        yield from ((turn, not number % 2) for number, turn in enumerate(turns) if turn)


def _together(run_dir: Path, steps: tuple[int, int] | None) -> pd.DataFrame:
    """Both tables, of some steps or of the newest of each; a run that only evaluates or only trains has one."""
    trained = load_manifest(run_dir / METRICS_FOLDER)
    has_trained, problem, answers = trained is not None and bool(trained.parts), "", None
    try:
        answers = _answers(run_dir, steps)
    except DataError as error:
        if not has_trained:
            raise
        problem = f"Texts of evaluations are left out: {error.problem.rstrip('.')}."
    parts = [] if answers is None else [answers]
    if has_trained or not parts:
        newest = trained.last_step or 0 if trained else 0
        span = (steps[0] - 1, steps[1] - 1) if steps else (newest, newest)
        parts.insert(0, _with_texts(run_dir, "responses", span, "training", "domain"))
        parts[0]["step"] += 1
    samples = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    samples = samples.sort_values("step", kind="stable", ignore_index=True)
    if problem:
        samples.attrs[PROBLEM] = problem
    return samples


def _answers(run_dir: Path, steps: tuple[int, int] | None) -> pd.DataFrame | None:
    """Those of evaluations; None of a run without any."""
    manifest = load_manifest(run_dir / EVALUATION_FOLDER)
    if manifest is None or not manifest.parts:
        return None
    newest = manifest.last_step or 0
    return _with_texts(run_dir, "evaluation_responses", steps or (newest, newest), "evaluation", "set")


def _with_texts(run_dir: Path, table: str, steps: tuple[int, int], kind: str, group: str) -> pd.DataFrame:
    rows = read_table(run_dir, table, steps)
    frame: pd.DataFrame = rows.filter(pc.is_valid(rows["response_text"])).to_pandas()
    own: dict[str, Any] = {"kind": kind, "group": frame[group]}
    if "accepted" not in frame:
        own["accepted"] = None
    return frame.assign(**own)[list(COLUMNS)]
