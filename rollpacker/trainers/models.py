"""Reads a causal language model from a Hugging Face directory and writes it back, weights bit for bit.

Invariant: every weight comes from the directory. A directory that lacks one is refused, where transformers would fill
in random numbers and go on.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from rollpacker.core.errors import ModelError
from rollpacker.metrics.files import storage_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
)
"""What a tokenizer may consist of; copied as they are, so that no library version rewrites them."""


def load_model(model_path: Path) -> torch.nn.Module:
    """Load in float32 for training without dropout; raises `ModelError` when the directory is not a causal model.

    Dropout is off because the engines sample without it: with it the current policy would be another one.
    """
    try:
        with _quiet():
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                model_path,
                dtype=torch.float32,
                attn_implementation="sdpa",
                local_files_only=True,
                output_loading_info=True,
            )
    # What transformers and safetensors raise for missing, broken, unknown and misshapen files, in that order.
    except (OSError, ValueError, KeyError, SafetensorError, RuntimeError, ImportError) as error:
        raise _unusable(model_path, f"{type(error).__name__}: {error}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise _unusable(model_path, f"{len(missing)} weights are missing, such as {missing[0]}")
    module: torch.nn.Module = model
    return module.eval()


def save_model(model: Any, model_path: Path, folder: Path) -> None:
    """Write a directory that `AutoModelForCausalLM` and `AutoTokenizer` load, with the tokenizer of `model_path`.

    Raises `StorageFailed`.
    """
    with storage_errors(folder):
        with _quiet(), _safetensors_errors_are_os_errors():
            model.save_pretrained(folder)
        for pattern in TOKENIZER_FILES:
            for source in sorted(model_path.glob(pattern)):
                if source.is_file():
                    shutil.copyfile(source, folder / source.name)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
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


@contextlib.contextmanager
def _safetensors_errors_are_os_errors() -> Iterator[None]:
    """Safetensors reports a full disk as text; give it its number back."""
    try:
        yield
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        raise OSError(int(code.group(1)) if code else None, str(error)) from error


def _unusable(model_path: Path, reason: str) -> ModelError:
    return ModelError(
        f"{model_path} cannot be loaded as a causal language model: {reason}",
        "A local directory in Hugging Face format with config.json and all weights",
        "Check model.path, or try transformers.AutoModelForCausalLM.from_pretrained on the directory",
    )
