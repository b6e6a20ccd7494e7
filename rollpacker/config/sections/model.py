"""The policy and its sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rollpacker.config.hub_names import SCHEME, HubName, parse_hub_name
from rollpacker.config.sections.base import NOT_IN_FINGERPRINT, REAL_RUN, Count, Flag, Section


class ShapeSection(Section):
    """The sizes of a transformer with gated MLPs, or experts, and grouped-query or latent attention, by config.json."""

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
    latent_size: Count = 0
    """With latent attention, what the KV cache holds of a token in each layer, instead of keys and values of its heads:
    `kv_lora_rank` and `qk_rope_head_dim` together; 0 without."""
    num_experts: Count = 0
    """Of each layer with a Mixture of Experts; 0 is a dense model."""
    num_active_experts: Count = 0
    """Experts that a token is sent to: `num_experts_per_tok`."""
    expert_size: Count = 0
    """Width of one expert: `moe_intermediate_size`."""
    shared_expert_size: Count = 0
    """Width of the experts that every token is sent to, together."""
    num_dense_layers: Count = 0
    """Layers of a Mixture-of-Experts model that have an MLP of `intermediate_size` instead."""

    @model_validator(mode="after")
    def _experts_have_sizes(self) -> Self:
        is_whole = 1 <= self.num_active_experts <= self.num_experts and self.expert_size >= 1
        if self.num_experts and not (is_whole and self.num_dense_layers <= self.num_layers):
            raise ValueError(
                f"model.shape.num_experts={self.num_experts} with num_active_experts={self.num_active_experts}, "
                f"expert_size={self.expert_size} and num_dense_layers={self.num_dense_layers} of {self.num_layers}.\n"
                "A token is sent to one expert at least and to all at most, and each of them has a width.\n"
                "Set the sizes of config.json: num_experts_per_tok and moe_intermediate_size."
            )
        return self


class ModelSection(Section):
    """A model that is read from files."""

    name: str | None = None
    """What tables and figures call it; null: they call it by its directory."""
    path: Path | None
    """A directory in Hugging Face format, with its tokenizer; or the name of a model on the Hub, such as
    Qwen/Qwen2.5-7B-Instruct or NAME@REVISION, which `train` downloads where the local cache lacks it (model.download).
    A run records the commit, and resumes with it. null in a modelled run that has a shape instead, such as that of
    model=qwen2.5-7b."""
    download: Annotated[Literal["never", "auto"], NOT_IN_FINGERPRINT] = "auto"
    """For a model by name that the cache lacks: `train` downloads it before it starts, but never in a Slurm job; or it
    is a mistake."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights, in engines and trainer."""
    shape: ShapeSection | None = None
    """What a modelled run without a model directory knows of the model; a real one reads it from the directory."""

    @property
    def hub_name(self) -> HubName | None:
        """The path as a name of the Hub; None where it is one of this machine."""
        if self.path is None:
            return None
        name = parse_hub_name(self.path, "model")
        is_here = self.path.exists() or (self.path.parent.is_dir() and self.path.parts[0] != SCHEME)
        return None if name is None or is_here else name

    @property
    def label(self) -> str:
        """What people call it: its name, or that of its directory; empty for a shape alone."""
        return self.name or (self.path.name if self.path else "")

    @property
    def directory(self) -> Path:
        """Where the model lies, which every real run has; of a name that the cache lacks, the name as a path."""
        assert self.path is not None
        return (self.hub_name and self.hub_name.snapshot) or self.path


class PolicySection(ModelSection):
    """The policy."""

    export_dtype: Annotated[Literal["bfloat16", "float32"] | None, NOT_IN_FINGERPRINT, REAL_RUN] = "bfloat16"
    """Of the model that a run writes when it ends, as a Hugging Face folder `run.dir/model`; null writes none.
    `rollpacker export` makes one of any checkpoint."""
