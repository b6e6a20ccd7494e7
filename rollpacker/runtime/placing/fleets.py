"""The engine sets of a run: one for each tensor-parallel degree that the planner may choose, on the same GPUs.

Invariant: an engine of another degree has the GPUs of engines of the configured degree, or part of one engine's, and
the same memory of each GPU: what its weights leave is its KV cache. One set works at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.core.errors import ConfigError, ModelError
from rollpacker.core.round_time_model import DegreeCosts
from rollpacker.data.shapes import transformer_of

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.metrics.profiles import Profile


def degrees_of(config: RunConfig) -> tuple[int, ...]:
    """The degrees of a real run's engines: the configured one, then those that the planner may change to."""
    configured = config.engine.tensor_parallel
    others = sorted(set(config.engine.degrees) - {configured}) if config.system.planner else []
    return configured, *others


def config_of(config: RunConfig, degree: int) -> RunConfig:
    """Return the configuration of an engine of a degree.

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


_MEASUREMENTS = ("decode", "prefill", "kv_cache")
"""Of engines of one degree, from which their costs follow."""


def costs_of(config: RunConfig) -> tuple[DegreeCosts, ...]:
    """The costs of engines of each degree by `engine.profile`; empty without one, or with one degree.

    Raises:
        DataError: The profile cannot be read.
        ConfigError: It is of another model, or lacks a degree.
    """
    path, degrees = config.engine.profile, degrees_of(config)
    if path is None or len(degrees) == 1:
        return ()
    from rollpacker.metrics.profile_fits import check_model
    from rollpacker.metrics.profiles import read_profile

    profile = read_profile(path)
    model = transformer_of(config.model)
    check_model("engine.profile", path, profile, model.shape.model_dump(mode="json"), config.model.dtype)
    found = sorted({point.tensor_parallel for point in profile.of("decode")})
    measured = [degree for degree in found if all(profile.of(name, degree) for name in _MEASUREMENTS)]
    for degree in degrees:
        if degree not in measured:
            raise ConfigError(
                f"engine.profile={path} has no engines of degree {degree}, measured whole, and engine.degrees="
                f"{list(config.engine.degrees)}.",
                f"It has the degrees {', '.join(map(str, measured)) or 'none'}.",
                "Measure again with the same engine.degrees and system.planner=true, or change engine.degrees.",
            )
    return tuple(_degree_costs(config, profile, degree) for degree in degrees)


def _degree_costs(config: RunConfig, profile: Profile, degree: int) -> DegreeCosts:
    from rollpacker.metrics.profile_fits import fit_decode, fit_prefill

    decode, prefill = fit_decode(profile.of("decode", degree)), fit_prefill(profile.of("prefill", degree))
    typical = max(1, (config.data.max_prompt_tokens + config.rollout.max_response_tokens) // 2)
    return DegreeCosts(
        degree=degree,
        num_engines=config.engine.num_engines * config.engine.tensor_parallel // degree,
        max_num_seqs=config.engine.max_num_seqs,
        kv_tokens=round(profile.of("kv_cache", degree)[0].num_tokens),
        batch_sizes=decode.sizes,
        pass_s=decode.base_s,
        kv_read_s=decode.kv_read_s,
        prefill_s=prefill(1, typical, typical**2) / typical,
    )


def _saved_mb(config: RunConfig, degree: int) -> int:
    """How much less of each GPU the weights take than at the configured degree; 0 where their size is unknown."""
    try:
        num_bytes = transformer_of(config.model).num_weight_bytes
    except ModelError:
        return 0
    return int(num_bytes / config.engine.tensor_parallel - num_bytes / degree) >> 20


def check_degrees(config: RunConfig) -> None:
    """Raise `ConfigError` for engine sets that do not divide the GPUs."""
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
