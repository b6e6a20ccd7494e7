"""A causal language model from a local Hugging Face directory, in host memory, with its decoder layers told apart.

Invariant: every weight comes from the directory, and none of them touches the accelerator here.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from rollpacker.core.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def load_on_host(model_path: Path, dtype: str) -> Any:
    """Load for inference on the CPU; raises `ModelError` when the directory is no complete causal model."""
    try:
        with _no_progress_bar():
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                model_path, dtype=getattr(torch, dtype), local_files_only=True, output_loading_info=True
            )
    # what transformers and safetensors raise for missing, unknown, broken and misshapen files
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise _unusable(model_path, f"{type(error).__name__}: {error}") from error
    if missing := sorted(report["missing_keys"]):
        raise _unusable(model_path, f"{len(missing)} weights are missing, such as {missing[0]}")
    model.requires_grad_(requires_grad=False)
    return model.eval()


def decoder_layers(model: Any) -> list[torch.nn.Module]:
    """The decoder's layers, in their order.

    Raises:
        ModelError: It has none that can be moved one by one: no list of them, or layers that share weights with each
            other or with the rest.
    """
    config = model.config.get_text_config(decoder=True)
    num_layers = config.num_hidden_layers
    lists = [
        child
        for child in model.get_decoder().children()
        if isinstance(child, torch.nn.ModuleList) and len(child) == num_layers
    ]
    if len(lists) != 1:
        raise _not_streamable(config, f"its decoder has {len(lists)} lists of {num_layers} layers")
    layers = list(lists[0])
    owners: dict[int, set[object]] = {}
    inside = {module: index for index, layer in enumerate(layers) for module in layer.modules()}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(inside.get(module, "the rest"))
    if any(len(sharing) > 1 for sharing in owners.values()):
        raise _not_streamable(config, "its layers share weights")
    return layers


@contextlib.contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Keep transformers' bar off the terminal, where others report."""
    has_bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if has_bar:
            transformers_logging.enable_progress_bar()


def _unusable(model_path: Path, reason: str) -> ModelError:
    return ModelError(
        f"{model_path} cannot be loaded as a causal language model: {reason}",
        "A local directory in Hugging Face format: config.json and all weights of a known architecture.",
        "Check reward.judge.model.path, or try transformers.AutoModelForCausalLM.from_pretrained on it.",
    )


def _not_streamable(config: Any, reason: str) -> ModelError:
    return ModelError(
        f"The layers of a {config.model_type} model cannot be streamed: {reason}.",
        "A decoder-only model with one list of layers that own their weights, such as Qwen2, Qwen3 or Llama.",
        "Choose reward.judge.engine=torch or vllm for it.",
    )
