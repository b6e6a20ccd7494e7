"""Chooses how a run uses the GPUs that there are: `placement=auto`.

Engines and trainer take turns on all of them, or in an asynchronous run divide them. In this order:

    pools        with `system.max_staleness` GPUs of their own for engines and trainer: half and half, or as many more
                 for the trainer as it needs to fit
    kinds        engine=vllm where it is installed, trainer=fsdp, bfloat16, and what bounds the trainer's memory
    engines      the lowest tensor-parallel degree at which weights take at most half of an engine's memory
    trainer      the first layout and the largest micro-batch that fit, by the estimate of `model_fit`; with
                 `system.stream` first the layout whose halves can be lent
    placement    the GPUs that engines and ranks then have

Invariants: a key that somebody named keeps its value, and the choices follow from it. Without GPUs, with
`placement=none`, in a modelled run, and where `resources` give GPUs to engines or trainer, nothing is chosen. What is
chosen fits into the GPUs by the estimate, or the run is refused; so is one with a GPU that nobody uses.

Imports neither ray nor torch.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from rollpacker.config.compose import Complete
from rollpacker.config.gpu_map import GpuMap
from rollpacker.config.launching import LauncherSettings
from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import ConfigError, ModelError
from rollpacker.data.shapes import Transformer, transformer_of
from rollpacker.runtime.placing.actors import counted
from rollpacker.runtime.placing.draft import Choice, Draft
from rollpacker.runtime.placing.gpus import Gpus, gpus_of_run
from rollpacker.runtime.placing.model_fit import (
    check_engine,
    engine_degree_mistakes,
    engine_memory,
    gigabytes,
    rank_memory,
    trainer_degree_mistakes,
)
from rollpacker.runtime.placing.pools import choose_pools, complete_pools
from rollpacker.trainers.trainable import check_trainable

LOGITS_CHUNK_TOKENS = 1024
"""Logits of 152,000 words then take 0.6 GB in float32."""
START_S = 1800.0
"""vLLM compiles a model and records its CUDA graphs; weights may be read from a shared file system."""

_USABLE_SHARE = 0.9
"""Of a GPU's memory by the estimate; the rest is for CUDA, NCCL and a sleeping engine."""
_WEIGHTS_SHARE = 0.5
"""At most so much of an engine's memory is weights; the rest is KV cache."""
_USUAL_GPU_BYTES = 80e9
"""Assumed where the memory of a GPU is unknown."""
_MICROBATCH_TOKENS = (16384, 8192, 4096, 2048, 1024)
"""The default and its halves."""
_MOST_GPUS = 1024
"""Times those that there are, up to which a refusal looks for a number that would do."""

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
    return Chooser(is_job=launcher is not None and launcher.is_for_slurm).complete


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
    if config.system.is_async and config.placement.maps is None:
        fits = functools.partial(_fits_smallest, model=model, gpus=gpus, draft=draft)
        choose_pools(draft, gpus, config, fits)
    _choose_engines(draft, gpus, model)
    if config.trains:
        _choose_trainer(draft, gpus, model)
    config = draft.config() or config
    _narrow_maps(draft, config, gpus)
    config = draft.config() or config
    if draft.is_free("placement.engine"):
        _refuse_idle(config, gpus, len(set().union(*(_places(gpus, each) for each in _maps(config)))))
    return list(draft.chosen.values())


def _choose_kinds(draft: Draft, gpus: Gpus) -> None:
    if draft.value("system.max_staleness"):
        complete_pools(draft, gpus)
    else:
        maps = {"placement.engine": "all", "placement.trainer": "all"}
        draft.choose(f"{gpus}: engines and trainer take turns on them", maps)
    if gpus.has_vllm:
        draft.choose("vLLM is installed", {"engine.name": "vllm"})
    draft.choose("parameters, gradients and optimizer are shared out", {"trainer.name": "fsdp"})
    draft.choose("half the memory of float32; updates add up in float32", {"model.dtype": "bfloat16"})
    draft.choose("a fraction of the memory", {"trainer.recompute_activations": True})
    draft.choose("no logits of all tokens at a time", {"trainer.logits_chunk_tokens": LOGITS_CHUNK_TOKENS})
    if draft.value("engine.name") == "vllm":
        draft.choose("vLLM compiles the model", {"backend.deadlines.start_s": START_S})


