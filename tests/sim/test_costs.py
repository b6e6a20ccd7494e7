"""Sizes agree with what is published, and times follow from sizes and peaks."""

import dataclasses
import json

import pytest

from rollpacker.config.compose import compose
from rollpacker.core.errors import ConfigError, ModelError
from rollpacker.data.shapes import Transformer, transformer_of
from rollpacker.sim.costs import EngineCosts, TrainerCosts, weight_transfer_s
from rollpacker.sim.plan import plan_cluster
from tests.sim.clusters import SMALL, hardware

PUBLISHED = {
    "qwen2.5-7b": (7.61e9, 57_344),
    "qwen2.5-14b": (14.7e9, 196_608),
    "qwen2.5-32b": (32.5e9, 262_144),
    "qwen3-8b": (8.2e9, 147_456),
}
"""Parameters from the model cards; KV bytes per token in bf16 from shared knowledge of the paper's setup."""


def model_of(name: str) -> Transformer:
    return transformer_of(compose([f"model={name}", "backend=sim", "run.dir=x"]).model)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shape_gives_the_published_parameters_and_kv_bytes(name):
    num_parameters, kv_bytes = PUBLISHED[name]
    model = model_of(name)
    assert model.num_parameters == pytest.approx(num_parameters, rel=0.01)
    assert model.kv_bytes_per_token == kv_bytes


def test_a_shape_is_read_from_a_model_directory(tmp_path):
    sizes = {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 1000,
    }
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    config = compose([f"model.path={tmp_path}", "backend=sim", "model.dtype=bfloat16", "run.dir=x"])
    assert transformer_of(config.model) == SMALL
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="does not give the sizes"):
        transformer_of(config.model)


def engine(name="qwen2.5-7b", tensor_parallel=1, **changes) -> EngineCosts:
    return EngineCosts(model=model_of(name), hardware=hardware(**changes), tensor_parallel=tensor_parallel)


def test_a_small_batch_takes_the_time_to_read_the_weights_and_a_large_one_that_of_the_matrix_work():
    costs = engine(step_overhead_s=0)
    weights_s = costs.model.num_weight_bytes / (3350e9 * 0.8)
    assert costs.pass_s(1) == costs.pass_s(64) == pytest.approx(weights_s)
    assert costs.pass_s(8192) == pytest.approx(2 * costs.model.num_multiplied_parameters * 8192 / (989e12 * 0.6))


def test_tensor_parallelism_shortens_a_pass_by_less_than_its_degree():
    one, two = engine("qwen2.5-32b"), engine("qwen2.5-32b", tensor_parallel=2)
    assert one.pass_s(1) / 2 < two.pass_s(1) < one.pass_s(1)
    assert two.num_kv_tokens > 2 * one.num_kv_tokens  # the weights are stored once


def test_a_draft_token_takes_half_of_what_a_sequence_takes_beside_its_forward_work():
    costs = engine(sequence_overhead_s=1e-3, draft_overhead_s=0)
    assert costs.draft_pass_s(8, 4) - costs.forward_s(8 * 5) == pytest.approx(8 * 1e-3 * (1 + 4 / 2))


def test_an_all_reduce_takes_ten_microseconds_however_fast_its_links_are():
    one, two = (engine(tensor_parallel=degree, step_overhead_s=0, nvlink_gb_per_s=1e9) for degree in (1, 2))
    assert two.pass_s(1) - one.pass_s(1) / 2 == pytest.approx(2 * 28 * 1e-5, rel=1e-3)  # two for each of 28 layers


def test_gpus_beyond_the_number_of_kv_heads_hold_copies_of_them():
    two, four, eight = (engine("qwen3-30b-a3b", tensor_parallel=degree) for degree in (2, 4, 8))
    assert four.model.shape.num_kv_heads == 4
    assert four.kv_read_s == pytest.approx(two.kv_read_s / 2)
    assert eight.kv_read_s == pytest.approx(four.kv_read_s)
    room = 80e9 * 0.9 - eight.model.num_weight_bytes / 8
    assert eight.num_kv_tokens == pytest.approx(room / (eight.model.kv_bytes_per_token / 4), rel=1e-4)


