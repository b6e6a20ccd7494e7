"""Chooses the engines of `placement=auto`: the lowest degree at which weights take at most half of an engine's memory.

An engine stays within one node, so a degree cuts each node's GPUs into whole engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import ConfigError
from rollpacker.data.degrees import engine_degree_mistakes
from rollpacker.data.shapes import Transformer
from rollpacker.runtime.placing.draft import Draft
from rollpacker.runtime.placing.gpus import USABLE_SHARE, Gpus
from rollpacker.runtime.placing.model_fit import check_engine, engine_memory, taken_by_judges

_WEIGHTS_SHARE = 0.5
"""At most so much of an engine's memory is weights; the rest is KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Engines:
    """Engines of one degree."""

    values: dict[str, object]
    config: RunConfig
    has_room: bool
    """Whether half of an engine's memory is left to its KV cache; True where that is not known."""


def choose_engines(draft: Draft, gpus: Gpus, model: Transformer | None) -> None:
    """Choose degree and number.

    Raises:
        ConfigError: No degree fits, and none is named.
    """
    options = list(_options(draft, gpus, model, gpus.counts(draft.gpu_map("engine"))))
    if not options:
        return  # the schema, or the check of the model's sizes, says why
    engines = next((each for each in options if each.has_room), options[-1])
    reason = "as many as the GPUs hold"
    if draft.is_free("engine.tensor_parallel"):
        _check(engines, gpus, model)
        reason = "the highest degree that cuts the GPUs of each node into whole engines"
        if engines.has_room:
            reason = "the lowest degree that leaves half of an engine's memory to its KV cache"
    draft.choose(reason, engines.values)


def engines_fit(draft: Draft, gpus: Gpus, model: Transformer | None, counts: Sequence[int]) -> bool:
    """Tell whether engines fit into so many GPUs of each node; True where the sizes are not known."""
    options = list(_options(draft, gpus, model, counts))
    try:
        _check(options[-1], gpus, model)
    except (ConfigError, IndexError):
        return False
    return True


def _options(draft: Draft, gpus: Gpus, model: Transformer | None, counts: Sequence[int]) -> Iterator[_Engines]:
    """Engines of each legal degree, ascending."""
    for degree in _degrees(draft, counts):
        values: dict[str, object] = {"engine.tensor_parallel": degree, "engine.num_engines": sum(counts) // degree}
        config = draft.config(values)
        if config is None or (model is not None and list(engine_degree_mistakes(degree, model.shape))):
            continue
        has_room = True
        if model is not None:
            share = config.engine.vllm.memory_share if config.engine.name == "vllm" else USABLE_SHARE
            room = (share - _taken(config, gpus)) * gpus.usual_bytes
            has_room = engine_memory(config, model, gpus.usual_bytes).weights <= _WEIGHTS_SHARE * room
        yield _Engines(values=values, config=config, has_room=has_room)


def _degrees(draft: Draft, counts: Sequence[int]) -> list[int]:
    """Degrees to try, ascending: powers of two that cut every node's GPUs into whole engines."""
    number = draft.value("engine.num_engines")
    if not draft.is_free("engine.tensor_parallel"):
        return [draft.value("engine.tensor_parallel")]
    if draft.value("engine.name") != "vllm":
        return [1]
    if not draft.is_free("engine.num_engines"):
        return [sum(counts) // number] if number and sum(counts) % number == 0 else [1]
    return [1 << power for power in range(max(counts).bit_length()) if all(each % (1 << power) == 0 for each in counts)]


def _check(engines: _Engines, gpus: Gpus, model: Transformer | None) -> None:
    if model is not None and gpus.num_bytes is not None:
        memory = engine_memory(engines.config, model, gpus.num_bytes)
        check_engine(engines.config, memory, gpus.num_bytes, _taken(engines.config, gpus))


def _taken(config: RunConfig, gpus: Gpus) -> float:
    return taken_by_judges(config, gpus.num_nodes, gpus.per_node)["engine"]
