"""A model that cannot be cut as the configuration says, or whose state does not fit, is refused before it is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollpacker.config.compose import compose
from rollpacker.core.errors import ModelError, UserError
from rollpacker.data.shapes import transformer_of
from rollpacker.runtime.placing.actors import ClusterSize
from rollpacker.runtime.placing.model_fit import validate_fit

REAL = ["model.path=m", "data.path=d", "run.dir=r"]
QWEN_7B = {
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
}
STANDING_BY = (
    *("cluster=h800", "engine.name=vllm", "engine.resources.num_gpus=1", "engine.num_engines=4", "system=ours-exact"),
    *("engine.degrees=[1,2,4]", "engine.profile=p.json", "system.escalate_tail=true"),
)
SEVEN_BILLION = 7.615e9
"""Its parameters but for norms and biases."""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_7B))
    return f"model.path={tmp_path}"


def fit_of(model: str, *words: str):
    return validate_fit(compose([*REAL, model, "model.dtype=bfloat16", *words]))


def gigabytes_of(memory: object, *names: str) -> list[float]:
    return [round(getattr(memory, name) / 1e9, 1) for name in names]


def test_engines_share_weights_and_key_value_heads(model):
    whole, cut = (fit_of(model, "engine.name=vllm", f"engine.tensor_parallel={degree}").engine for degree in (1, 4))
    assert whole.weights == pytest.approx(2 * SEVEN_BILLION, rel=1e-3)
    assert cut.weights == whole.weights / 4
    assert cut.sequence == whole.sequence / 4
    assert whole.sequence == 1280 * 2 * 28 * 4 * 128 * 2  # tokens x (keys, values) x layers x heads x size x bytes
    assert whole.kv_cache is None  # the GPU is unknown


def test_what_the_memory_share_leaves_beside_the_weights_is_the_cache(model):
    engine = fit_of(model, "cluster=h800", "engine.name=vllm", "engine.resources.num_gpus=1").engine
    assert engine.kv_cache == pytest.approx(0.9 * 80e9 - 2 * SEVEN_BILLION, rel=1e-3)
    engine = fit_of(model, "cluster=h800", "engine.name=vllm", "engine.vllm.kv_cache_mb=100").engine
    assert engine.kv_cache == 100 * (1 << 20)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["trainer=torch", "model.dtype=float32"], [30.5, 30.5, 60.9]),
        (["trainer=torch"], [44.6, 30.5, 60.9]),  # 2 bytes of each parameter but the embedding's: autocast's copy
        (["trainer=torch", "trainer.kl_coefficient=0.1"], [75.1, 30.5, 60.9]),
        (["trainer.name=fsdp", "trainer.data_parallel=8"], [6.9, 30.5, 7.6]),
        (["trainer.name=fsdp", "trainer.data_parallel=8", "trainer.shard_gradients=true"], [6.9, 6.0, 7.6]),
        (["trainer.name=fsdp", "trainer.data_parallel=8", "trainer.shard_ranks=4"], [10.7, 30.5, 15.2]),
        (
            ["trainer.name=megatron", "trainer.tensor_parallel=2", "trainer.data_parallel=4"],
            [7.6, 15.2, 11.4],
        ),
        (
            ["trainer.name=megatron", "trainer.tensor_parallel=2", "trainer.pipeline_parallel=2"],
            [3.8, 7.6, 22.8],
        ),
    ],
    ids=str,
)
def test_a_rank_holds_what_its_trainer_shares_out(model, words, expected):
    assert gigabytes_of(fit_of(model, *words).rank, "weights", "gradients", "optimizer") == expected


def test_recomputed_activations_are_a_fraction_and_long_responses_count(model):
    plain = fit_of(model).rank.activations
    assert fit_of(model, "trainer.recompute_activations=true").rank.activations < plain / 2
    assert fit_of(model, "rollout.max_response_tokens=31744").rank.activations == pytest.approx(2 * plain)


def test_sequences_that_are_not_split_count_whole(model):
    words = ("trainer.name=megatron", "trainer.context_parallel=2", "rollout.max_response_tokens=15360")
    split, automatic, given = (
        fit_of(model, *words, f"trainer.context_parallel_above={above}").rank.activations
        for above in (0, "null", 12288)
    )
    assert automatic == split  # the longest in two parts is as much as the longest that is not split
    assert given == pytest.approx(split * 12288 / 8192)


def test_logits_in_chunks_take_no_more_than_a_chunk(model):
    whole, chunked = (fit_of(model, f"trainer.logits_chunk_tokens={size}").rank.activations for size in ("null", 1024))
    assert whole - chunked == pytest.approx((16384 - 1024) * 152064 * 4 * 4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_attention_scores_that_are_capped_are_kept_in_each_layer_or_in_one_with_recomputation(tmp_path, dtype):
    def activations(cap, *words):
        (tmp_path / "config.json").write_text(json.dumps(QWEN_7B | {"attn_logit_softcapping": cap}))
        lengths = ("data.max_prompt_tokens=1024", "rollout.max_response_tokens=3072")
        words = (f"model.dtype={dtype}", "trainer.max_tokens_per_microbatch=8192", *lengths, *words)
        return fit_of(f"model.path={tmp_path}", *words).rank.activations

    of_layer = 2 * 28 * 4096**2 * 8  # rows x heads x scores of a row x bytes
    assert activations(50.0) - activations(None) == 28 * of_layer
    recomputed = "trainer.recompute_activations=true"
    assert activations(50.0, recomputed) - activations(None, recomputed) == of_layer


def test_every_expert_is_held_and_a_token_is_multiplied_with_some(tmp_path):
    experts = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "head_dim": 128}
    sizes = dict(zip(QWEN_7B, (48, 2048, 32, 4, 6144, 151936), strict=True))

    def shape_of(**changes):
        (tmp_path / "config.json").write_text(json.dumps(sizes | experts | changes))
        return transformer_of(compose([*REAL, f"model.path={tmp_path}", "model.dtype=bfloat16"]).model)

    qwen3 = shape_of()
    assert qwen3.num_weight_bytes == pytest.approx(61.06e9, rel=1e-3)  # Qwen3-30B-A3B's files: 61.06 GB
    assert qwen3.num_multiplied_parameters == pytest.approx(3.03e9, rel=1e-2)
    assert qwen3 == shape_of(num_experts=None, n_routed_experts=128)  # DeepSeek's name
    mixtral = shape_of(num_experts=None, num_local_experts=128, moe_intermediate_size=None, intermediate_size=768)
    assert qwen3.num_parameters == mixtral.num_parameters
    layer = 128 * 3 * 2048 * 768 + 2048 * 128
    for of_two_layers in ({"mlp_only_layers": [0, 1]}, {"first_k_dense_replace": 2}):
        saved = qwen3.num_parameters - shape_of(**of_two_layers).num_parameters
        assert saved == 2 * (layer - 3 * 2048 * 6144)
    assert shape_of(decoder_sparse_step=2).shape.num_dense_layers == 24
    assert shape_of(n_shared_experts=2).num_parameters - qwen3.num_parameters == 48 * 3 * 2048 * 2 * 768


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["engine.name=vllm", "engine.tensor_parallel=8"],
            ["engine.tensor_parallel=8 does not divide the model's 28 attention heads", "1, 2, 4", "=4"],
        ),
        (
            ["trainer.name=megatron", "trainer.tensor_parallel=7"],
            ["trainer.tensor_parallel=7 does not divide the model's 4 key-value heads", "1, 2, 4", "=4"],
        ),
        (
            ["trainer.name=megatron", "trainer.pipeline_parallel=3"],
            ["trainer.pipeline_parallel=3 does not divide the model's 28 layers", "=2"],
        ),
        (
            ["cluster=h800", "trainer.resources.num_gpus=1"],
            ["A rank of trainer=torch needs 136.0 GB", "A GPU has 80.0 GB", "trainer=fsdp"],
        ),
        (
            ["cluster=h800", "cluster.gpu_memory_gb=16", "engine.name=vllm", "engine.resources.num_gpus=1"],
            ["needs 15.3 GB of each GPU by an estimate", "memory_share=0.9", "engine.tensor_parallel"],
        ),
        (
            [*STANDING_BY, "engine.vllm.memory_share=0.96"],
            ["take 76.8 GB of each GPU", "[1, 2, 4] that stand by 3.8 GB", "has 80.0 GB for both", "Lower engine.vllm"],
        ),
    ],
    ids=" ".join,
)
def test_a_model_that_cannot_be_cut_or_does_not_fit_is_refused_with_a_way_out(model, words, said):
    with pytest.raises(UserError) as raised:
        fit_of(model, *words)
    assert all(part in str(raised.value) for part in said), str(raised.value)


def test_engines_that_stand_by_fit_beside_those_in_use(model):
    assert fit_of(model, *STANDING_BY, "engine.vllm.memory_share=0.95")


def test_key_value_heads_are_shared_out_whole_or_copied(tmp_path):
    sizes = QWEN_7B | {"num_attention_heads": 12, "intermediate_size": 1200}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    assert fit_of(f"model.path={tmp_path}", "engine.name=vllm", "engine.tensor_parallel=12")
    with pytest.raises(UserError, match=r"=6 neither divides the model's 4 key-value heads"):
        fit_of(f"model.path={tmp_path}", "engine.name=vllm", "engine.tensor_parallel=6")


def test_a_rank_on_cores_and_a_gpu_that_nobody_knows_are_not_judged(model):
    assert fit_of(model, "cluster=h800").rank.state > 80e9
    assert fit_of(model, "trainer.resources.num_gpus=1", "cluster=slurm").gpu_bytes is None


def test_a_model_without_sizes_is_refused_only_where_ranks_of_megatron_cut_it(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    assert fit_of(f"model.path={tmp_path}") is None
    assert fit_of(f"model.path={tmp_path}", "trainer=megatron") is None
    with pytest.raises(ModelError, match=r"Add them to the file"):
        fit_of(f"model.path={tmp_path}", "trainer=megatron", "trainer.pipeline_parallel=2")


EIGHT = ClusterSize(num_nodes=1, num_cpus=64, num_gpus=8)


def judged(model: str, *words: str) -> list[str]:
    path = model.removeprefix("model.path=")
    maps = ["placement.engine=0-7", "placement.trainer=0-7", "placement.judge=0-1", "engine.num_engines=8"]
    return [
        *(*REAL, model, "model.dtype=bfloat16", "cluster=h800", *maps, "reward=judge"),
        *("reward.judge.num_replicas=2", f"reward.judge.model.path={path}", "engine.name=vllm", "trainer=fsdp"),
        *("trainer.data_parallel=8", "trainer.resources.num_gpus=0", *words),
    ]


def test_a_judge_beside_engines_takes_its_memory_from_theirs(model):
    fit = validate_fit(compose(judged(model)), EIGHT)
    assert fit.judge.weights == pytest.approx(2 * SEVEN_BILLION, rel=1e-3)
    assert fit.judge.needed < 0.3 * 80e9
    streamed = validate_fit(compose(judged(model, "reward.judge.engine=streamed")), EIGHT)
    assert streamed.judge.weights == 0
    with pytest.raises(UserError, match=r"judge of reward.judge.engine=torch needs 1\d\.\d GB[\s\S]*memory_share=0\.1"):
        validate_fit(compose(judged(model, "reward.judge.memory_share=0.1")), EIGHT)
    with pytest.raises(UserError, match=r"An engine[\s\S]*less a judge's 0\.75"):
        validate_fit(compose(judged(model, "reward.judge.memory_share=0.75")), EIGHT)
    with pytest.raises(UserError, match="A rank of trainer=fsdp"):
        validate_fit(compose(judged(model, "reward.judge.memory_share=0.7", "engine.vllm.memory_share=0.95")), EIGHT)


def test_engines_that_stand_by_have_what_those_in_use_and_a_judge_leave(model):
    standing_by = ("system=ours-exact", "engine.degrees=[1,2,4]", "engine.profile=p.json", "system.escalate_tail=true")
    validate_fit(compose(judged(model, *standing_by)), EIGHT)
    with pytest.raises(UserError, match=r"engines take 53\.6 GB of each GPU[\s\S]*A GPU has 56\.0 GB for both"):
        validate_fit(compose(judged(model, *standing_by, "engine.vllm.memory_share=0.97")), EIGHT)
