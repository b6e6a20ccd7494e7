"""Builds this rank's part of the model, empty, and runs it.

The layers are Megatron-core's own without Transformer Engine, whatever is installed, so that every machine computes
alike; attention is `PackedAttention`. Only positions that predict response tokens reach the output layer: a vocabulary
of logits for every prompt token would be the largest tensor of all.

Shapes: L positions of this rank, n those that are scored, C of a chunk of them, H width of the model, V columns of the
vocabulary here.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build

from rollpacker.trainers.megatron.attention import PackedAttention
from rollpacker.trainers.megatron.vocabulary import score_split_tokens
from rollpacker.trainers.policy import Scores
from rollpacker.trainers.scoring import score_in_chunks, scores_of_chunks

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
    layer.submodules.self_attention.submodules.core_attention = ModuleSpec(
        module=PackedAttention, params={"rotary_frequencies": architecture.rotary_frequencies}
    )
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
        position_embedding_type="none",  # `PackedAttention` turns queries and keys itself
    )
    # The norms are torch's own and ask no configuration for their dtype.
    return model.to(
        device=torch.cuda.current_device() if torch.cuda.is_available() else "cpu", dtype=config.params_dtype
    )


class ScoringModel:
    """This rank's part of a model, and the scores of response tokens from its output layer.

    The layer sees the scored positions only. With `chunk_tokens` it gives their scores instead of logits, so that no
    more than a chunk's logits exist at a time (`rollpacker.trainers.scoring`).
    """

    def __init__(
        self,
        architecture: Architecture,
        config: TransformerConfig,
        *,
        temperature: float = 1.0,
        chunk_tokens: int | None = None,
        has_entropy_gradient: bool = False,
    ) -> None:
        self.own = build_model(architecture, config)
        """Megatron-core's module, with this rank's parameters."""
        self._temperature = temperature
        self._chunk_tokens = chunk_tokens
        self._has_entropy_gradient = has_entropy_gradient
        num_columns = architecture.padded_vocabulary_size(config.tensor_model_parallel_size)
        num_columns //= config.tensor_model_parallel_size
        self._first_token_id: int = parallel_state.get_tensor_model_parallel_rank() * num_columns
        """What this rank's first column of logits stands for."""
        self._num_columns = min(num_columns, architecture.vocabulary_size - self._first_token_id)
        self._rows: PackedRows | None = None
        if self.own.post_process:
            self._project = self.own.output_layer.forward
            self.own.output_layer.forward = self._output

    def parameters(self) -> dict[str, Tensor]:
        """This rank's, without gradient, under Megatron-core's names."""
        return {name: parameter.detach() for name, parameter in self.own.named_parameters()}

    def forward(self, wrapped: torch.nn.Module, rows: PackedRows) -> Tensor:
        """Return what `scores` takes from the last pipeline stage, hidden states [L, 1, H] from the others.

        `wrapped` is `own`, or what wraps it.
        """
        self._rows = rows
        output: Tensor = wrapped(
            input_ids=rows.token_ids_1L, position_ids=None, attention_mask=None, packed_seq_params=rows.sequences
        )
        return output.squeeze(0) if self.own.post_process else output

    def scores(self, output: Tensor, rows: PackedRows) -> Scores:
        """Return those of this rank's n tokens, from the last stage's output."""
        if self._chunk_tokens is not None:
            return scores_of_chunks(output, has_entropy_gradient=self._has_entropy_gradient)
        logprobs_n, entropies_n, variances_n = self._scores_of_logits(output, rows.target_ids_n)
        return Scores(logprobs_N=logprobs_n, entropies_N=entropies_n, variances_N=variances_n)

    def _scores_of_logits(self, logits_nV: Tensor, ids_n: Tensor) -> tuple[Tensor, ...]:
        return score_split_tokens(
            logits_nV[:, : self._num_columns],  # what fills the vocabulary up is no token
            ids_n,
            self._temperature,
            self._first_token_id,
            parallel_state.get_tensor_model_parallel_group(),
            has_entropy_gradient=self._has_entropy_gradient,
        )

    def _output(self, hidden_L1H: Tensor, **options: Any) -> tuple[Tensor, None]:
        """Stand in for the output layer: logits [n, 1, V], or scores [n, 1, 3]."""
        assert self._rows is not None
        hidden_n1H = hidden_L1H.index_select(0, self._rows.scored_n)
        if self._chunk_tokens is None:
            return self._project(hidden_n1H, **options)[0], None

        def of_chunk(hidden_C1H: Tensor, ids_C: Tensor) -> tuple[Tensor, ...]:
            return self._scores_of_logits(self._project(hidden_C1H, **options)[0].squeeze(1), ids_C)

        scores_n3 = score_in_chunks(of_chunk, hidden_n1H, self._rows.target_ids_n, self._chunk_tokens)
        return scores_n3.unsqueeze(1), None
