"""The settings and trials of a plan: which systems, degrees and GPUs are compared, and the configuration of each run.

Invariant: a trial is a function of its configuration; two processes that try it get the same outcome.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from rollpacker.config.mistakes import raise_mistakes
from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.base import exact
from rollpacker.config.words import counted
from rollpacker.core.errors import ConfigError
from rollpacker.data.degrees import trainer_degree_mistakes
from rollpacker.data.shapes import transformer_of
from rollpacker.sim.judge import plan_judge
from rollpacker.sim.plan import plan_cluster
from rollpacker.sim.workload import Workload

ETAS = (1.0, 1.125, 1.25, 1.5)
"""Speculation factors that are tried, of prompts and, where a system races them, of responses: none, and the paper's
three."""

FIRST_ETA = 1.25
"""The paper's choice; the search begins with it."""

RHOS = (0.0, 0.3, 0.6)
"""Correlations of the lengths within a prompt over which the answer is varied: a guess, so its range is shown."""

PLAIN_STEPS = 4
"""Of one trial of a system without long rounds: every step is alike."""

EPOCH_STEPS = 4
"""Plain steps in an epoch where a system knows prompts by their last epoch: few, so that a trial gets beyond the
first, which does not count."""

TRAINED_BYTES_PER_PARAMETER = 6
"""bf16 weight and fp32 gradient; the optimizer's states are taken to be sharded over all GPUs."""

TRAINED_MEMORY_SHARE = 0.5
"""Of a GPU that weights and gradients may fill; activations and optimizer take the rest. A common figure."""

NEVER_S = 1e6
"""A deadline that no modelled trial meets: a slow cluster is an answer, not a failure."""


class Setting(NamedTuple):
    """What is compared."""

    system: str
    eta: float | None
    """None for a system without speculation."""
    tensor_parallel: int
    """GPUs of an engine."""
    num_gpus: int
    """Of engines and trainer."""
    rho: float


class Trial(NamedTuple):
    """One modelled run of a setting."""

    setting: Setting
    seed: int
    num_steps: int


def changed(config: RunConfig, changes: Mapping[str, object]) -> RunConfig:
    """A configuration with other values of some dotted keys, validated again.

    Raises:
        pydantic.ValidationError: The values do not go together.
    """
    tree = config.model_dump()
    for key, value in changes.items():
        *sections, leaf = key.split(".")
        node: dict[str, Any] = tree
        for section in sections:
            node = node[section]
        node[leaf] = value
    return RunConfig.model_validate(tree)


def config_of(base: RunConfig, setting: Setting) -> RunConfig:
    """The run of a setting; `base` is of its system."""
    assert base.system.name == setting.system
    changes: dict[str, object] = {
        "engine.num_engines": setting.num_gpus // setting.tensor_parallel,
        "engine.tensor_parallel": setting.tensor_parallel,
        "workload.rho": setting.rho,
        "run.progress": "none",
        "run.resume": "never",
        "run.checkpoint_every_steps": 0,
        "run.num_epochs": None,
        "tracker.tensorboard": False,
        "tracker.wandb": False,
    }
    for deadline in ("start_s", "rollout_stall_s", "engine_call_s", "train_s", "weight_sync_s", "checkpoint_s"):
        changes[f"backend.deadlines.{deadline}"] = NEVER_S
    if setting.eta is not None:
        races_responses = base.system.eta_responses > 1
        changes |= {"system.eta_prompts": setting.eta, "system.eta_responses": setting.eta if races_responses else 1.0}
    return changed(base, changes)


def run_of(base: RunConfig, trial: Trial, run_dir: Path) -> RunConfig:
    """The run of a trial, in a folder."""
    own = {"run.seed": trial.seed, "run.num_steps": trial.num_steps, "run.dir": run_dir}
    return changed(config_of(base, trial.setting), own)


def has_eta(config: RunConfig) -> bool:
    """True when a system races."""
    return config.system.batching == "tail"


def with_short_epochs(base: RunConfig, num_domains: int) -> RunConfig:
    """A workload of so few prompts that an epoch is `EPOCH_STEPS`; one whose prompts have names stays as it is."""
    assert base.workload is not None
    num_prompts = EPOCH_STEPS * math.ceil(base.rollout.num_prompts / num_domains)
    return changed(base, {"workload.num_prompts": min(base.workload.num_prompts, num_prompts)})


