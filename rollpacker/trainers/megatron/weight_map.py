"""Which piece of which Hugging Face tensor is which piece of which parameter here, and where the model is cut.

One table serves both ways: reading, each rank its own slices, and writing, full tensors in ascending order of name.
Nothing is computed on the way, only cut, stacked and rounded to the parameter's dtype, so a round trip is bit-equal.
mbridge and Megatron-Bridge convert as well, but want Transformer Engine's layers (and old transformers), read whole
tensors on every rank, and give no order.

How Megatron-core stores what Hugging Face splits:

* `linear_qkv`: for each group of query heads that share a key head, the group's queries, its key, its value.
* `linear_fc1`: this rank's rows of `gate_proj`, then those of `up_proj`.
* Tied embeddings on a pipeline: the last stage has a copy, which reads the embedding's name and is not written.
* A vocabulary that the ranks cannot share equally is filled up with rows of zeros, which are not written either.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from rollpacker.trainers.megatron.architecture import Architecture

EMBEDDING = "model.embed_tokens.weight"


class Piece(Enum):
    """What of a parameter a Hugging Face tensor is."""

    WHOLE = "whole"
    VOCABULARY = "vocabulary"
    """Whole but for the rows that fill the vocabulary up."""
    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    GATE = "gate"
    UP = "up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """One Hugging Face tensor and its home."""

    name: str
    """In Hugging Face's files."""
    shape: tuple[int, ...]
    stage: int
    """The pipeline stage that has it."""
    parameter: str
    """Its name in that stage's model."""
    piece: Piece = Piece.WHOLE
    split: int | None = None
    """The dimension that tensor-parallel ranks share; None: each has all of it."""
    is_copy: bool = False
    """Of a tensor that another stage writes."""


def weight_map(architecture: Architecture, num_stages: int) -> list[Mapped]:
    """Return every tensor of the model in ascending order of its name; copies come after their original."""
    a = architecture
    last = num_stages - 1
    shape = (a.vocabulary_size, a.hidden_size)
    mapped = [
        Mapped(
            name=EMBEDDING,
            shape=shape,
            stage=0,
            parameter="embedding.word_embeddings.weight",
            piece=Piece.VOCABULARY,
            split=0,
        ),
        Mapped(name="model.norm.weight", shape=shape[1:], stage=last, parameter="decoder.final_layernorm.weight"),
    ]
    if not a.is_tied or last > 0:
        mapped.append(
            Mapped(
                name=EMBEDDING if a.is_tied else "lm_head.weight",
                shape=shape,
                stage=last,
                parameter="output_layer.weight",
                piece=Piece.VOCABULARY,
                split=0,
                is_copy=a.is_tied,
            )
        )
    for layer in range(a.num_layers):
        mapped.extend(_layer(a, layer, a.num_layers // num_stages))
    return sorted(mapped, key=lambda tensor: (tensor.name, tensor.is_copy))


def _layer(a: Architecture, layer: int, num_layers_per_stage: int) -> list[Mapped]:
    stage, index = divmod(layer, num_layers_per_stage)

    def tensor(
        name: str, parameter: str, shape: tuple[int, ...], split: int | None = None, piece: Piece = Piece.WHOLE
    ) -> Mapped:
        return Mapped(
            name=f"model.layers.{layer}.{name}",
            shape=shape,
            stage=stage,
            parameter=f"decoder.layers.{index}.{parameter}",
            piece=piece,
            split=split,
        )

    num_queries, num_keys = a.num_heads * a.head_size, a.num_key_heads * a.head_size
    tensors = [
        tensor("input_layernorm.weight", "input_layernorm.weight", (a.hidden_size,)),
        tensor("post_attention_layernorm.weight", "pre_mlp_layernorm.weight", (a.hidden_size,)),
        tensor("mlp.gate_proj.weight", "mlp.linear_fc1.weight", (a.ffn_size, a.hidden_size), 0, Piece.GATE),
        tensor("mlp.up_proj.weight", "mlp.linear_fc1.weight", (a.ffn_size, a.hidden_size), 0, Piece.UP),
        tensor("mlp.down_proj.weight", "mlp.linear_fc2.weight", (a.hidden_size, a.ffn_size), 1),
        tensor("self_attn.o_proj.weight", "self_attention.linear_proj.weight", (a.hidden_size, num_queries), 1),
    ]
    for letter, piece, size in (
        ("q", Piece.QUERY, num_queries),
        ("k", Piece.KEY, num_keys),
        ("v", Piece.VALUE, num_keys),
    ):
        name, parameter = f"self_attn.{letter}_proj", "self_attention.linear_qkv"
        tensors.append(tensor(f"{name}.weight", f"{parameter}.weight", (size, a.hidden_size), 0, piece))
        if a.has_qkv_bias:
            tensors.append(tensor(f"{name}.bias", f"{parameter}.bias", (size,), 0, piece))
        if a.has_qk_norm and letter != "v":
            norm = f"self_attention.{letter}_layernorm.weight"
            tensors.append(tensor(f"self_attn.{letter}_norm.weight", norm, (a.head_size,)))
    return tensors


def piece_of(tensor: Mapped, parameter: Tensor, architecture: Architecture) -> Tensor:
    """Return the view of this rank's parameter that holds its part of the tensor.

    Its leading dimensions flattened into one, it is the part as Hugging Face stores it.
    """
    num_queries = architecture.num_heads // architecture.num_key_heads
    per_group = (num_queries + 2, architecture.head_size, *parameter.shape[1:])
    match tensor.piece:
        case Piece.WHOLE | Piece.VOCABULARY:
            return parameter
        case Piece.QUERY:
            return parameter.view(-1, *per_group)[:, :num_queries]
        case Piece.KEY:
            return parameter.view(-1, *per_group)[:, num_queries]
        case Piece.VALUE:
            return parameter.view(-1, *per_group)[:, num_queries + 1]
        case Piece.GATE:
            return parameter.view(2, -1, *parameter.shape[1:])[0]
        case Piece.UP:
            return parameter.view(2, -1, *parameter.shape[1:])[1]
