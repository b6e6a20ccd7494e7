"""Small models whose layers can be streamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers

if TYPE_CHECKING:
    from pathlib import Path

    from rollpacker.protocols.rollout import TokenIds

torch.set_num_threads(1)

VOCABULARY = 50
NUM_LAYERS = 6

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}

CONFIGS: dict[str, Any] = {
    "qwen2": lambda: transformers.Qwen2Config(**_SIZES, tie_word_embeddings=False),
    "qwen2-tied": lambda: transformers.Qwen2Config(**_SIZES, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**_SIZES, head_dim=16, tie_word_embeddings=True),
    "llama": lambda: transformers.LlamaConfig(**_SIZES, tie_word_embeddings=False),
    # layers of two kinds, scaled embeddings, logits that are capped after the output layer
    "gemma2": lambda: transformers.Gemma2Config(**_SIZES, head_dim=16, sliding_window=7, final_logit_softcapping=3.0),
    # layers of two sizes
    "deepseek_v3": lambda: transformers.DeepseekV3Config(
        **{**_SIZES, "num_key_value_heads": 4},
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        moe_intermediate_size=16,
        first_k_dense_replace=2,
    ),
}


def save_model(folder: Path, name: str = "qwen2", **changes: Any) -> Path:
    torch.manual_seed(0)
    config = CONFIGS[name]()
    config.update(changes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)  # far from uniform, so that a mistake shows
    model.save_pretrained(folder)
    return folder


def load_plain(folder: Path, dtype: str = "float32") -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()


def make_prompts(*lengths: int) -> list[TokenIds]:
    numbers = np.random.default_rng(0)
    return [numbers.integers(0, VOCABULARY, length).astype(np.int32) for length in lengths]
