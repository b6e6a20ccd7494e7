"""Builds this rank's part of the model, empty, and runs it.

The layers are Megatron-core's own without Transformer Engine, whatever is installed, so that every machine computes
alike; attention is `PackedAttention`. Only positions that predict response tokens reach the output layer: a vocabulary
of logits for every prompt token would be the largest tensor of all.

Shapes: L positions of this rank, n those that are scored, H width of the model, V columns of the vocabulary here.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build

from rollpacker.trainers.megatron.attention import PackedAttention

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig
    from torch import Tensor

    from rollpacker.trainers.megatron.architecture import Architecture
    from rollpacker.trainers.megatron.packing import PackedRows


def build_model(architecture: Architecture, config: TransformerConfig) -> GPTModel:
    """Return this rank's layers on its accelerator; nothing has filled their memory."""
    with warnings.catch_warnings():
        # That Apex is not installed is known here.
        warnings.simplefilter("ignore")
        layer = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=architecture.has_qk_norm)
    layer.submodules.self_attention.submodules.core_attention = PackedAttention
    model = GPTModel(
        config=config,
        transformer_layer_spec=TransformerBlockSubmodules(
            layer_specs=[layer] * get_num_layers_to_build(config), layer_norm=WrappedTorchNorm
        ),
        vocab_size=architecture.padded_vocabulary_size(config.tensor_model_parallel_size),
        max_sequence_length=architecture.max_positions,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        parallel_output=True,
        share_embeddings_and_output_weights=architecture.is_tied,
        position_embedding_type="rope",
        rotary_base=architecture.rotary_base,
    )
    if architecture.rotary_frequencies is not None:
        model.rotary_pos_emb.inv_freq = torch.tensor(architecture.rotary_frequencies)
    # The norms are torch's own and ask no configuration for their dtype.
    return model.to(
        device=torch.cuda.current_device() if torch.cuda.is_available() else "cpu", dtype=config.params_dtype
    )


class ScoringModel:
    """This rank's part of a model whose output layer sees the scored positions only."""

    def __init__(self, architecture: Architecture, config: TransformerConfig) -> None:
        self.own = build_model(architecture, config)
        """Megatron-core's module, with this rank's parameters."""
        num_columns = architecture.padded_vocabulary_size(config.tensor_model_parallel_size)
        num_columns //= config.tensor_model_parallel_size
        self.first_token_id: int = parallel_state.get_tensor_model_parallel_rank() * num_columns
        """What this rank's first column of logits stands for."""
        self._num_columns = min(num_columns, architecture.vocabulary_size - self.first_token_id)
        self._scored_n: Tensor | None = None
        if self.own.post_process:
            self.own.output_layer.register_forward_pre_hook(self._select)

    def parameters(self) -> dict[str, Tensor]:
        """This rank's, without gradient, under Megatron-core's names."""
        return {name: parameter.detach() for name, parameter in self.own.named_parameters()}

    def forward(self, wrapped: torch.nn.Module, rows: PackedRows) -> Tensor:
        """Return logits [n, V] from the last pipeline stage, hidden states [L, 1, H] from the others.

        `wrapped` is `own`, or what wraps it.
        """
        self._scored_n = rows.scored_n
        output: Tensor = wrapped(
            input_ids=rows.token_ids_1L, position_ids=None, attention_mask=None, packed_seq_params=rows.sequences
        )
        if not self.own.post_process:
            return output
        # Columns that fill the vocabulary up are no tokens.
        return output.squeeze(0)[:, : self._num_columns]

    def _select(self, _: torch.nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        assert self._scored_n is not None
        return inputs[0].index_select(0, self._scored_n), *inputs[1:]
