"""Reads a causal language model from a Hugging Face directory by transformers: whole and finite, or not at all.

Invariant: every weight comes from the directory, and every one of the directory is in the model. A directory that lacks
one is refused, where transformers would fill in random numbers and go on; so is one that has more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from rollpacker.core.errors import ModelError
from rollpacker.data.skeleton import refuse_difference

REFUSALS = (
    *(OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, ImportError),
    SafetensorError,
    StrictDataclassError,
)
"""What transformers raises for files that are missing or broken, and for configurations that are unknown, contradict
themselves or do not fit. The last one, of configurations, cannot be unpickled: it does not come over from an actor."""


def load_causal_model(model_path: Path, dtype: torch.dtype) -> Any:
    """Load the model without dropout into host memory; raises `ModelError`."""
    with _refused_as_model_error(model_path), quiet():
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            model_path, dtype=dtype, local_files_only=True, output_loading_info=True
        )
    refuse_difference(
        model_path, missing=sorted(report["missing_keys"]), unread=sorted(report["unexpected_keys"]), misshapen=[]
    )
    return _with_its_attention(model).eval()


def make_causal_skeleton(model_path: Path, dtype: torch.dtype) -> Any:
    """Build what `load_causal_model` would load without its weights, on the meta device; raises `ModelError`."""
    with _refused_as_model_error(model_path), quiet(), torch.device("meta"):
        config = transformers.AutoConfig.from_pretrained(model_path, local_files_only=True)
        return _with_its_attention(transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)).eval()


def max_positions(config: Any) -> int | None:
    """Return the longest sequence that a model was made for, if its configuration states it."""
    num_positions: int | None = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    return num_positions


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' progress bars and load reports off the terminal, where the run's own progress is."""
    verbosity = transformers_logging.get_verbosity()
    has_bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if has_bars:
            transformers_logging.enable_progress_bar()


def _with_its_attention(model: Any) -> Any:
    """Choose an implementation that caps attention scores where the model does, as Gemma 2: `sdpa` ignores the cap."""
    if getattr(model.config.get_text_config(decoder=True), "attn_logit_softcapping", None) is not None:
        model.set_attn_implementation("eager")
    return model


@contextlib.contextmanager
def _refused_as_model_error(model_path: Path) -> Iterator[None]:
    try:
        yield
    except REFUSALS as error:
        raise ModelError(
            f"{model_path} cannot be loaded as a causal language model: {type(error).__name__}: {error}",
            "A local directory in Hugging Face format with config.json and all weights of a known architecture",
            "Check model.path, or try transformers.AutoModelForCausalLM.from_pretrained on the directory",
        ) from error
