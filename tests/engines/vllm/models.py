"""Random models that vLLM takes on a processor, with the sizes of the demo's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers

UNDRAWN = 100_000
"""An end token outside the vocabulary, so that responses end by their limit."""


_SIZES: dict[str, Any] = {
    "vocab_size": 207,
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": UNDRAWN,
    "pad_token_id": 0,
}

CONFIGS: dict[str, Callable[..., Any]] = {
    "qwen2": partial(transformers.Qwen2Config, tie_word_embeddings=True),
    # an output layer of its own
    "llama": partial(transformers.LlamaConfig, tie_word_embeddings=False),
    # norms of queries and keys
    "qwen3": partial(transformers.Qwen3Config, head_dim=32, tie_word_embeddings=True),
}


def make_model(seed: int = 0, *, architecture: str = "qwen2", **sizes: int) -> Any:
    torch.manual_seed(seed)
    config = CONFIGS[architecture](**_SIZES | sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)  # far from uniform, so that a mistake shows
    return model
