"""The engine sets of a run: one for each tensor-parallel degree that the planner may choose, on the same GPUs.

Invariant: an engine of another degree has the GPUs of engines of the configured degree, or a part of one's, and the
same memory of each: what its weights take less there is its KV cache's. One set works at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.core.errors import ConfigError, ModelError
from rollpacker.data.shapes import transformer_of

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig

_MEBIBYTE = 1 << 20


def degrees_of(config: RunConfig) -> tuple[int, ...]:
    """The degrees of which a real run has engines: the configured one, and those that the planner may change to."""
    configured = config.engine.tensor_parallel
    others = sorted(set(config.engine.degrees) - {configured}) if config.system.planner else []
    return configured, *others


def config_of(config: RunConfig, degree: int) -> RunConfig:
    """Say what an engine of a degree is told.

    Raises:
        ConfigError: Its weights leave no room for a KV cache in the memory that was given.
    """
    engine = config.engine
    if degree == engine.tensor_parallel:
        return config
    vllm = engine.vllm
    if vllm.kv_cache_mb is not None:
        vllm = vllm.model_copy(update={"kv_cache_mb": vllm.kv_cache_mb + _saved_mb(config, degree)})
        if vllm.kv_cache_mb is None or vllm.kv_cache_mb < 1:
            raise ConfigError(
                f"engine.degrees={list(engine.degrees)} with engine.vllm.kv_cache_mb={engine.vllm.kv_cache_mb} at "
                f"engine.tensor_parallel={engine.tensor_parallel}: fewer GPUs have no room for a cache.",
                f"An engine of degree {degree} has the same memory of each GPU, weights and cache together.",
                f"Leave {degree} out of engine.degrees, or raise engine.vllm.kv_cache_mb.",
            )
    num_gpus = engine.num_engines * engine.tensor_parallel
    changes = {"tensor_parallel": degree, "num_engines": num_gpus // degree, "vllm": vllm}
    return config.model_copy(update={"engine": engine.model_copy(update=changes)})


def _saved_mb(config: RunConfig, degree: int) -> int:
    """What an engine's weights take less of each GPU than at the configured degree; 0 where nobody knows their size."""
    try:
        num_bytes = transformer_of(config.model).num_weight_bytes
    except ModelError:
        return 0
    return int(num_bytes / config.engine.tensor_parallel - num_bytes / degree) // _MEBIBYTE


def check_degrees(config: RunConfig) -> None:
    """Refuse sets that the GPUs do not divide into; raises `ConfigError`."""
    engine = config.engine
    num_gpus = engine.num_engines * engine.tensor_parallel
    for degree in degrees_of(config):
        if num_gpus % degree:
            raise ConfigError(
                f"engine.degrees={list(engine.degrees)} with engine.num_engines={engine.num_engines} of "
                f"engine.tensor_parallel={engine.tensor_parallel}: {num_gpus} GPUs do not divide by {degree}.",
                "Every set works on all GPUs of the engines.",
                f"Leave {degree} out of engine.degrees, or change engine.num_engines.",
            )
        config_of(config, degree)
