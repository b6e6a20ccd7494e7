"""A policy for decoding, from a local Hugging Face directory.

Invariant: the model is ready to decode (no gradients, no dropout, grouped attention, on this process's device).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import transformers

from rollpacker.core.errors import ModelError
from rollpacker.data.refusals import REFUSALS
from rollpacker.data.skeleton import refuse_difference
from rollpacker.engines.torch.attention import use_grouped_attention

if TYPE_CHECKING:
    from pathlib import Path


def load_model(model_path: Path, dtype: str, device: str | None = None) -> Any:
    """Load a causal language model for inference.

    Args:
        model_path: A local directory in Hugging Face format.
        dtype: Of torch.
        device: None is the GPU that this process sees, else the CPU.

    Raises:
        ModelError: The directory holds no causal language model that transformers can load, or not all of its weights.
    """
    try:
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            model_path, dtype=getattr(torch, dtype), local_files_only=True, output_loading_info=True
        )
    except REFUSALS as error:
        raise ModelError(
            f"{model_path} cannot be loaded as a causal language model: {type(error).__name__}: {error}",
            "A local directory in Hugging Face format: config.json and weights of a known architecture.",
            "Check model.path, or try transformers.AutoModelForCausalLM.from_pretrained on it.",
        ) from error
    refuse_difference(
        model_path, missing=sorted(report["missing_keys"]), unread=sorted(report["unexpected_keys"]), misshapen=[]
    )
    model.requires_grad_(requires_grad=False)
    model.eval()
    model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    use_grouped_attention(model)
    return model
