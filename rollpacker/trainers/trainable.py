"""Which models the trainers train: read from `config.json` alone, without torch, before anything starts.

Invariant: a model whose computation would differ from the Hugging Face one in anything is refused. Megatron-core knows
Qwen2 and Qwen2.5, Qwen3, Llama 2 to 3.3, with their rotary scaling; dense, full attention. torch and FSDP2 train what
transformers has, but for a Mixture of Experts: its experts lie fused in memory and not in files, so that the names of
its weights are not those that engines load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollpacker.core.errors import ModelError
from rollpacker.data.json_files import read_object
from rollpacker.data.shapes import num_experts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rollpacker.config.schema import RunConfig

FAMILIES = {"qwen2": "Qwen2", "qwen3": "Qwen3", "llama": "Llama"}
"""That Megatron-core knows, by their `model_type`."""
_ALLOWED = "trainer=megatron knows dense Qwen2, Qwen2.5, Qwen3 and Llama models with full attention and no dropout"
_REMEDY = "Use trainer=fsdp, which trains any dense Hugging Face causal language model"


def check_trainable(config: RunConfig) -> None:
    """Raises `ModelError` for a model that the configured trainer does not train."""
    path = config.model.directory
    description = read_object(path / "config.json")
    refuse_experts(path, description)
    if config.trainer.name == "megatron":
        refuse_unknown(path, description)


def refuse_experts(model_path: Path, description: Mapping[str, Any]) -> None:
    """Raises `ModelError` for a Mixture of Experts."""
    if num_experts := num_experts_of(description):
        raise ModelError(
            f"The model in {model_path} is a Mixture of Experts, {num_experts} in a layer",
            "Trainers train dense models; `rollpacker plan` and modelled runs take experts, too",
            "Choose a dense model",
        )


def refuse_unknown(model_path: Path, description: Mapping[str, Any]) -> None:
    """Raises `ModelError` when Megatron-core would compute something else than transformers.

    Args:
        model_path: For the message.
        description: What `config.json` holds, or transformers made of it.
    """
    kind = description.get("model_type")
    problem = f"is of model_type {kind}" if kind not in FAMILIES else next(_deviations(description), None)
    if problem is not None:
        raise ModelError(f"The model in {model_path} {problem}", _ALLOWED, _REMEDY)


def _deviations(description: Mapping[str, Any]) -> Iterator[str]:
    """What of a model of a known family Megatron-core would not compute as transformers does."""
    rope = description.get("rope_parameters") or description.get("rope_scaling")
    rope = rope if isinstance(rope, dict) else {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    partly = rope.get("partial_rotary_factor", description.get("partial_rotary_factor"))
    activation = description.get("hidden_act", "silu")
    for is_so, problem in (
        (rope_type not in {"default", "llama3"}, f"scales its rotary embedding by {rope_type}"),
        (partly not in {None, 1}, "rotates a part of each head only"),
        (description.get("use_sliding_window"), "attends within a sliding window"),
        (activation != "silu", f"activates with {activation}"),
        (description["model_type"] != "qwen2" and description.get("attention_bias"), "has biases in attention"),
        (description.get("mlp_bias"), "has biases in its feed-forward layers"),
        (description.get("quantization_config") is not None, "is quantized"),
    ):
        if is_so:
            yield problem
