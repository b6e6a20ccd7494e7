"""A policy for decoding, from a local Hugging Face directory.

Invariant: the model is ready to decode (no gradients, no dropout, grouped attention, on this process's device).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from rollpacker.data.causal_models import load_causal_model
from rollpacker.engines.torch.attention import use_grouped_attention


def load_model(model_path: Path, dtype: str, device: str | None = None) -> Any:
    """Load a causal language model for inference.

    Args:
        model_path: A local directory in Hugging Face format.
        dtype: Of torch.
        device: None is the GPU that this process sees, else the CPU.

    Raises:
        ModelError: The directory holds no causal language model that transformers can load, or not all of its weights.
    """
    model = load_causal_model(model_path, getattr(torch, dtype))
    model.requires_grad_(requires_grad=False)
    model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    use_grouped_attention(model)
    return model


def fix_longrope(model: Any, max_tokens_per_seq: int) -> None:
    """Let a longrope have its long factors throughout if a sequence may pass their limit, as vLLM does.

    transformers takes them for all rows of a pass in which one is that long, and else the short ones, so that a row's
    numbers would depend on the others.
    """
    for module in model.modules():
        if getattr(module, "rope_type", None) == "longrope":
            rope = module.config.rope_parameters
            if max_tokens_per_seq > rope["original_max_position_embeddings"]:
                rope |= {f"short_{key.removeprefix('long_')}": rope[key] for key in rope if key.startswith("long_")}
                frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](module.config)
                module.original_inv_freq.copy_(frequencies)