def steps_of(config: RunConfig, eta: float | None) -> int:
    """Steps of one trial: enough short rounds to fill the queue of deferred prompts, its long round, and one more.

    With a length history these come after the first epoch.
    """
    share, num_first = exact(config.system.history_share), EPOCH_STEPS
    if not config.system.length_history:
        share, num_first = Fraction(0), 0
    num_drawn = config.rollout.num_prompts * exact(eta or 1.0) / (1 - share)
    num_deferred = num_drawn - config.rollout.num_prompts
    if not num_deferred:
        return PLAIN_STEPS
    return num_first + max(PLAIN_STEPS, math.ceil(config.rollout.num_prompts / num_deferred) + 2)


def trainer_degree(config: RunConfig, num_gpus: int) -> int:
    """The default tensor parallelism of the trainer: doubled until weights and gradients fit, as far as is legal.

    Raises:
        ConfigError: The GPUs do not divide by it.
    """
    assert config.hardware is not None
    model = transformer_of(config.model)
    num_bytes = model.num_parameters * TRAINED_BYTES_PER_PARAMETER
    room = TRAINED_MEMORY_SHARE * config.hardware.memory_gb * 1e9
    degree, per_node = 1, config.hardware.gpus_per_node
    while num_bytes / degree > room and per_node % (2 * degree) == 0:
        doubled = config.trainer.model_copy(update={"tensor_parallel": 2 * degree})
        if list(trainer_degree_mistakes(doubled, model.shape)):
            break
        degree *= 2
    if num_gpus % degree:
        possible = math.gcd(num_gpus, degree)
        raise ConfigError(
            f"gpus={num_gpus}: with trainer.tensor_parallel={possible}, weights and gradients take "
            f"{num_bytes / possible / 1e9:.0f} of the {config.hardware.memory_gb:g} GB of each GPU.",
            f"They may take {TRAINED_MEMORY_SHARE:.0%}; activations and the optimizer take the rest.",
            f"Write gpus={math.ceil(num_gpus / degree) * degree}, or set trainer.tensor_parallel.",
        )
    return degree


def degrees_that_fit(base: RunConfig, num_gpus: int, degrees: Sequence[int]) -> tuple[tuple[int, ...], dict[int, str]]:
    """Find the degrees of tensor parallelism whose engines hold the model and one sequence of full length.

    Returns:
        The degrees that fit, and of each other one why it does not.

    Raises:
        UserError: A file that the configuration names cannot be read: no degree would change that.
    """
    problems: dict[int, str] = {}
    needs_judge = Workload(base).needs_judge
    for degree in degrees:
        if num_gpus % degree:
            problems[degree] = f"{counted(num_gpus, 'GPU')} cannot be divided by {degree}."
            continue
        try:
            plan_cluster(_of_degree(base, degree, num_gpus), needs_judge=needs_judge)
        except ConfigError as error:
            problems[degree] = error.problem
        except ValueError as error:
            problems[degree] = str(error)
    return tuple(degree for degree in degrees if degree not in problems), problems


def _of_degree(base: RunConfig, degree: int, num_gpus: int) -> RunConfig:
    """The run whose engines have so many GPUs each."""
    assert base.workload is not None
    return config_of(base, Setting(base.system.name, None, degree, num_gpus, base.workload.rho))


def possible_degrees(base: RunConfig, num_gpus: int) -> tuple[int, ...]:
    """Powers of two within a node."""
    assert base.hardware is not None
    largest = min(num_gpus, base.hardware.gpus_per_node)
    return tuple(1 << power for power in range(largest.bit_length()))


def check_gpus(base: RunConfig, num_gpus: int) -> None:
    """Raise where the trainer cannot divide the model so, or its replicas do not fill the GPUs."""
    trainer = base.trainer
    raise_mistakes(list(trainer_degree_mistakes(trainer, transformer_of(base.model).shape)))
    num_sharing = trainer.tensor_parallel * trainer.pipeline_parallel * trainer.context_parallel
    if num_gpus % num_sharing:
        raise ConfigError(
            f"gpus={num_gpus} with a trainer of {num_sharing} GPUs per replica.",
            f"The trainer takes turns with the engines on the same GPUs, a multiple of {num_sharing}.",
            f"Write gpus={math.ceil(num_gpus / num_sharing) * num_sharing}, or set trainer.tensor_parallel.",
        )


def check_judge(base: RunConfig, num_gpus: int) -> None:
    """Raise where an LLM judge reads some responses and does not fit, whatever the engines' degree is."""
    if Workload(base).needs_judge:
        plan_judge(_of_degree(base, 1, num_gpus))
