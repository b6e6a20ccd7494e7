"""Random models that vLLM takes on a processor, with the shape of the demo's."""

from __future__ import annotations

from typing import Any

import torch
import transformers

UNDRAWN = 100_000
"""An end token outside the vocabulary, so that responses end by their limit."""


def make_model(seed: int = 0, *, num_heads: int = 2) -> Any:
    torch.manual_seed(seed)
    config = transformers.Qwen2Config(
        vocab_size=207,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=num_heads,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=UNDRAWN,
        pad_token_id=0,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)  # far from uniform, so that a mistake shows
    return model