def _choose_engines(draft: Draft, gpus: Gpus, model: Transformer | None) -> None:
    counts = _counts(gpus, draft.gpu_map("engine"))
    num_bytes = gpus.num_bytes or _USUAL_GPU_BYTES
    fitting: list[tuple[dict[str, object], RunConfig]] = []
    for degree in _engine_degrees(draft, counts):
        values: dict[str, object] = {"engine.tensor_parallel": degree, "engine.num_engines": sum(counts) // degree}
        config = draft.config(values)
        if config is None or (model is not None and list(engine_degree_mistakes(config, model.shape))):
            continue
        fitting.append((values, config))
        if model is None:
            break
        share = config.engine.vllm.memory_share if config.engine.name == "vllm" else _USABLE_SHARE
        if engine_memory(config, model, num_bytes).weights <= _WEIGHTS_SHARE * share * num_bytes:
            break
    if not fitting:
        return  # the schema, or the check of the model's sizes, says why
    values, config = fitting[-1]
    if model is not None and gpus.num_bytes is not None and draft.is_free("engine.tensor_parallel"):
        check_engine(config, engine_memory(config, model, gpus.num_bytes), gpus.num_bytes)
    draft.choose("the lowest degree that leaves half of an engine's memory to its KV cache", values)


def _engine_degrees(draft: Draft, counts: Sequence[int]) -> list[int]:
    """Degrees to try, ascending: powers of two that cut every node's GPUs into whole engines."""
    number = draft.value("engine.num_engines")
    if not draft.is_free("engine.tensor_parallel"):
        return [draft.value("engine.tensor_parallel")]
    if draft.value("engine.name") != "vllm":
        return [1]
    if not draft.is_free("engine.num_engines"):
        return [sum(counts) // number] if number and sum(counts) % number == 0 else [1]
    return [1 << power for power in range(max(counts).bit_length()) if all(each % (1 << power) == 0 for each in counts)]


def _choose_trainer(draft: Draft, gpus: Gpus, model: Transformer | None) -> None:
    room = _USABLE_SHARE * (gpus.num_bytes or _USUAL_GPU_BYTES)
    least: tuple[float, RunConfig, _Layout, int] | None = None
    own, of_engines = (_places(gpus, draft.gpu_map(role)) for role in ("trainer", "engine"))
    may_borrow = bool(draft.value("system.stream")) and not own.isdisjoint(of_engines)
    for layout, num_tokens in itertools.product(_layouts(draft, len(own), may_borrow=may_borrow), _microbatches(draft)):
        config = draft.config(layout.values | {"trainer.max_tokens_per_microbatch": num_tokens})
        if config is None or (model is not None and list(trainer_degree_mistakes(config, model.shape))):
            continue
        total = 0.0 if model is None else rank_memory(config, model).total
        if least is None or total < least[0]:
            least = total, config, layout, num_tokens
        if total <= room:
            least = total, config, layout, num_tokens
            break
    if least is None:
        return  # the schema, or the check of the model's sizes, says why
    total, config, layout, num_tokens = least
    if model is not None and total > room and gpus.num_bytes is not None and draft.is_free("trainer.name"):
        raise _does_not_fit(config, model, gpus)
    draft.choose(layout.reason, layout.values)
    draft.choose("the largest micro-batch that fits", {"trainer.max_tokens_per_microbatch": num_tokens})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """A way to share the trainer out."""

    values: dict[str, object]
    reason: str


def _layouts(draft: Draft, num_gpus: int, *, may_borrow: bool) -> list[_Layout]:
    """Ways to share the trainer out, the one to be preferred first; whether it may train on GPUs that engines lend."""
    match draft.value("trainer.name"):
        case "fsdp":
            number = num_gpus if draft.is_free("trainer.data_parallel") else draft.value("trainer.data_parallel") or 1
            ranks: dict[str, object] = {"trainer.data_parallel": number}
            whole = _Layout(
                values=ranks | {"trainer.shard_gradients": True},
                reason="each GPU holds its part of parameters, gradients and optimizer",
            )
            if not may_borrow or draft.value("engine.num_engines") < 2 or number % 2:  # noqa: PLR2004
                return [whole]
            halves = _Layout(
                values=ranks | {"trainer.shard_ranks": number // 2, "trainer.shard_gradients": False},
                reason="two copies: one trains on lent GPUs while engines generate on the other's (system.stream)",
            )
            return [halves, whole]
        case "megatron":
            names = ("trainer.tensor_parallel", "trainer.pipeline_parallel", "trainer.data_parallel")
            context = draft.value("trainer.context_parallel")
            sizes = [1 << power for power in range(num_gpus.bit_length())]
            tensors, pipelines = (sizes if draft.is_free(name) else [draft.value(name)] for name in names[:2])
            layouts = []
            for tensor, pipeline in sorted(
                itertools.product(tensors, pipelines), key=lambda degrees: (degrees[0] * degrees[1], degrees[1])
            ):
                each = tensor * pipeline * context
                number = num_gpus // each if draft.is_free(names[2]) else draft.value(names[2]) or 1
                if each * number == num_gpus or (not draft.is_free(names[2]) and each * number < num_gpus):
                    values: dict[str, object] = dict(zip(names, (tensor, pipeline, number), strict=True))
                    layouts.append(_Layout(values=values, reason="the lowest degrees that fit"))
            return layouts
    return [_Layout(values={}, reason="one process")]


def _fits_smallest(num_ranks: int, *, model: Transformer | None, gpus: Gpus, draft: Draft) -> bool:
    """Tell whether a trainer that shards over so many ranks fits with the smallest micro-batch; True where unknown."""
    config = draft.config(
        {
            "trainer.data_parallel": num_ranks,
            "trainer.shard_gradients": True,
            "trainer.max_tokens_per_microbatch": _microbatches(draft)[-1],
        }
    )
    if config is None or model is None or config.trainer.name != "fsdp":
        return True
    return rank_memory(config, model).total <= _USABLE_SHARE * (gpus.num_bytes or _USUAL_GPU_BYTES)


def _microbatches(draft: Draft) -> list[int]:
    """Sizes of micro-batches to try, descending; the longest sequence makes one alone."""
    if not draft.is_free("trainer.max_tokens_per_microbatch"):
        return [draft.value("trainer.max_tokens_per_microbatch")]
    longest = draft.value("data.max_prompt_tokens") + draft.value("rollout.max_response_tokens")
    return [*(size for size in _MICROBATCH_TOKENS if size > longest), min(longest, _MICROBATCH_TOKENS[0])]


def _does_not_fit(config: RunConfig, model: Transformer, gpus: Gpus) -> ConfigError:
    assert gpus.num_bytes is not None
    rank, enough = rank_memory(config, model), None
    for number in (gpus.number << power for power in range(1, _MOST_GPUS.bit_length())):
        values = {"data_parallel": number, "shard_gradients": True, "shard_ranks": None}
        larger = config.model_copy(update={"trainer": config.trainer.model_copy(update=values)})
        if rank_memory(larger, model).total <= _USABLE_SHARE * gpus.num_bytes:
            enough = number
            break
    return ConfigError(
        f"The model of {model.num_parameters / 1e9:.1f} billion parameters cannot be trained on {gpus}: a rank of "
        f"trainer={config.trainer.name} needs {gigabytes(rank.total)} of its GPU by an estimate ({rank.in_words()}).",
        f"AdamW takes 16 bytes per parameter, shared out among {counted(config.trainer.num_ranks, 'rank')}; "
        f"{_USABLE_SHARE:.0%} of a GPU's memory is counted on.",
        (f"Take {enough} such GPUs, a smaller model" if enough else "Take a smaller model")
        + (", or lower rollout.max_response_tokens." if rank.activations > rank.state else "."),
    )


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


def _places(gpus: Gpus, named: GpuMap) -> set[tuple[int, int]]:
    """The GPUs that a map names, each with its node."""
    return {(node, gpu) for node in range(gpus.num_nodes) for gpu in named.gpus_of(node, gpus.per_node)}


def _counts(gpus: Gpus, named: GpuMap) -> list[int]:
    """How many GPUs of each node a map names, of nodes with any."""
    places = _places(gpus, named)
    counts = [sum(node == each for each, _ in places) for node in range(gpus.num_nodes)]
    return [count for count in counts if count] or [0]


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