def test_a_latent_is_cached_instead_of_heads_and_every_gpu_of_an_engine_holds_it(tmp_path):
    deepseek_v2_lite = {
        "num_hidden_layers": 27,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "intermediate_size": 10944,
        "vocab_size": 102400,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(deepseek_v2_lite))
    words = ["backend=sim", f"model.path={tmp_path}", "model.dtype=bfloat16", "run.dir=x"]
    model = transformer_of(compose(words).model)
    assert model.kv_bytes_per_token == 27 * 576 * 2
    assert model.num_parameters == pytest.approx(15.7e9, rel=0.01)  # its model card
    one, four = (EngineCosts(model=model, hardware=hardware(), tensor_parallel=degree) for degree in (1, 4))
    assert four.kv_read_s == one.kv_read_s


def test_a_pass_reads_the_experts_that_its_tokens_are_sent_to_and_all_of_them_when_there_are_many():
    costs = engine("qwen3-30b-a3b", step_overhead_s=0)
    shape, rate = costs.model.shape, 3350e9 * 0.8
    expert_bytes = shape.num_layers * 3 * shape.hidden_size * shape.expert_size * 2
    without = costs.model.num_weight_bytes - shape.num_experts * expert_bytes
    assert (shape.num_experts, shape.num_active_experts) == (128, 8)
    assert costs.forward_s(1) == pytest.approx((without + 8 * expert_bytes) / rate)
    assert costs.forward_s(2) == pytest.approx((without + (8 + 8 * 120 / 128) * expert_bytes) / rate)
    assert costs.forward_s(300) == pytest.approx(costs.model.num_weight_bytes / rate)


def test_prefill_in_chunks_does_the_attention_of_the_whole():
    costs = engine()
    whole = costs.prefill_attention_s(0, 5000)
    assert costs.prefill_attention_s(0, 1200) + costs.prefill_attention_s(1200, 5000) == pytest.approx(whole)


