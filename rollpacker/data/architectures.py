"""The tensors of the usual dense decoders, as their `config.json` alone gives them.

Invariant: the tensors that are given are those that transformers reads, name by name and shape by shape; a test holds
them against its models. A configuration with anything beyond the usual gets no answer here, and transformers is asked
(`rollpacker.data.skeleton`), which takes seconds: Llama, Mistral, Qwen2 and Qwen3 with all their usual keys need not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Shapes = dict[str, tuple[int, ...]]

EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


class _Family(NamedTuple):
    architecture: str
    has_qkv_bias: bool = False
    has_qk_norm: bool = False


_FAMILIES = {
    "llama": _Family("LlamaForCausalLM"),
    "mistral": _Family("MistralForCausalLM"),
    "qwen2": _Family("Qwen2ForCausalLM", has_qkv_bias=True),
    "qwen3": _Family("Qwen3ForCausalLM", has_qk_norm=True),
}

_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_number(value: Any) -> bool:
    return type(value) in {int, float} and math.isfinite(value) and value >= 0


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_no(value: Any) -> bool:
    return value is None or value is False


def _is_token(value: Any) -> bool:
    return value is None or type(value) is int or (isinstance(value, list) and all(type(one) is int for one in value))


def _is_rope(value: Any) -> bool:
    """Rotary embeddings, plain or as Llama 3 scales them."""
    if value is None:
        return True
    if not isinstance(value, dict) or not all(_is_number(value[key]) for key in value.keys() - {"rope_type"}):
        return False
    kind, keys = value.get("rope_type", "default"), value.keys() - {"rope_type", "rope_theta"}
    return (kind == "default" and not keys) or (kind == "llama3" and keys == _LLAMA3_ROPE)


_LLAMA3_ROPE = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}

_USUAL: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys((*_SIZES, "num_key_value_heads", "max_position_embeddings"), _is_count),
    **dict.fromkeys(("initializer_range", "attention_dropout", "rope_theta", "max_window_layers"), _is_number),
    **dict.fromkeys(("tie_word_embeddings", "use_cache"), _is_bool),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_sliding_window", "use_mrope"), _is_no),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), _is_token),
    **dict.fromkeys(("architectures", "model_type", "transformers_version", "layer_types"), lambda _value: True),
    **dict.fromkeys(("dtype", "torch_dtype"), lambda value: value in {None, "float32", "bfloat16", "float16"}),
    "hidden_act": lambda value: value == "silu",
    "pretraining_tp": lambda value: value == 1,
    "rms_norm_eps": lambda value: _is_number(value) and 0 < value < 1,
    **dict.fromkeys(("rope_parameters", "rope_scaling"), _is_rope),
    **dict.fromkeys(("head_dim", "sliding_window"), lambda value: value is None or _is_count(value)),
}
"""What of a configuration is known here, and which values of it."""


def known_tensors(config: Mapping[str, Any]) -> Shapes | None:
    """Give the name and shape of each tensor, tied ones twice; None where only transformers knows."""
    family = _FAMILIES.get(config["model_type"])
    return _tensors(config, family) if family is not None and _is_usual(config, family) else None


def _is_usual(config: Mapping[str, Any], family: _Family) -> bool:
    needed = {
        *_SIZES,
        "num_key_value_heads",
        "rms_norm_eps",
        "hidden_act",
    }
    return (
        config.get("architectures") == [family.architecture]
        and needed <= config.keys()
        and not (family.has_qk_norm and config.get("head_dim") is None)
        and all(key in _USUAL and _USUAL[key](value) for key, value in config.items())
        and config.get("layer_types") in (None, ["full_attention"] * config["num_hidden_layers"])
        and config["num_attention_heads"] % config["num_key_value_heads"] == 0
        and (config.get("head_dim") is not None or config["hidden_size"] % config["num_attention_heads"] == 0)
        and _head_size(config) % 2 == 0
    )


def _head_size(config: Mapping[str, Any]) -> int:
    size: int = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return size


def _tensors(config: Mapping[str, Any], family: _Family) -> Shapes:
    words, hidden, inner, num_layers, heads = (config[key] for key in _SIZES)
    head = _head_size(config)
    layer: Shapes = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "self_attn.o_proj.weight": (hidden, heads * head),
    }
    for letter, num_heads in (("q", heads), ("k", config["num_key_value_heads"]), ("v", config["num_key_value_heads"])):
        layer[f"self_attn.{letter}_proj.weight"] = (num_heads * head, hidden)
        if family.has_qkv_bias:
            layer[f"self_attn.{letter}_proj.bias"] = (num_heads * head,)
        if family.has_qk_norm and letter != "v":
            layer[f"self_attn.{letter}_norm.weight"] = (head,)
    shapes = {EMBEDDING: (words, hidden), "model.norm.weight": (hidden,), OUTPUT: (words, hidden)}
    for index in range(num_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes
