"""Chooses the trainer of `placement=auto`: the first layout and the largest micro-batch that fit, by an estimate.

With `system.stream` the layout whose halves can be lent comes first.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from rollpacker.config.schema import RunConfig
from rollpacker.config.words import counted, shown
from rollpacker.core.errors import ConfigError
from rollpacker.data.degrees import trainer_degree_mistakes
from rollpacker.data.shapes import Transformer
from rollpacker.runtime.placing.draft import Draft
from rollpacker.runtime.placing.gpus import USABLE_SHARE, Gpus
from rollpacker.runtime.placing.model_fit import gigabytes, rank_memory, taken_by_judges

LOGITS_CHUNK_TOKENS = 1024
"""Logits of 152,000 words then take 0.6 GB in float32."""

_MICROBATCH_TOKENS = (16384, 8192, 4096, 2048, 1024)
"""The default and its halves."""
_MOST_GPUS = 1024
"""Times those that there are, up to which a refusal looks for a number that would do."""
_SIZES = (
    *("trainer.data_parallel", "trainer.shard_ranks", "trainer.shard_gradients", "trainer.max_tokens_per_microbatch"),
    *("trainer.recompute_activations", "trainer.logits_chunk_tokens", "model.dtype"),
)
"""What a rank's memory depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """A way to share the trainer out."""

    values: dict[str, object]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trainer:
    """A layout with a micro-batch, and what it takes of a GPU."""

    layout: _Layout
    num_tokens: int
    config: RunConfig
    num_bytes: float
    """Of a rank; 0 where the model's sizes are not known."""
    room: float
    """Bytes that a rank may take."""

    @property
    def fits(self) -> bool:
        return self.num_bytes <= self.room


def choose_trainer_kind(draft: Draft) -> None:
    """Choose what shares the memory out and bounds it."""
    draft.choose("parameters, gradients and optimizer are shared out", {"trainer.name": "fsdp"})
    draft.choose("half the memory of float32; updates add up in float32", {"model.dtype": "bfloat16"})
    draft.choose("a fraction of the memory", {"trainer.recompute_activations": True})
    draft.choose("no logits of all tokens at a time", {"trainer.logits_chunk_tokens": LOGITS_CHUNK_TOKENS})
    if draft.value("trainer.name") == "fsdp" and draft.value("trainer.shard_ranks") is not None:
        draft.choose("whole copies", {"trainer.data_parallel": draft.value("trainer.shard_ranks")})  # legal, for now


def choose_trainer(draft: Draft, gpus: Gpus, model: Transformer | None) -> None:
    """Choose degrees and micro-batch.

    Raises:
        ConfigError: No layout fits, and the kind of the trainer is not named.
    """
    trainer = _found(draft, gpus, model)
    if trainer is None:
        return  # the schema, or the check of the model's sizes, says why
    if model is not None and not trainer.fits and gpus.num_bytes is not None and draft.is_free("trainer.name"):
        _refuse_named_sizes(draft, gpus, model, trainer)
        raise _does_not_fit(trainer, model, gpus)
    draft.choose(trainer.layout.reason, trainer.layout.values)
    draft.choose("the largest micro-batch that fits", {"trainer.max_tokens_per_microbatch": trainer.num_tokens})


def smallest_trainer_fits(draft: Draft, gpus: Gpus, model: Transformer | None, num_ranks: int) -> bool:
    """Tell whether a trainer that shards over so many ranks fits with the smallest micro-batch; True where unknown."""
    values = {
        "trainer.data_parallel": num_ranks,
        "trainer.shard_gradients": draft.value("trainer.shard_ranks") in {None, num_ranks},
        "trainer.max_tokens_per_microbatch": _microbatches(draft)[-1],
    }
    config = draft.config(values)
    if config is None:
        return False
    if model is None or config.trainer.name != "fsdp":
        return True
    return rank_memory(config, model).total <= _room(config, gpus)


def _found(draft: Draft, gpus: Gpus, model: Transformer | None) -> _Trainer | None:
    """The first layout and the largest micro-batch that fit, or what takes least; None where none is legal."""
    least: _Trainer | None = None
    own, of_engines = (gpus.places(draft.gpu_map(role)) for role in ("trainer", "engine"))
    may_borrow = bool(draft.value("system.stream")) and not own.isdisjoint(of_engines)
    for layout, num_tokens in itertools.product(_layouts(draft, len(own), may_borrow=may_borrow), _microbatches(draft)):
        config = draft.config(layout.values | {"trainer.max_tokens_per_microbatch": num_tokens})
        if config is None or (model is not None and list(trainer_degree_mistakes(config.trainer, model.shape))):
            continue
        num_bytes = 0.0 if model is None else rank_memory(config, model).total
        room = _room(config, gpus)
        trainer = _Trainer(layout=layout, num_tokens=num_tokens, config=config, num_bytes=num_bytes, room=room)
        if trainer.fits:
            return trainer
        if least is None or num_bytes < least.num_bytes:
            least = trainer
    return least


