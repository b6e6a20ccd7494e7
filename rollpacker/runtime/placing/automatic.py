"""Chooses how a run uses the GPUs that there are: `placement=auto`.

Engines and trainer take turns on all of them, or in an asynchronous run divide them. In this order:

    kinds        engine=vllm where it is installed and serves the model, trainer=fsdp, bfloat16, and what bounds the
                 trainer's memory
    pools        with `system.max_staleness` GPUs of their own for engines and trainer (`pools`)
    engines      degree and number (`engine_choice`)
    trainer      layout and micro-batch (`trainer_choice`)
    placement    the GPUs that engines and ranks then have

Invariants: a key that somebody named keeps its value, and the choices follow from it. Without GPUs, with
`placement=none`, in a modelled run, and where `resources` give GPUs to engines or trainer, nothing is chosen. What is
chosen fits into the GPUs by the estimate, or the run is refused; so is one with a GPU that nobody uses.

Imports neither ray nor torch.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, Self

from pydantic import ValidationError

from rollpacker.config.compose import Complete
from rollpacker.config.gpu_map import GpuMap
from rollpacker.config.launching import LauncherSettings
from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.model import PolicySection
from rollpacker.config.words import counted
from rollpacker.core.errors import ConfigError, ModelError
from rollpacker.data.json_files import read_object
from rollpacker.data.shapes import num_experts_of, transformer_of
from rollpacker.runtime.placing.draft import Choice, Draft
from rollpacker.runtime.placing.engine_choice import choose_engines
from rollpacker.runtime.placing.gpus import Gpus, gpus_of_run
from rollpacker.runtime.placing.pools import choose_pools, complete_pools
from rollpacker.runtime.placing.trainer_choice import choose_trainer, choose_trainer_kind
from rollpacker.trainers.trainable import check_trainable

START_S = 1800.0
"""vLLM compiles a model and records its CUDA graphs; weights may be read from a shared file system."""

_WITHOUT_VLLM = "vLLM, the engine for GPUs, is not installed here: pip install 'rollpacker[vllm]'"

_OF_EXPERTS = "the model is a Mixture of Experts, which engine=vllm does not serve"

_RESOURCES = ("engine.resources.num_gpus", "trainer.resources.num_gpus")


class Chooser:
    """Completes configurations, and keeps the GPUs and the choices of the last one.

    Args:
        gpus: Of the run; None looks for them.
        is_job: Whether Slurm gets the run the GPUs that its section `cluster` asks for.
    """

    def __init__(self, gpus: Gpus | None = None, *, is_job: bool = False) -> None:
        self._given, self._is_job = gpus, is_job
        self.gpus = gpus or Gpus(per_node=0, num_bytes=None, has_vllm=False)
        self.chosen: list[Choice] = []

    @classmethod
    def of_point(cls, launcher: LauncherSettings | None) -> Self:
        """Of a point of a multirun, for the GPUs that its launcher gets it; None is another launcher than ours."""
        return cls(is_job=launcher is not None and launcher.is_for_slurm)

    def complete(self, tree: dict[str, Any], named: AbstractSet[str]) -> dict[str, object]:
        """Choose; `rollpacker.config.compose.Complete`. The result says that there is nothing left to choose."""
        self.gpus = self._given or gpus_of_run(tree, is_job=self._is_job)
        chosen = choices(tree, named, self.gpus)
        self.chosen = chosen or []
        if chosen is None:
            return {}
        return {choice.key: choice.value for choice in chosen} | {"placement.automatic": False}


def complete(tree: dict[str, Any], named: AbstractSet[str]) -> dict[str, object]:
    """Choose for the GPUs that are here; `rollpacker.config.compose.Complete`."""
    return Chooser().complete(tree, named)


def complete_point(launcher: LauncherSettings | None) -> Complete:
    """Choose for the GPUs that a launcher gets a point of a multirun; `rollpacker.config.multirun.CompletePoint`."""
    return Chooser.of_point(launcher).complete


def choices(tree: dict[str, Any], named: AbstractSet[str], gpus: Gpus) -> list[Choice] | None:
    """Choose every key that nobody named, in the order of this module's docstring; None where nothing is to choose.

    Args:
        tree: The composed configuration; not changed.
        named: Keys that keep their values.
        gpus: Of the run.

    Raises:
        ConfigError: The model does not fit into the GPUs, or one of them has nobody to use it.
        ModelError: The trainer does not train the model.
    """
    draft = Draft(tree, named)
    if draft.value("backend.name") == "sim" or draft.value("placement.automatic") is not True or not gpus.number:
        return None
    if not (draft.is_free(_RESOURCES[0]) and draft.is_free(_RESOURCES[1])):
        config = draft.config()
        if config is not None:
            _refuse_idle(config, gpus, _num_reserved(config))
        return []
    _choose_kinds(draft, gpus)
    config = draft.config()
    if config is None:
        return list(draft.chosen.values())  # the schema says why it is not legal
    try:
        model = transformer_of(config.model.model_copy(update={"shape": None}))
    except ModelError:
        model = None  # the check of the model's files says why, or that its memory is unknown
    else:
        check_trainable(config)
    if draft.chosen.keys() & {"placement.engine", "placement.trainer"} and config.system.is_async:
        choose_pools(draft, gpus, config, model)
    choose_engines(draft, gpus, model)
    if config.trains:
        choose_trainer(draft, gpus, model)
    config = draft.config() or config
    _narrow_maps(draft, config, gpus)
    config = draft.config() or config
    if draft.is_free("placement.engine"):
        _refuse_idle(config, gpus, len(set().union(*(gpus.places(each) for each in _maps(config)))))
    return list(draft.chosen.values())


def _choose_kinds(draft: Draft, gpus: Gpus) -> None:
    if draft.value("system.max_staleness"):
        complete_pools(draft, gpus)
    else:
        maps = {"placement.engine": "all", "placement.trainer": "all"}
        draft.choose(f"{gpus}: engines and trainer take turns on them", maps)
    has_experts = _has_experts(draft)
    if gpus.has_vllm and not has_experts:
        draft.choose("vLLM is installed", {"engine.name": "vllm"})
    elif draft.is_free("engine.name") and draft.value("engine.name") == "torch":  # the default, and yet a choice
        reason = _OF_EXPERTS if has_experts else _WITHOUT_VLLM
        draft.chosen["engine.name"] = Choice(key="engine.name", value="torch", reason=reason)
    choose_trainer_kind(draft)
    if draft.value("engine.name") == "vllm":
        draft.choose("vLLM compiles the model", {"backend.deadlines.start_s": START_S})


def _has_experts(draft: Draft) -> bool:
    """Whether the model is a Mixture of Experts; False where its directory does not tell."""
    try:
        model = PolicySection.model_validate(draft.value("model"))
        return model.path is not None and num_experts_of(read_object(model.directory / "config.json")) > 0
    except (ValidationError, ModelError):
        return False  # the schema, or the check of the model's files, says why


def _narrow_maps(draft: Draft, config: RunConfig, gpus: Gpus) -> None:
    """Let maps that nobody named hold as many GPUs as engines and ranks are."""
    numbers = {
        "placement.engine": config.engine.num_engines * config.engine.tensor_parallel,
        "placement.trainer": config.trainer.num_ranks,
    }
    for key, number in numbers.items():
        if draft.value(key) != "all" or number >= gpus.number:
            continue
        if number <= gpus.per_node:
            text = "0@0" if number == 1 else f"0-{number - 1}@0"
        elif number % gpus.num_nodes == 0:
            text = f"0-{number // gpus.num_nodes - 1}"
        else:
            continue  # placing the actors says what does not divide
        draft.choose(f"{counted(number, 'GPU')} are enough for what is named", {key: text})


def _maps(config: RunConfig) -> list[GpuMap]:
    placement = config.placement
    return [*(placement.maps or ()), *([placement.judge_map] if placement.judge is not None else [])]


def _num_reserved(config: RunConfig) -> float:
    judge = config.reward.judge
    return (
        config.engine.num_engines * config.engine.resources.num_gpus
        + config.trainer.num_ranks * config.trainer.resources.num_gpus
        + (judge.num_replicas * judge.resources.num_gpus if config.reward.has_judge else 0)
        + config.reward.resources.num_gpus
    )


def _refuse_idle(config: RunConfig, gpus: Gpus, num_used: float) -> None:
    if num_used >= gpus.number:
        return
    engine = config.engine
    raise ConfigError(
        f"{gpus.number - num_used:g} of {counted(gpus.number, 'GPU')} would be nobody's: "
        f"{counted(engine.num_engines, 'engine')} of engine.tensor_parallel={engine.tensor_parallel} and "
        f"{counted(config.trainer.num_ranks, 'rank')} of trainer={config.trainer.name} use {num_used:g}.",
        "With placement=auto every GPU that is seen works.",
        "Leave out engine.num_engines, engine.tensor_parallel, trainer.data_parallel and resources, or name all GPUs; "
        "or say so: placement=none, or CUDA_VISIBLE_DEVICES or backend.num_gpus for fewer GPUs.",
    )
