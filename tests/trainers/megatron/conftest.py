"""Tiny models of every shape that Megatron-core knows here, and two processes that train them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.trainers.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SHAPE: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # Of head_dim's four frequencies one stays, one lies in between and two are scaled.
    "original_max_position_embeddings": 32,
}
MODELS: dict[str, tuple[Any, Any]] = {
    "qwen2-tied": (Qwen2ForCausalLM, Qwen2Config(vocab_size=24, tie_word_embeddings=True, **_SHAPE)),
    "qwen2-untied": (Qwen2ForCausalLM, Qwen2Config(vocab_size=24, tie_word_embeddings=False, **_SHAPE)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(vocab_size=24, tie_word_embeddings=True, head_dim=8, **_SHAPE)),
    # Two ranks cannot share 25 tokens equally.
    "llama": (
        LlamaForCausalLM,
        LlamaConfig(vocab_size=25, tie_word_embeddings=False, head_dim=8, rope_parameters=_LLAMA3, **_SHAPE),
    ),
}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories by name: random weights, norms and biases among them, in float32, one in several files."""
    folder = tmp_path_factory.mktemp("megatron_models")
    paths = {}
    for seed, (name, (architecture, config)) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        model = architecture(config)
        for key, parameter in model.named_parameters():
            if key.endswith(("norm.weight", ".bias")):
                torch.nn.init.normal_(parameter, mean=1.0 if "norm" in key else 0.0, std=0.3)
        paths[name] = folder / name
        model.save_pretrained(paths[name], max_shard_size="8KB" if name == "qwen3" else "5GB")
    return paths


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Two processes."""
    processes = Ranks(2, ["rollpacker.trainers.megatron.policy"])
    yield processes
    processes.close()


@pytest.fixture(scope="session")
def bench_of() -> Any:
    """`Bench` of a model's directory."""
    from tests.trainers.conftest import Bench

    return lambda path: Bench(model_path=path)
