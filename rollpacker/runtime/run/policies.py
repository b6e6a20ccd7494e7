"""The policies of a run that are on the disk: the one that it began with, and those of its checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollpacker.core.errors import ConfigError
from rollpacker.runtime.run.checkpoints import CheckpointStore

AT = ("last", "best", "start", "all")
"""Names of policies; a step is one, too."""


def policy_name(model_path: Path | None) -> str:
    """A policy in words: the run and the step of a checkpoint, else its directory."""
    match model_path and model_path.parts:
        case [*run, "checkpoints", name, "trainer", "model"] if (step := name.removeprefix("step-")).isdecimal():
            return f"{Path(*run)} after step {int(step)}"
    return str(model_path)


def policies_at(run_dir: Path, at: str) -> dict[int, Path | None]:
    """Find policies by a name of `AT` or by the number of finished steps, ascending.

    Returns:
        By finished steps, the directory in Hugging Face format; None is that which the run began with.

    Raises:
        ConfigError: There is none of this name.
    """
    store = CheckpointStore(run_dir, keep=1)
    models = {step: store.model_folder(step) for step in store.steps()}
    kept = {step: model for step, model in models.items() if (model / "config.json").is_file()}
    if at == "start":
        return {0: None}
    if at == "all":
        return {0: None, **kept}
    step = step_named(run_dir, at, [*kept], AT)
    return {step: kept[step]}


def step_named(run_dir: Path, at: str, steps: Sequence[int], names: Sequence[str]) -> int:
    """Choose one of a run's steps, which ascend, by `last`, `best` or its number; a message gives all `names`.

    Raises:
        ConfigError: There is none of this name.
    """
    best = CheckpointStore(run_dir, keep=1).best_step()
    if at == "last" and steps:
        return steps[-1]
    if at == "best" and best is not None and best in steps:
        return best
    if at in map(str, steps):
        return int(at)
    remedy = f"Write at={steps[-1] if steps else 'start'}."
    if at == "best" and best is None:
        raise ConfigError(
            f"No checkpoint of {run_dir} is marked as the best.",
            "A run with run.keep_best=true and evaluation.path keeps it, once a score is better than the first.",
            remedy,
        )
    raise ConfigError(
        f"at={at}: {run_dir} has no such checkpoint.",
        f"`at` is {', '.join(names)}, or a step whose checkpoint was kept: {', '.join(map(str, steps)) or 'none'}. "
        "A run writes one every run.checkpoint_every_steps steps and when it ends. It keeps the last "
        "run.keep_checkpoints; the best one too, with run.keep_best=true.",
        remedy,
    )