def _room(config: RunConfig, gpus: Gpus) -> float:
    return USABLE_SHARE * (1 - taken_by_judges(config, gpus.num_nodes, gpus.per_node)["trainer"]) * gpus.usual_bytes


def _layouts(draft: Draft, num_gpus: int, *, may_borrow: bool) -> list[_Layout]:
    """Ways to share the trainer out, the one to be preferred first; whether it may train on GPUs that engines lend."""
    match draft.value("trainer.name"):
        case "fsdp":
            return _sharded(draft, num_gpus, may_borrow=may_borrow)
        case "megatron":
            return _cut(draft, num_gpus)
    return [_Layout(values={}, reason="one process")]


def _sharded(draft: Draft, num_gpus: int, *, may_borrow: bool) -> list[_Layout]:
    number = num_gpus if draft.is_free("trainer.data_parallel") else draft.value("trainer.data_parallel") or 1
    ranks: dict[str, object] = {"trainer.data_parallel": number}
    whole = _Layout(
        values=ranks | {"trainer.shard_gradients": True},
        reason="each GPU holds its part of parameters, gradients and optimizer",
    )
    if not draft.is_free("trainer.shard_ranks") and draft.value("trainer.shard_ranks") not in {None, number}:
        return [
            _Layout(values=ranks | {"trainer.shard_gradients": False}, reason="copies, as trainer.shard_ranks says")
        ]
    if not may_borrow or draft.value("engine.num_engines") < 2 or number % 2:  # noqa: PLR2004
        return [whole]
    halves = _Layout(
        values=ranks | {"trainer.shard_ranks": number // 2, "trainer.shard_gradients": False},
        reason="two copies: one trains on lent GPUs while engines generate on the other's (system.stream)",
    )
    return [halves, whole]


def _cut(draft: Draft, num_gpus: int) -> list[_Layout]:
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


def _microbatches(draft: Draft) -> list[int]:
    """Sizes of micro-batches to try, descending; the longest sequence makes one alone."""
    if not draft.is_free("trainer.max_tokens_per_microbatch"):
        return [draft.value("trainer.max_tokens_per_microbatch")]
    longest = draft.value("data.max_prompt_tokens") + draft.value("rollout.max_response_tokens")
    return [*(size for size in _MICROBATCH_TOKENS if size > longest), min(longest, _MICROBATCH_TOKENS[0])]


def _refuse_named_sizes(draft: Draft, gpus: Gpus, model: Transformer, trainer: _Trainer) -> None:
    """Raise `ConfigError` if the trainer would fit, were it not for values that somebody named."""
    free = draft.freed(_SIZES)
    choose_trainer_kind(free)
    best = _found(free, gpus, model)
    named = [f"{key}={shown(draft.value(key))}" for key in _SIZES if not draft.is_free(key)]
    if best is None or not best.fits or not named:
        return
    memory = rank_memory(trainer.config, model)
    raise ConfigError(
        f"A rank of trainer={trainer.config.trainer.name} with {' '.join(named)} needs {gigabytes(memory.total)} of "
        f"its GPU by an estimate ({memory.in_words()}).",
        f"{gigabytes(trainer.room)} of it are counted on; without {'this word' if len(named) == 1 else 'these words'} "
        f"it needs {gigabytes(best.num_bytes)}.",
        f"Leave out {' or '.join(word.partition('=')[0] for word in named)}.",
    )


def _does_not_fit(trainer: _Trainer, model: Transformer, gpus: Gpus) -> ConfigError:
    config, enough = trainer.config, None
    rank = rank_memory(config, model)
    for number in (gpus.number << power for power in range(1, _MOST_GPUS.bit_length())):
        values = {"data_parallel": number, "shard_gradients": True, "shard_ranks": None}
        larger = config.model_copy(update={"trainer": config.trainer.model_copy(update=values)})
        if rank_memory(larger, model).total <= trainer.room:
            enough = number
            break
    taken = taken_by_judges(config, gpus.num_nodes, gpus.per_node)["trainer"]
    return ConfigError(
        f"The model of {model.num_parameters / 1e9:.1f} billion parameters cannot be trained on {gpus}: a rank of "
        f"trainer={config.trainer.name} needs {gigabytes(rank.total)} of its GPU by an estimate ({rank.in_words()}).",
        f"AdamW takes 16 bytes per parameter, shared out among {counted(config.trainer.num_ranks, 'rank')}; "
        f"{USABLE_SHARE:.0%} of a GPU's memory is counted on"
        + (f", less a judge's {taken:g} (reward.judge.memory_share)." if taken else "."),
        (f"Take {enough} such GPUs, or a smaller model" if enough else "Take a smaller model")
        + (", or give the judge GPUs of its own (placement.judge)" if taken else "")
        + (", or lower rollout.max_response_tokens." if rank.activations > rank.state else "."),
    )
