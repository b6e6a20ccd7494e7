"""A policy for decoding, from a local Hugging Face directory.

Invariant: the model is ready to decode (no gradients, no dropout, grouped attention, on this process's device).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

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
