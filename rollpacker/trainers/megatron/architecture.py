"""What Megatron-core must know of a model, from its Hugging Face configuration.

Invariant: a model whose computation would differ from the Hugging Face one in anything is refused before a weight is
read (`rollpacker.trainers.trainable`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn.functional import silu

from rollpacker.core.errors import ModelError
from rollpacker.data.causal_models import REFUSALS
from rollpacker.trainers.trainable import refuse_unknown

if TYPE_CHECKING:
    from pathlib import Path

    from rollpacker.config.sections.trainer import TrainerSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model's shape."""

    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_key_heads: int
    head_size: int
    vocabulary_size: int
    max_positions: int
    norm_epsilon: float
    rotary_frequencies: tuple[float, ...]
    """Of the pairs of a head's dimensions, in radians per position."""
    has_qkv_bias: bool
    has_qk_norm: bool
    is_tied: bool
    """The output layer is the embedding."""

    def padded_vocabulary_size(self, num_parts: int) -> int:
        """The next multiple of the ranks that share the vocabulary."""
        return -(-self.vocabulary_size // num_parts) * num_parts


def read_architecture(model_path: Path) -> Architecture:
    """Read `config.json`; raises `ModelError` when Megatron-core would compute something else."""
    try:
        config = transformers.AutoConfig.from_pretrained(model_path, local_files_only=True)
    except REFUSALS as error:
        raise ModelError(
            f"{model_path}/config.json cannot be read: {type(error).__name__}: {error}",
            "A local directory in Hugging Face format",
            "Check model.path",
        ) from error
    refuse_unknown(model_path, config.to_dict())
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    return Architecture(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        ffn_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_key_heads=config.num_key_value_heads,
        head_size=head_size,
        vocabulary_size=config.vocab_size,
        max_positions=config.max_position_embeddings,
        norm_epsilon=config.rms_norm_eps,
        rotary_frequencies=_scaled_frequencies(config)
        if rope["rope_type"] == "llama3"
        else _frequencies(rope["rope_theta"], head_size),
        has_qkv_bias=config.model_type == "qwen2",
        has_qk_norm=config.model_type == "qwen3",
        is_tied=bool(config.tie_word_embeddings),
    )


def transformer_config(architecture: Architecture, section: TrainerSection, dtype: torch.dtype) -> TransformerConfig:
    """Give Megatron-core's configuration of a model whose sizes the degrees of `section` divide."""
    recompute: dict[str, Any] = {}
    if section.recompute_activations:
        recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return TransformerConfig(
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        ffn_hidden_size=architecture.ffn_size,
        num_attention_heads=architecture.num_heads,
        num_query_groups=architecture.num_key_heads,
        kv_channels=architecture.head_size,
        normalization="RMSNorm",
        layernorm_epsilon=architecture.norm_epsilon,
        gated_linear_unit=True,
        activation_func=silu,
        add_bias_linear=False,
        add_qkv_bias=architecture.has_qkv_bias,
        qk_layernorm=architecture.has_qk_norm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=section.tensor_parallel,
        pipeline_model_parallel_size=section.pipeline_parallel,
        context_parallel_size=section.context_parallel,
        # Every weight is read from a file. (Told to initialize nothing, Megatron-core would also forget to mark which
        # parameters are split, and leave parts of them out of the gradient's norm.)
        init_method=_leave,
        output_layer_init_method=_leave,
        embedding_init_method=_leave,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        # Micro-batches differ in length, so pipeline stages tell each other how long the next one is.
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",  # noqa: S106  # asked for by the line above, also without experts
        # The loss is a sum: gradients are summed over micro-batches and ranks, and never divided.
        calculate_per_token_loss=True,
        deallocate_pipeline_outputs=True,
        batch_p2p_comm=False,
        # Without Transformer Engine and Apex there are no fused kernels.
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        apply_rope_fusion=False,
        **recompute,
    )


def _leave(_: torch.Tensor) -> None:
    """Initialize nothing."""


def _frequencies(base: float, head_size: int) -> tuple[float, ...]:
    """RoFormer (arXiv 2104.09864), equation 15."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
    return tuple((1.0 / base**exponents).tolist())


def _scaled_frequencies(config: Any) -> tuple[float, ...]:
    """By transformers itself: Megatron-core's own scaling has fixed constants."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    return tuple(frequencies.tolist())
