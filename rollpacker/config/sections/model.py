"""The policy and its sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from rollpacker.config.sections.base import Count, Flag, Section


class ShapeSection(Section):
    """The sizes of a transformer with gated MLPs and grouped-query attention, as its config.json gives them."""

    num_layers: Count = Field(ge=1)
    """`num_hidden_layers`."""
    hidden_size: Count = Field(ge=1)
    """Width of the residual stream."""
    num_heads: Count = Field(ge=1)
    """`num_attention_heads`."""
    num_kv_heads: Count = Field(ge=1)
    """`num_key_value_heads`."""
    head_dim: Count = Field(ge=1)
    """Width of one head."""
    intermediate_size: Count = Field(ge=1)
    """Width of the MLP."""
    vocab_size: Count = Field(ge=1)
    """Rows of the embedding."""
    has_tied_embeddings: Flag = False
    """The output layer is the embedding."""


class ModelSection(Section):
    """The policy."""

    name: str | None = None
    """What tables and figures call it; null: they call it by its directory."""
    path: Path | None
    """A local directory in Hugging Face format, with its tokenizer. null in a modelled run that has a shape instead,
    such as that of model=qwen2.5-7b."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights, in engines and trainer."""
    shape: ShapeSection | None = None
    """What a modelled run without a model directory knows of the model; a real one reads it from the directory."""

    @property
    def directory(self) -> Path:
        """The path, which every real run has."""
        assert self.path is not None
        return self.path
