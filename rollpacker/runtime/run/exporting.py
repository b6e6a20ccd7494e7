"""The model of a checkpoint as a Hugging Face folder, with a card that says what was trained, on what, and how well.

<run.dir>/model/        what a run leaves when it ends, in `model.export_dtype`; while it is continued, that of before
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rollpacker import __version__
from rollpacker.config.hub_names import SCHEME, HubName, parse_hub_name
from rollpacker.config.record import read_record
from rollpacker.config.words import counted
from rollpacker.core.errors import CheckpointError, DataError, RollpackerError
from rollpacker.data.model_export import ExportDtype, export_model
from rollpacker.metrics.tables import EVALUATION_FOLDER, load_manifest, read_table
from rollpacker.runtime.run.checkpoints import CheckpointStore
from rollpacker.runtime.run.policies import step_named
from rollpacker.timeline.run_tables import refuse_other_folders

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MODEL_FOLDER: Final = "model"
"""In `run.dir`."""

_COMMIT = re.compile("[0-9a-f]{40}")


def export_at(run_dir: Path, at: str, folder: Path, dtype: ExportDtype) -> int:
    """Write the model of the checkpoint that `best`, `last` or a number of steps names, and give its step.

    A run that goes on may remove it meanwhile: then the one that the word names now is written.

    Raises:
        As `checkpoint_of` and `export_checkpoint` do.
    """
    step = checkpoint_of(run_dir, at)
    while True:
        try:
            export_checkpoint(run_dir, step, folder, dtype)
        except CheckpointError:
            if CheckpointStore(run_dir, keep=1).folder(step).is_dir() or (named := checkpoint_of(run_dir, at)) == step:
                raise
            step = named
        else:
            return step


def export_checkpoint(run_dir: Path, step: int, folder: Path, dtype: ExportDtype) -> None:
    """Write the model after so many steps; what lies at its place is replaced.

    Raises:
        CheckpointError: The checkpoint is not whole, holds no model, or was removed before all was read.
        ModelError, StorageFailed: As `export_model` does.
    """
    store = CheckpointStore(run_dir, keep=1)
    try:
        _export_whole(store, run_dir, step, folder, dtype)
    except (RollpackerError, OSError) as error:
        if store.folder(step).is_dir():
            raise
        raise CheckpointError(
            f"The checkpoint of step {step} in {run_dir} was removed before all of it was read.",
            "A run keeps the last run.keep_checkpoints; the best one too, with run.keep_best=true.",
            "Export a newer one.",
        ) from error


def _export_whole(store: CheckpointStore, run_dir: Path, step: int, folder: Path, dtype: ExportDtype) -> None:
    try:
        store.load(step)
    except ValueError as error:
        raise CheckpointError(
            f"The checkpoint of step {step} in {run_dir} is broken: {error}.",
            "It was complete when it was written, so something else changed its files.",
            "Export another one, or restore it from a copy.",
        ) from error
    model = store.model_folder(step)
    _refuse_modelled(run_dir, model)
    export_model(model, folder, dtype=dtype, card=model_card(run_dir, step, dtype))


def checkpoint_of(run_dir: Path, at: str) -> int:
    """The step of the checkpoint that `best`, `last` or a number of steps names.

    Raises:
        DataError: It is no folder of a run.
        CheckpointError: The run has no checkpoint, or is modelled.
        ConfigError: It has none of this name.
    """
    store = CheckpointStore(run_dir, keep=1)
    steps = store.steps()
    if not steps:
        refuse_other_folders(run_dir)
        raise CheckpointError(
            f"{run_dir} has no checkpoint yet.",
            "A run writes one every run.checkpoint_every_steps steps, and when it ends.",
            "Wait for the first one.",
        )
    _refuse_modelled(run_dir, store.model_folder(steps[-1]))
    return step_named(run_dir, at, steps, ("last", "best"))


def _refuse_modelled(run_dir: Path, model: Path) -> None:
    if model.parent.is_dir() and not model.is_dir():
        raise CheckpointError(
            f"{run_dir} is a modelled run.", "Its trainer has no weights.", "Train with backend=ray to have a model."
        )


def model_card(run_dir: Path, step: int, dtype: str) -> str:
    """Describe the model of a checkpoint, as Markdown with the Hub's metadata; paths of this machine are left out."""
    record = read_record(run_dir) or {}
    base = _value(record, "model", "path")
    prompts = _prompt_files(_value(record, "data", "path"))
    on_hub = [f"base_model: {name.repository}"] if (name := _recorded_model(base)) else []
    rows, unread = _held_out(run_dir, step)
    facts = [
        ("base model", _shown(base, name)),
        ("steps", f"{step} of {_value(record, 'run', 'num_steps')}"),
        ("prompts", ", ".join(_shown(each, _recorded_data(each)) for each in prompts)),
        ("prompts x responses per step", " x ".join(str(_value(record, "rollout", f"num_{key}")) for key in _BATCH)),
        ("longest response", f"{_value(record, 'rollout', 'max_response_tokens')} tokens"),
        ("reward", ", ".join(_rewards(record.get("reward") or {}))),
        ("scheduling", _value(record, "system", "name")),
        ("learning rate", _value(record, "trainer", "learning_rate")),
        ("seed", _value(record, "run", "seed")),
        ("weights", dtype),
    ]
    lines = ["---", *on_hub, "library_name: transformers", "pipeline_tag: text-generation"]
    lines += ["tags: [reinforcement-learning, grpo, rollpacker]", "---", "", f"# {run_dir.resolve().name}", ""]
    lines += [
        f"A language model after {counted(step, 'step')} of reinforcement learning with RollPacker {__version__}."
    ]
    lines += ["", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts if value not in {None, ""})]
    lines += ["", *_scores(rows)] if rows else []
    lines += ["", unread] if unread else []
    lines += ["", "```python", "from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
    lines += ['model = AutoModelForCausalLM.from_pretrained(DIR, dtype="auto")']
    lines += ["tokenizer = AutoTokenizer.from_pretrained(DIR)", "```", ""]
    return "\n".join(lines)


_BATCH = ("prompts", "responses")


def _value(record: Mapping[str, Any], section: str, key: str) -> Any:
    return (record.get(section) or {}).get(key)


def _recorded_model(path: object) -> HubName | None:
    """A path as a model's name on the Hub: a run records it with its commit; any other path is one of this machine."""
    name = parse_hub_name(Path(str(path)), "model")
    return name if name is not None and _COMMIT.fullmatch(name.revision or "") else None


def _recorded_data(path: object) -> HubName | None:
    """The same of prompts, whose names on the Hub begin with the scheme."""
    name = parse_hub_name(Path(str(path)), "dataset") if str(path).startswith(SCHEME) else None
    return name if name is not None and _COMMIT.fullmatch(name.revision or "") else None


def _shown(path: object, name: HubName | None) -> str:
    """A name of the Hub as it is, and the last part of a path of this machine."""
    return "" if path is None else str(path) if name else Path(str(path)).name


def _prompt_files(path: Any) -> list[object]:
    """As `data.path` names them: one or several, each a path or a mapping with one."""
    files = path if isinstance(path, list) else [path]
    return [each.get("path") if isinstance(each, dict) else each for each in files]


def _rewards(reward: Mapping[str, Any]) -> Iterator[str]:
    if parts := reward.get("parts"):
        yield from parts
    elif function := reward.get("function"):
        yield Path(function).name
    else:
        yield "a server" if reward.get("url") else str(reward.get("name"))
    yield from (f"{name} for {domain}" for domain, name in (reward.get("domains") or {}).items())


def _held_out(run_dir: Path, step: int) -> tuple[list[dict[str, Any]], str]:
    """The newest score of each held-out set up to a step, if any; and why they are not known, in a sentence."""
    try:
        manifest = load_manifest(run_dir / EVALUATION_FOLDER)
        rows = read_table(run_dir, "evaluations").to_pylist() if manifest is not None and manifest.parts else []
    except DataError as error:
        return [], f"Its held-out scores are left out: {error.problem.replace(f'{run_dir}/', '')}."
    newest = {row["set"]: row for row in rows if row["step"] <= step and row["reward_mean"] is not None}
    return list(newest.values()), ""


def _scores(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| held-out set | prompts x samples | after | mean reward | change since the first evaluation |"
    yield "|---|---|---|---|---|"
    for row in rows:
        kind = "over_prompts" if row["se_given_prompts"] is None else "given_prompts"
        change = _with_error(row["diff_to_first"], row[f"se_diff_{kind}"], "+.3f")
        mean = _with_error(row["reward_mean"], row[f"se_{kind}"], ".3f")
        size = f"{row['num_prompts']} x {row['num_samples']}"
        yield f"| {row['set']} | {size} | {counted(row['step'], 'step')} | {mean} | {change} |"
    yield ""
    yield "With standard errors over other samples of the same prompts; of one sample each, over other prompts."


def _with_error(value: float | None, error: float | None, form: str) -> str:
    return "" if value is None else format(value, form) + ("" if error is None else f" ± {error:.3f}")
