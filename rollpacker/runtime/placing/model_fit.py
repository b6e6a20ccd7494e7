"""Checks that the model can be sharded as configured and fits into the GPUs, before anything loads.

The memory of engines and ranks is an **estimate** from the model's sizes. Weights, gradients and optimizer follow from
their sharding, and a run for which they alone are too large is refused. Activations are a rule of thumb and never a
reason to refuse a run; the KV cache is what remains. CUDA itself (about 1 GB) and fragmentation are left out.

Sources: bytes per parameter as trainers hold them (module docstrings of `torch_policy`, `fsdp.policy` and
`megatron.policy`); activations from Korthikanti et al., arXiv 2205.05198, without the attention scores that fused
kernels do not keep. A model that caps them has no such kernel: 8 bytes per score, heads x T^2 of a row of T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollpacker.config.mistakes import raise_mistakes
from rollpacker.core.errors import ConfigError, ModelError
from rollpacker.data.degrees import engine_degree_mistakes, trainer_degree_mistakes
from rollpacker.data.shapes import Transformer, transformer_of
from rollpacker.runtime.placing.actors import ClusterSize, Role
from rollpacker.runtime.placing.fleets import config_of, degrees_of
from rollpacker.runtime.placing.host import gpu_memory
from rollpacker.trainers.replicas import whole_up_to

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig

_FP32 = 4
"""Bytes."""
_MOMENTS = 2 * _FP32
"""Bytes per parameter of AdamW's state."""
_LOGIT_COPIES = 4
"""Logits, log-probabilities, probabilities and a gradient, all in float32."""
_SCORE_BYTES = 8
"""Of each attention score that eager attention keeps where scores are capped: the capped one and its probability, in
float32; or both in half precision, and the probability in float32, too. As measured with Gemma 2 in transformers 5."""
_GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """What an engine takes of each of its GPUs, in bytes."""

    weights: float
    sequence: float
    """KV cache of one sequence of the longest prompt and response: the least with which the engine can work."""
    kv_cache: float | None
    """None: as much as its requests need, or unknown."""
    largest_kv_cache: float | None = None
    """Of `engine.max_num_seqs` such sequences in a torch engine, whose buffers double as they grow; None with vLLM,
    which preempts requests instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """What a rank of the trainer takes of its GPU, in bytes."""

    weights: float
    """Of the policy, in every precision in which they are held, and of the reference."""
    gradients: float
    optimizer: float
    activations: float
    """Of one micro-batch, or as many as a pipeline has in flight. A rule of thumb."""

    @property
    def state(self) -> float:
        """The part that does not depend on the batch."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        return self.state + self.activations

    def in_words(self) -> str:
        """Each part."""
        return (
            f"weights {gigabytes(self.weights)}, gradients {gigabytes(self.gradients)}, optimizer "
            f"{gigabytes(self.optimizer)}, activations {gigabytes(self.activations)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeMemory:
    """What a judge takes of each of its GPUs, in bytes."""

    weights: float
    """Those that stay there."""
    batch: float
    """Activations of a forward pass. A rule of thumb."""
    share: float
    """Of the GPU, reserved for it whatever it needs; vLLM engines on the same GPU leave it free."""

    @property
    def needed(self) -> float:
        """The least that it needs."""
        return self.weights + self.batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFit:
    """Estimates of what each kind of actor takes of a GPU, and what a GPU has."""

    engine: EngineMemory
    rank: RankMemory
    judge: JudgeMemory | None
    """None without a judge, and where its sizes are not known."""
    gpu_bytes: float | None
    """None where it is unknown."""


def validate_fit(config: RunConfig, size: ClusterSize | None = None) -> ModelFit | None:
    """Estimate what a real run takes of its GPUs; None for a model whose sizes its config.json does not give.

    Args:
        config: Of the run.
        size: Its nodes, on which judges may share GPUs with others; None where they are not known.

    Raises:
        ConfigError: The model cannot be sharded so, or its state does not fit into a GPU.
        ModelError: Megatron-core's ranks cut a model whose sizes its config.json does not give: never None then.
    """
    if (model := _transformer_of(config)) is None:
        return None
    configs = [config_of(config, degree) for degree in degrees_of(config)]
    for each in configs:
        key = "engine.tensor_parallel" if each is config else "engine.degrees"
        raise_mistakes(list(engine_degree_mistakes(each.engine.tensor_parallel, model.shape, key)))
    if config.trains:
        raise_mistakes(list(trainer_degree_mistakes(config.trainer, model.shape)))
    gpu_bytes = _gpu_bytes(config)
    fit = ModelFit(
        engine=engine_memory(config, model, gpu_bytes),
        rank=rank_memory(config, model),
        judge=_judge_memory(config),
        gpu_bytes=gpu_bytes,
    )
    taken = taken_by_judges(config, size.num_nodes if size else 0, size.num_gpus if size else 0)
    if gpu_bytes is not None:
        is_placed = config.placement.maps is not None
        if is_placed or config.engine.resources.num_gpus:
            share = 1.0 if is_placed else min(config.engine.resources.num_gpus, 1.0)
            memories = [engine_memory(each, model, gpu_bytes) for each in configs]
            for each, memory in zip(configs, memories, strict=True):
                check_engine(each, memory, gpu_bytes * share, taken["engine"])
            if config.system.planner and config.system.escalate_tail:
                _check_standing(config, memories, gpu_bytes * share, gpu_bytes * taken["engine"])
        if config.trains and (is_placed or config.trainer.resources.num_gpus):
            share = 1.0 if is_placed else min(config.trainer.resources.num_gpus, 1.0)
            _check_rank(config, fit.rank, gpu_bytes * share, taken["trainer"])
        if fit.judge is not None and (config.placement.judge is not None or config.reward.judge.resources.num_gpus):
            _check_judge(config, fit.judge, gpu_bytes)
    return fit


def taken_by_judges(config: RunConfig, num_nodes: int, num_gpus: int) -> dict[Role, float]:
    """Share of a GPU that judges have while engines or ranks use it, too, by the maps on nodes of so many GPUs."""
    maps = config.placement.maps
    if maps is None or not config.reward.has_judge:
        return {"engine": 0.0, "trainer": 0.0}
    engines, ranks, judges = (each.places(num_nodes, num_gpus) for each in (*maps, config.placement.judge_map))
    judge_sleeps = not (engines.isdisjoint(ranks) or config.system.stream)  # a stream trains beside judges
    share = config.reward.judge.memory_share
    return {
        "engine": 0.0 if judges.isdisjoint(engines) else share,
        "trainer": 0.0 if judges.isdisjoint(ranks) or judge_sleeps else share,
    }


def _judge_memory(config: RunConfig) -> JudgeMemory | None:
    judge = config.reward.judge
    if not config.reward.has_judge:
        return None
    try:
        model = transformer_of(judge.model.model_copy(update={"shape": None}))
    except ModelError:
        return None
    shape = model.shape
    resident = (judge.resident_share or 0.0) if judge.engine == "streamed" else 1.0
    per_token = 10 * shape.hidden_size + 3 * shape.intermediate_size
    longest = max(judge.max_batch_tokens, judge.max_prompt_tokens)
    return JudgeMemory(
        weights=model.num_weight_bytes * resident / judge.tensor_parallel,
        batch=longest * per_token * model.bytes_per_number / judge.tensor_parallel,
        share=judge.memory_share,
    )


def _transformer_of(config: RunConfig) -> Transformer | None:
    """The run's model; None without sizes, and `ModelError` where Megatron-core's ranks cut it by them."""
    trainer = config.trainer
    try:
        return transformer_of(config.model.model_copy(update={"shape": None}))
    except ModelError as error:
        if config.trains and max(trainer.tensor_parallel, trainer.pipeline_parallel) > 1:
            raise ModelError(
                error.problem,
                f"trainer.tensor_parallel={trainer.tensor_parallel} trainer.pipeline_parallel="
                f"{trainer.pipeline_parallel} cut a model by the sizes that its config.json gives.",
                "Add them to the file, or set both to 1.",
            ) from error
        return None


def _gpu_bytes(config: RunConfig) -> float | None:
    if config.cluster is None:
        return gpu_memory()
    return None if config.cluster.gpu_memory_gb is None else config.cluster.gpu_memory_gb * _GB


def engine_memory(config: RunConfig, model: Transformer, gpu_bytes: float | None) -> EngineMemory:
    """Estimate what an engine takes of each of its GPUs."""
    engine = config.engine
    kv_bytes_per_token = model.engine_kv_bytes_per_token(engine.tensor_parallel) / engine.tensor_parallel
    weights = model.num_weight_bytes / engine.tensor_parallel
    kv_cache: float | None = None
    if engine.name == "vllm":
        if engine.vllm.kv_cache_mb is not None:
            kv_cache = engine.vllm.kv_cache_mb * float(1 << 20)
        elif gpu_bytes is not None:
            kv_cache = gpu_bytes * engine.vllm.memory_share - weights
    longest = config.data.max_prompt_tokens + config.longest_response_tokens
    sequence = kv_bytes_per_token * longest
    largest = 2 * engine.max_num_seqs * sequence if engine.name == "torch" else None
    return EngineMemory(weights=weights, sequence=sequence, kv_cache=kv_cache, largest_kv_cache=largest)


def rank_memory(config: RunConfig, model: Transformer) -> RankMemory:
    """Estimate what a rank of the trainer takes of its GPU.

    One process holds autocast's copy of layers and output layer through a whole pass, recomputed or not.
    FSDP2 gathers two layers at a time, and holds embedding and output layer through a whole pass, with their gradient.
    """
    trainer, shape, number = config.trainer, model.shape, model.bytes_per_number
    num_parameters, num_replicas = float(model.num_parameters), trainer.data_parallel or 1
    num_references = 1 if trainer.kl_coefficient > 0 else 0
    match trainer.name:
        case "torch":
            num_cast = model.num_layer_parameters + shape.vocab_size * shape.hidden_size
            cast = number * num_cast if number < _FP32 else 0
            weights = _FP32 * num_parameters * (1 + num_references) + cast
            gradients, optimizer = _FP32 * num_parameters, _MOMENTS * num_parameters
        case "fsdp":
            num_sharing = trainer.shard_ranks or num_replicas
            outermost = number * float(model.num_embedding_parameters)
            gathered = 2 * number * model.num_layer_parameters / shape.num_layers + outermost
            weights = _FP32 * num_parameters * (1 + num_references) / num_sharing + gathered
            gradients = _FP32 * num_parameters
            if trainer.shard_gradients:
                gradients = gradients / num_replicas + outermost
            optimizer = _MOMENTS * num_parameters / num_sharing
        case "megatron":
            cut = num_parameters / (trainer.tensor_parallel * trainer.pipeline_parallel)
            main_weights = _FP32 if number < _FP32 else 0
            weights = number * cut * (1 + num_references)
            gradients = _FP32 * cut
            optimizer = (_MOMENTS + main_weights) * cut / (num_replicas * trainer.context_parallel)
    return RankMemory(
        weights=weights, gradients=gradients, optimizer=optimizer, activations=_activation_bytes(config, model)
    )


def _activation_bytes(config: RunConfig, model: Transformer) -> float:
    """Per layer and token 34 numbers of the hidden size in half precision, 10 of them not tensor-parallel.

    Where attention scores are capped, those of rows of the longest prompt and response come on top in each layer.

    The first stage of a pipeline has as many micro-batches in flight as there are stages, so that it holds as many
    layers as one stage with all of them would. With recomputation a layer keeps its input only.
    """
    trainer, shape = config.trainer, model.shape
    longest = config.data.max_prompt_tokens + config.rollout.max_response_tokens
    num_tokens = max(trainer.max_tokens_per_microbatch, longest) / trainer.context_parallel
    num_tokens = max(num_tokens, min(whole_up_to(config), longest))
    per_layer = num_tokens * shape.hidden_size * (10 + 24 / trainer.tensor_parallel) * model.bytes_per_number / 2
    if model.caps_scores:
        per_layer += num_tokens * longest * shape.num_heads * _SCORE_BYTES
    kept = num_tokens * shape.hidden_size * model.bytes_per_number
    layers = shape.num_layers * kept + per_layer if trainer.recompute_activations else shape.num_layers * per_layer
    num_scored = min(num_tokens, trainer.logits_chunk_tokens or num_tokens)
    logits = num_scored * shape.vocab_size / trainer.tensor_parallel * _FP32 * _LOGIT_COPIES
    return layers + logits


def _check_judge(config: RunConfig, judge: JudgeMemory, gpu_bytes: float) -> None:
    if judge.needed > gpu_bytes * judge.share:
        raise ConfigError(
            f"A judge of reward.judge.engine={config.reward.judge.engine} needs {gigabytes(judge.needed)} of each GPU "
            f"by an estimate: {gigabytes(judge.weights)} of weights and {gigabytes(judge.batch)} for a batch.",
            f"A GPU has {gigabytes(gpu_bytes)}, of which reward.judge.memory_share={judge.share:g} is the judge's.",
            "Raise reward.judge.memory_share or tensor_parallel, lower reward.judge.max_batch_tokens, or let its "
            "layers stream: reward.judge.engine=streamed.",
        )


def check_engine(config: RunConfig, engine: EngineMemory, gpu_bytes: float, taken: float = 0.0) -> None:
    """Raise `ConfigError` for an engine that does not fit. `taken` is the share of the GPU that a judge has."""
    share = config.engine.vllm.memory_share if config.engine.name == "vllm" else 1.0
    needed = engine.weights + engine.sequence
    if needed > gpu_bytes * (share - taken):
        raise ConfigError(
            f"An engine of engine.tensor_parallel={config.engine.tensor_parallel} needs {gigabytes(needed)} of each "
            f"GPU by an estimate: {gigabytes(engine.weights)} of weights and {gigabytes(engine.sequence)} for one "
            "sequence of the longest prompt and response.",
            f"A GPU has {gigabytes(gpu_bytes)}"
            + (f", of which engine.vllm.memory_share={share:g} is the engine's" if share < 1 else "")
            + (f", less a judge's {taken:g} (reward.judge.memory_share)." if taken else "."),
            f"{'Raise' if config.engine.name == 'vllm' else 'Choose engine=vllm and raise'} engine.tensor_parallel, or "
            "set model.dtype=bfloat16, or lower rollout.max_response_tokens.",
        )


def _check_standing(config: RunConfig, memories: Sequence[EngineMemory], gpu_bytes: float, judge_bytes: float) -> None:
    """Raise `ConfigError` if the engines that stand by do not fit beside those in use, by degree, and a judge."""
    *others, largest = sorted(memories, key=lambda each: -each.weights)
    used = max(each.weights + (each.kv_cache or each.sequence) for each in others)
    share = config.engine.vllm.memory_share
    is_share = config.engine.name == "vllm" and config.engine.vllm.kv_cache_mb is None
    gpu_bytes -= judge_bytes
    used -= judge_bytes if is_share else 0.0  # engines leave a judge its part of their share
    if used + largest.weights > gpu_bytes:
        raise ConfigError(
            f"system.escalate_tail=true: engines take {gigabytes(used)} of each GPU by an estimate, and those of "
            f"engine.degrees={list(config.engine.degrees)} that stand by {gigabytes(largest.weights)} of weights.",
            f"A GPU has {gigabytes(gpu_bytes)} for both"
            + (f"; engine.vllm.memory_share={share:g} is what those in use take." if is_share else "."),
            f"Lower {'engine.vllm.memory_share' if is_share else 'engine.vllm.kv_cache_mb'}, or set "
            "system.escalate_tail=false.",
        )


def _check_rank(config: RunConfig, rank: RankMemory, gpu_bytes: float, taken: float) -> None:
    """Raise `ConfigError` for a rank that does not fit. `taken` is the share of the GPU that a judge has."""
    if rank.state > gpu_bytes * (1 - taken):
        copies = config.trainer.name == "fsdp" and config.trainer.shard_ranks is not None
        raise ConfigError(
            f"A rank of trainer={config.trainer.name} needs {gigabytes(rank.state)} of its GPU by an estimate, without "
            f"activations: {gigabytes(rank.weights)} of weights, {gigabytes(rank.gradients)} of gradients and "
            f"{gigabytes(rank.optimizer)} for the optimizer.",
            f"A GPU has {gigabytes(gpu_bytes)}"
            + (f", less a judge's {taken:g} (reward.judge.memory_share)." if taken else "."),
            "Share the model out among more ranks: trainer=fsdp with a higher "
            f"{'trainer.shard_ranks' if copies else 'trainer.data_parallel'}, or trainer=megatron with higher degrees.",
        )


def gigabytes(num_bytes: float) -> str:
    """In 10^9 bytes, as data sheets count them."""
    return f"{num_bytes / _GB:.1f} GB" if num_bytes >= _GB / 10 else f"{num_bytes / 1e6:.1f} MB"
