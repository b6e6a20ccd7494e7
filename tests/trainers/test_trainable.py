"""A model is trained only where a token's log-probability does not depend on what shares its micro-batch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM

from rollpacker.config.compose import compose
from rollpacker.core.errors import ModelError
from rollpacker.trainers.microbatches import Sample, pack
from rollpacker.trainers.scoring import score_microbatch
from rollpacker.trainers.trainable import check_trainable

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 32
"""Tokens up to which the tiny model's longrope takes its short factors."""
_PHI3 = {"model_type": "phi3", "max_position_embeddings": 256}
LONGROPES = {
    "flat": {**_PHI3, "rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": LIMIT}},
    "as Phi-4-mini": {**_PHI3, "original_max_position_embeddings": LIMIT, "rope_scaling": {"type": "longrope"}},
    "as an older file says it": {**_PHI3, "original_max_position_embeddings": LIMIT, "rope_scaling": {"type": "su"}},
    "of Phi-4-multimodal": {
        **_PHI3,
        "model_type": "phi4_multimodal",
        "original_max_position_embeddings": LIMIT,
        "rope_scaling": {"type": "su"},
    },
    "or this": {**_PHI3, "original_max_position_embeddings": LIMIT, "rope_scaling": {"type": "yarn"}},
    "by layer type": {
        **_PHI3,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default"},
            "full_attention": {"rope_type": "longrope", "original_max_position_embeddings": LIMIT},
        },
    },
    "within a text model": {
        "model_type": "other",
        "text_config": {**_PHI3, "original_max_position_embeddings": LIMIT, "rope_scaling": {"type": "longrope"}},
    },
    "of no longer context": {"max_position_embeddings": LIMIT, "rope_parameters": {"rope_type": "longrope"}},
}


def check(folder: Path, description: dict[str, Any], response: int, *words: str) -> None:
    (folder / "config.json").write_text(json.dumps(description))
    limits = ["data.max_prompt_tokens=8", f"rollout.max_response_tokens={response}"]
    check_trainable(compose([f"model.path={folder}", "data.path=prompts.jsonl", *limits, *words]))


@pytest.mark.parametrize("trainer", ["torch", "fsdp"])
@pytest.mark.parametrize("description", LONGROPES.values(), ids=LONGROPES)
def test_longrope_is_trained_up_to_the_length_at_which_its_frequencies_change(tmp_path, description, trainer):
    check(tmp_path, description, LIMIT - 8, f"trainer={trainer}")
    with pytest.raises(ModelError, match="scales its rotary embedding by longrope") as caught:
        check(tmp_path, description, LIMIT - 7, f"trainer={trainer}")
    assert caught.value.allowed == (
        "data.max_prompt_tokens=8 and rollout.max_response_tokens=25 add up to 33 tokens; at most 32 are trained"
    )


@pytest.mark.parametrize("rope", [{"rope_type": "dynamic", "factor": 2.0}, {"type": "dynamic", "factor": 2.0}])
def test_frequencies_that_change_beyond_positions_that_nobody_states_are_refused(tmp_path, rope):
    """No run passes a model's positions, as far as its config.json states them."""
    llama = {"model_type": "llama", "rope_scaling": rope}
    with pytest.raises(ModelError, match=r"by `dynamic`, and its config\.json does not say"):
        check(tmp_path, llama, 16)
    check(tmp_path, {**llama, "max_position_embeddings": 2048}, 16)


def test_held_out_responses_count_too_since_an_engine_has_one_longest_length(tmp_path):
    evaluation = ["evaluation.path=test.jsonl", "evaluation.max_response_tokens=64"]
    with pytest.raises(ModelError) as caught:
        check(tmp_path, LONGROPES["flat"], 16, *evaluation)
    assert "evaluation.max_response_tokens=64 add up to 72 tokens" in caught.value.allowed
    check(tmp_path, LONGROPES["flat"], 16, *evaluation, "run.num_steps=0")  # nothing is trained


@pytest.mark.parametrize(
    "experts",
    [
        {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2},
        {"model_type": "ernie4_5_moe", "moe_num_experts": 4, "moe_k": 2},
        {"model_type": "aria", "text_config": {"model_type": "aria_text", "moe_num_experts": 4, "moe_topk": 2}},
    ],
    ids=lambda experts: experts["model_type"],
)
def test_what_no_trainer_takes_is_evaluated_all_the_same(tmp_path, experts):
    with pytest.raises(ModelError, match="is a Mixture of Experts"):
        check(tmp_path, experts, 16)
    check(tmp_path, experts, 16, "evaluation.path=test.jsonl", "run.num_steps=0")


@pytest.mark.parametrize("rope", [{"rope_type": "llama3", "factor": 8.0}, {"rope_type": "yarn", "factor": 4.0}, None])
def test_frequencies_that_never_change_are_trained_at_any_length(tmp_path, rope):
    check(tmp_path, {"model_type": "llama", "rope_parameters": rope, "original_max_position_embeddings": LIMIT}, 4096)


def test_megatron_refuses_longrope_that_others_train(tmp_path):
    with pytest.raises(ModelError, match="of model_type phi3") as caught:
        check(tmp_path, LONGROPES["flat"], LIMIT - 8, "trainer=megatron")
    assert "trainer=fsdp" in caught.value.remedy
    with pytest.raises(ModelError, match="longrope"):
        check(tmp_path, LONGROPES["flat"], LIMIT, "trainer=megatron")


def test_up_to_that_length_a_sample_has_the_same_logprobs_in_any_company():
    torch.manual_seed(0)
    config = Phi3Config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        original_max_position_embeddings=LIMIT,
        initializer_range=0.3,
        pad_token_id=0,
        eos_token_id=1,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "factor": 8.0,
            "short_factor": [1.0] * 8,
            "long_factor": [4.0] * 8,
        },
    )
    model = Phi3ForCausalLM(config).eval()
    generator = np.random.default_rng(0)

    def sample(num_response: int) -> Sample:
        return Sample(
            prompt_token_ids=generator.integers(2, 64, 8).astype(np.int32),
            response_token_ids=generator.integers(2, 64, num_response).astype(np.int32),
            behaviour_logprobs=np.zeros(num_response, np.float32),
            advantages_R=np.ones(num_response, np.float32),
        )

    @torch.no_grad()
    def logprobs_of_first(*samples: Sample) -> torch.Tensor:
        (microbatch,) = pack(samples, 512, torch.device("cpu"))
        logprobs = torch.split(score_microbatch(model, microbatch, 1.0).logprobs_N, list(microbatch.num_tokens_B))
        return logprobs[microbatch.rows.index(0)]

    short = sample(LIMIT - 12)
    alone = logprobs_of_first(short)
    torch.testing.assert_close(logprobs_of_first(short, sample(LIMIT - 8)), alone, atol=1e-5, rtol=0)
    assert (logprobs_of_first(short, sample(LIMIT)) - alone).abs().max() > 0.01  # what the check prevents
