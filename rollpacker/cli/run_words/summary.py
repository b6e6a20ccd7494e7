"""A run in words, for `rollpacker check`: a label and a text for each of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.cli.run_words.actors import actor_words, job_words
from rollpacker.cli.run_words.environment import environment_words
from rollpacker.cli.run_words.evaluation import evaluation_words
from rollpacker.cli.run_words.inputs import length_words, model_words, prompt_words
from rollpacker.cli.run_words.loss import loss_words
from rollpacker.cli.run_words.rollout import batch_words, rollout_words, step_words
from rollpacker.cli.run_words.split import split_words
from rollpacker.cli.run_words.techniques import program_words, technique_words
from rollpacker.cli.run_words.workers import worker_words
from rollpacker.runtime.placing.model_fit import gigabytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.config.schema import RunConfig
    from rollpacker.runtime.run.preflight import ResolvedRun


_EVENT_BYTES = 1e3
"""Of the event log, per turn of each response of a batch, among them those that are aborted; measured in modelled runs:
500 (system=verl) to 930 (rollpacker) without an environment, 580 to 880 with ten turns, 1,070 to 1,720 with one."""

_OF_TRAINING = ("prompts", "batch", "rollout", "techniques", "workers", "split", "loss", "steps", "start")
"""Parts that a run of no steps, an evaluation alone, does not have."""


def summary_of(
    config: RunConfig, resolved: ResolvedRun, further_notes: Sequence[str], *, is_job: bool = False
) -> dict[str, str]:
    """Describe a run.

    Args:
        config: Of the run.
        resolved: The same, validated.
        further_notes: To stand below those of the validation.
        is_job: Whether Slurm gets it its nodes.

    Returns:
        Text by label, in the order in which they are printed; only the parts that this run has.
    """
    notes = [*resolved.notes, *further_notes]
    described = {
        "model": model_words(config, resolved.model),
        "prompts": prompt_words(config, resolved),
        "lengths": length_words(config, resolved.model),
        **({"programs": program_words(config)} if "sandbox" in config.reward.names else {}),
        "batch": batch_words(config, resolved.settings),
        "rollout": rollout_words(config, resolved.settings),
        "techniques": technique_words(config, resolved.cluster),
        **({"turns": environment_words(config)} if config.environment or config.modelled_environment else {}),
        **({"workers": worker_words(config, is_job=is_job)} if config.elastic.is_on else {}),
        **({"split": split_words(config, resolved.cluster)} if config.system.is_async else {}),
        **({"loss": loss_words(config)} if config.backend.name == "ray" else {}),
        "steps": step_words(config, resolved),
        **({"evaluation": evaluation_words(config, resolved)} if resolved.num_held_out else {}),
        "actors": actor_words(config, resolved.cluster, is_job=is_job),
        **({"job": job_words(config)} if is_job else {}),
        "writes": _writes(config),
        **({"notes": "\n".join(notes)} if notes else {}),
        "start": f"after step {resolved.finished_steps}" if resolved.finished_steps else "from the beginning",
    }
    return {label: text for label, text in described.items() if config.trains or label not in _OF_TRAINING}


def _writes(config: RunConfig) -> str:
    tracker = config.tracker
    wandb = "wandb" if tracker.wandb_mode == "online" else "wandb (offline: `wandb sync` uploads it)"
    named = {"tensorboard": tracker.tensorboard, wandb: tracker.wandb, "tracker.jsonl": tracker.jsonl}
    trackers = [*(name for name, is_on in named.items() if is_on), *([tracker.plugin] if tracker.plugin else [])]
    text = f"{config.run.dir}/ (metrics, events, checkpoints, logs)"
    if trackers:
        text += f"; also to {' and '.join(trackers)}"
    return f"{text}\n{_event_log(config)}" if config.trains else text


def _event_log(config: RunConfig) -> str:
    """Estimate the size of the event log."""
    rollout = config.rollout
    whole = gigabytes(config.run.num_steps * rollout.num_prompts * rollout.num_responses * _EVENT_BYTES)
    if config.environment or config.modelled_environment:
        return f"events: about {_EVENT_BYTES / 1e3:g} kB per turn of each response of a batch, {whole} at one turn each"
    return f"events: about {_EVENT_BYTES / 1e3:g} kB per response of a batch, {whole} in all"
