"""A policy for decoding, from a local Hugging Face directory.

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
