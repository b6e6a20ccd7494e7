"""A policy for decoding, from a local Hugging Face directory: model, and which tokens end a response.

Invariant: the model is ready to decode (no gradients, no dropout, grouped attention, on this process's device).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors import SafetensorError

from rollpacker.core.errors import ModelError
from rollpacker.engines.torch.attention import use_grouped_attention

if TYPE_CHECKING:
    from pathlib import Path


def load_model(model_path: Path, dtype: str) -> Any:
    """Load a causal language model for inference, on the GPU that this process sees, else on the CPU.

    Raises:
        ModelError: The directory holds no causal language model that transformers can load.
    """
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            model_path, dtype=getattr(torch, dtype), local_files_only=True
        )
    # what transformers and safetensors raise for missing, unknown, broken and misshapen files
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelError(
            f"{model_path} cannot be loaded as a causal language model: {type(error).__name__}: {error}",
            "A local directory in Hugging Face format: config.json and weights of a known architecture.",
            "Check model.path, or try transformers.AutoModelForCausalLM.from_pretrained on it.",
        ) from error
    model.requires_grad_(requires_grad=False)
    model.eval()
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    use_grouped_attention(model)
    return model


def end_tokens(model: Any, model_path: Path) -> tuple[int, ...]:
    """Every token that the model's generation config, its config or its tokenizer calls the end, ascending.

    Chat models end a turn by another token than a text; their directories name both, in different files.

    Raises:
        ModelError: None of them names one, so that every response would run into the length limit.
    """
    named = [getattr(model.generation_config, "eos_token_id", None), getattr(model.config, "eos_token_id", None)]
    if (model_path / "tokenizer_config.json").is_file() or (model_path / "tokenizer.json").is_file():
        named.append(transformers.AutoTokenizer.from_pretrained(model_path, local_files_only=True).eos_token_id)
    tokens: set[int] = set()
    for name in named:
        tokens.update([] if name is None else [name] if isinstance(name, int) else name)
    if not tokens:
        raise ModelError(
            f"{model_path} names no end-of-sequence token.",
            "eos_token_id in generation_config.json or config.json, or eos_token in tokenizer_config.json.",
            "Add it to one of them.",
        )
    return tuple(sorted(tokens))
