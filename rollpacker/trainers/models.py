"""The model that a trainer trains: read from a Hugging Face directory and written back, weights bit for bit."""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors import SafetensorError
from torch.utils.checkpoint import checkpoint

from rollpacker.data.causal_models import load_causal_model, make_causal_skeleton, quiet
from rollpacker.data.weight_files import not_finite
from rollpacker.metrics.files import storage_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

COPIED_FILES = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "tekken.json",
    "*processor_config.json",
)
"""Defaults of generation, and what a tokenizer or a processor of images may consist of: training changes none of them,
so they are copied as they are. Writing a `generation_config.json` would refuse one that reading accepts with a warning.
"""


def load_model(model_path: Path) -> torch.nn.Module:
    """Load in float32 for training without dropout; raises `ModelError` when the directory is not a causal model.

    Dropout is off because the engines sample without it: with it the current policy would be another one. Defaults of
    generation are cleared, for a trainer never generates; `save_model` copies the original ones.
    """
    model = load_causal_model(model_path, torch.float32)
    for name, parameter in model.named_parameters():
        if num_wrong := int((~parameter.isfinite()).sum()):
            raise not_finite(str(model_path), name, num_wrong)
    _clear_generation_defaults(model)
    module: torch.nn.Module = model
    return module


def make_skeleton(model_path: Path) -> torch.nn.Module:
    """Build what `load_model` would load without its weights, on the meta device; raises `ModelError`."""
    model = make_causal_skeleton(model_path, torch.float32)
    _clear_generation_defaults(model)
    module: torch.nn.Module = model
    return module


def save_model(model: Any, model_path: Path, folder: Path, tensors: Mapping[str, Tensor] | None = None) -> None:
    """Write a directory that `AutoModelForCausalLM` and `AutoTokenizer` load, with the tokenizer of `model_path`.

    `tensors` take the place of the model's own, under the names of `named_tensors`. Raises `StorageFailed`.
    """
    with storage_errors(folder):
        with quiet(), safetensors_errors_are_os_errors():
            model.save_pretrained(folder, state_dict=None if tensors is None else dict(tensors))
        (folder / "generation_config.json").unlink(missing_ok=True)
        copy_companions(model_path, folder)


def copy_companions(model_path: Path, folder: Path) -> None:
    """Copy what stands beside weights and `config.json` in a Hugging Face directory: tokenizer, generation defaults."""
    for pattern in COPIED_FILES:
        for source in sorted(model_path.glob(pattern)):
            if source.is_file():
                shutil.copyfile(source, folder / source.name)


@contextlib.contextmanager
def safetensors_errors_are_os_errors() -> Iterator[None]:
    """Safetensors reports a full disk as text; give it its number back."""
    try:
        yield
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        raise OSError(int(code.group(1)) if code else None, str(error)) from error


def decoder_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules that the architecture calls indivisible; of nested ones, a Mamba block and its mixer, the outer."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    inside = {inner for layer in layers for inner in layer.modules() if inner is not layer}
    return [layer for layer in layers if layer not in inside]


def recompute_activations(model: torch.nn.Module) -> None:
    """Keep of each layer's forward pass its input alone; the backward pass computes the rest again.

    Not by transformers' own switch, which works in training mode only, where dropout would be on.
    """
    for layer in decoder_layers(model):
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)


def _clear_generation_defaults(model: Any) -> None:
    """Make the model savable: transformers reads contradicting or misplaced defaults and refuses to write them."""
    defaults = transformers.GenerationConfig()
    model.generation_config = defaults
    own = type(model.config)().to_dict()
    for name in defaults.to_dict():
        # Old directories keep them in config.json, among the keys that make the architecture.
        if name not in own and getattr(model.config, name, None) is not None:
            setattr(model.config, name, None)