def trainer(num_gpus=16, tp=1, pp=1, cp=1, **changes) -> TrainerCosts:
    return TrainerCosts(
        model=model_of("qwen2.5-7b"),
        hardware=hardware(**changes),
        num_gpus=num_gpus,
        num_nodes=-(-num_gpus // 8),
        tensor_parallel=tp,
        pipeline_parallel=pp,
        context_parallel=cp,
        max_tokens_per_microbatch=16384,
    )


def test_a_training_step_is_three_forward_passes_of_the_fullest_replica():
    costs = trainer(num_gpus=2)
    model = costs.model
    flops = 3 * (model.forward_flops(4000) + model.attention_flops(0, 4000))
    assert costs.passes_s([4000, 1000, 1000]) == pytest.approx(flops / (989e12 * 0.4))


def test_twice_the_gpus_train_a_large_batch_in_half_the_time():
    lengths = [1000] * 512
    assert trainer(num_gpus=32).passes_s(lengths) == pytest.approx(trainer(num_gpus=16).passes_s(lengths) / 2)


def test_a_pipeline_idles_while_it_fills():
    lengths = [1000] * 64
    assert trainer(pp=2).passes_s(lengths) > trainer(cp=2).passes_s(lengths)


def test_short_sequences_that_are_not_split_cost_their_overhead_on_one_gpu_of_a_replica():
    lengths = [1000] * 256 + [16000] * 16
    split = trainer(cp=4, training_sequence_overhead_s=0.1)
    by_length = dataclasses.replace(split, whole_up_to=4000)
    assert split.passes_s(lengths) - by_length.passes_s(lengths) == pytest.approx((64 - 16) * 0.1)
    assert dataclasses.replace(split, whole_up_to=500).passes_s(lengths) == split.passes_s(lengths)


def test_a_sequence_that_would_keep_one_gpu_busy_while_others_wait_is_split():
    costs = trainer(num_gpus=4, cp=4)
    assert dataclasses.replace(costs, whole_up_to=10**6).passes_s([8000] * 3) == costs.passes_s([8000] * 3)


def test_gradients_cross_the_network_only_when_the_replicas_do():
    assert trainer(num_gpus=8, tp=8).update_s() == 0
    assert trainer(num_gpus=16).update_s() > trainer(num_gpus=8).update_s() > 0


def test_a_ring_over_the_replicas_crosses_a_node_s_link_once_for_each_shard_of_the_gradients():
    one_shard, two_shards, two_stages = (trainer(num_gpus=16, **degrees) for degrees in ({}, {"tp": 2}, {"pp": 2}))
    num_bytes = one_shard.model.num_parameters * 4
    rate = 50e9 * 0.7
    assert one_shard.update_s() == pytest.approx(2 * 15 / 16 * num_bytes / rate)
    assert two_shards.update_s() == pytest.approx(2 * 7 / 8 * (num_bytes / 2) / (rate / 2))
    # stages lie on nodes of their own, and sequences that are split over GPUs are summed over these, too
    assert two_stages.update_s() == pytest.approx(2 * 7 / 8 * (num_bytes / 2) / (200e9 * 0.7))
    assert trainer(num_gpus=16, tp=2, cp=2).update_s() == two_shards.update_s()


def test_weights_that_lie_on_other_nodes_cross_the_network():
    model = model_of("qwen2.5-7b")
    one_node, two_nodes, many = (
        weight_transfer_s(model, hardware(), share_elsewhere=share, tensor_parallel=1) for share in (0, 1 / 2, 15 / 16)
    )
    assert two_nodes - one_node == pytest.approx(model.num_weight_bytes / 2 / (50e9 * 0.7))
    assert two_nodes < many < one_node + model.num_weight_bytes / (50e9 * 0.7)


def test_a_model_that_leaves_no_room_for_one_sequence_is_refused():
    words = ["backend=sim", "model=qwen2.5-32b", "hardware=a100-40g", "run.dir=x"]
    with pytest.raises(ConfigError, match=r"65\.5 GB of weights in 36\.0 GB \(hardware\.memory_share of ") as caught:
        plan_cluster(compose(words), needs_judge=False)
    assert "engine.tensor_parallel" in caught.value.remedy
    larger = [*words, "engine.tensor_parallel=4"]
    assert plan_cluster(compose(larger), needs_judge=False).gpus.number == 8
    with pytest.raises(ConfigError, match=r"An engine of elastic\.tensor_parallel=1 with 65\.5 GB") as caught:
        plan_cluster(compose([*larger, "elastic=sim", "elastic.tensor_parallel=1"]), needs_judge=False)
    assert "Raise elastic.tensor_parallel" in caught.value.remedy


def test_a_degree_that_does_not_divide_the_model_is_refused_and_no_planner_changes_to_it():
    words = ["backend=sim", "model=qwen2.5-7b", "hardware=h800", "run.dir=x", "engine.num_engines=2"]
    with pytest.raises(ConfigError, match=r"engine\.tensor_parallel=8 does not divide the model's 28 attention heads"):
        plan_cluster(compose([*words, "engine.tensor_parallel=8"]), needs_judge=False)
    with pytest.raises(ConfigError, match=r"elastic\.tensor_parallel=8 does not divide"):
        plan_cluster(compose([*words, "elastic=sim", "elastic.tensor_parallel=8"]), needs_judge=False)
    narrow = compose([*words, "engine.tensor_parallel=4", "system=planner", "model.shape.num_kv_heads=3"])
    with pytest.raises(ConfigError, match="3 key-value heads"):
        plan_cluster(narrow, needs_judge=False)
    planned = [*words, "system=planner", "engine.num_engines=8", "model.shape.num_heads=12"]
    by_kv_heads = {number: compose([*planned, f"model.shape.num_kv_heads={number}"]) for number in (3, 4)}
    assert [list(plan_cluster(each, needs_judge=False).engines) for each in by_kv_heads.values()] == [[1], [1, 2, 4]]


def test_a_judge_beside_the_engines_takes_nothing_from_rollout_workers():
    words = [
        "backend=sim",
        "model=qwen2.5-7b",
        "hardware=h800",
        "run.dir=x",
        "elastic=sim",
        "reward.judge.placement=shared",
    ]
    alone, beside = (plan_cluster(compose(words), needs_judge=needs_judge) for needs_judge in (False, True))
    assert beside.member == alone.member
    assert beside.engines[1].num_kv_tokens < alone.engines[1].num_kv_tokens
