"""Random models that vLLM takes on a processor, with the sizes of the demo's, and engines that serve them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from rollpacker.config.sections.engine import EngineSection, VllmSection
from rollpacker.core.ids import EngineId
from rollpacker.engines.vllm.start import start_vllm

if TYPE_CHECKING:
    from rollpacker.engines.vllm.engine import VllmEngine

MAX_TOKENS = 512
NUM_SLOTS = 32

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
}


def make_model(seed: int = 0, *, architecture: str = "qwen2", **sizes: int) -> Any:
    torch.manual_seed(seed)
    config = CONFIGS[architecture](**_SIZES | sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)  # far from uniform, so that a mistake shows
    return model


def section(*, num_slots: int = NUM_SLOTS, **keys: Any) -> EngineSection:
    """Settings with 2,048 tokens of cache: enough for the tests, and too few for all slots at full length."""
    vllm = VllmSection(kv_cache_mb=1, max_num_batched_tokens=MAX_TOKENS)
    return EngineSection(max_num_seqs=num_slots, vllm=vllm, **keys)


@asynccontextmanager
async def running(
    folder: Path, settings: EngineSection | None = None, *, keeps_requests: bool = False
) -> AsyncIterator[VllmEngine]:
    engine = start_vllm(
        EngineId("engine-0"), folder, settings or section(), MAX_TOKENS, "float32", keeps_requests=keeps_requests
    )
    try:
        yield engine
    finally:
        await engine.close()
